"""`bridge-data view`: a local page to look at data sets, batches and runs.

    catalog ─ samples by source, number and key; sample_cards ─ the display of one
    blend_counts, charts, batch_contents, loss_log ─ contents of the other pages
    saved_run ─ files that a run has written so far; named_runs ─ its data
    site ─ everything to show, with batches; gatekeeper ─ access control; pages, run_pages ─ the routes

Enters: a data set, a metadataset, the folder of a run. Leaves: pages, rendered on the server; the browser runs htmx and
a few lines for the keyboard. Guarantee: no part of a request is ever a path; samples are requested by number.
"""
