"""`bridge-data view`: a local page to look at data sets, batches and runs; and `info --samples`, in a terminal.

    catalog ─ the split parts of data, with their sources by number; sample_facts ─ what parts and values are
    shown_samples ─ samples in a terminal, as JSON, or on a page of their own
    data_catalog ─ samples by source, number and key; contents ─ the display of one, and of a batch
    shown_run ─ a run as it is looked at, and its output so far
    charts ─ figures of a source, losses and the counts of a blend
    gatekeeper ─ access control; pages ─ everything to show, and the routes; view_command ─ the command

Reads a data set, a metadataset, the folder of a run. Returns pages, rendered on the server; the browser runs htmx and
a few lines for the keyboard. No part of a request is ever a path; samples are requested by number.
"""
