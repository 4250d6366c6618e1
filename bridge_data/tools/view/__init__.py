"""`bridge-data view`: a local page to look at data sets, batches and runs.

    catalog ─ samples by source, number and key; sample_cards ─ the display of one
    charts, batch_contents ─ contents of the other pages
    gatekeeper ─ access control; pages ─ everything to show, and the routes

Reads a data set, a metadataset, the folder of a run. Returns pages, rendered on the server; the browser runs htmx and
a few lines for the keyboard. No part of a request is ever a path; samples are requested by number.
"""
