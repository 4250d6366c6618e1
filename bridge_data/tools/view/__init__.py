"""`bridge-data view`: a local page to look at data sets, batches and runs.

    catalog ─ samples by source, number and key; sample_cards: what is shown of one
    blend_counts, charts, batch_contents, loss_log ─ what the other pages show
    run_folder, saved_run ─ what a run has left so far; named_runs ─ its data
    site ─ what there is to show, batches included; gatekeeper ─ who may ask; pages, run_pages ─ the routes

Enters: a data set, a metadataset, the folder of a run. Leaves: pages, rendered here; the browser runs htmx and a few
lines for the keyboard. Guarantee: no part of a request is ever a path; samples are asked for by number.
"""
