"""`bridge-data view`: a local page to look at data sets, batches and runs.

    catalog ─ samples by source and number; key_search: by key; sample_cards: what is shown of one
    blend_counts, histograms, trainer_batches, loss_log ─ what the other pages show
    site ─ what there is to show; gatekeeper ─ who may ask; pages, run_pages ─ the routes; serving ─ the socket

Enters: a data set, a metadataset, a saved state, a log. Leaves: pages, rendered here; the browser runs htmx and a few
lines for the keyboard. Guarantee: no part of a request is ever a path; samples are asked for by number.
"""
