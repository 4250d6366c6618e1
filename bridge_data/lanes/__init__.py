"""Lanes: independent streams of micro-batches, each with an order, hooks and a state of its own.

Enters: a path or samples in memory, a task encoder, the options of a run. Leaves: micro-batches of a lane, each with
the state after it. A lane knows of no other lane, process or rank: `loader` runs them, and says whose turn it is.

    datasets      a path and options become a `LaneDataset`: `get_train_dataset`, `get_val_dataset`
    lane_dataset  plan, order and encoder as one object: opens lanes, checks and re-deals states, the length of a pass
    lane          one lane: draws references, fills packing buffers and groups, cuts batches; its state
    work          what is done to samples, packs and batches: calls the hooks, in their order
    memo          what the work on samples has made, shared by the jobs of a machine
    upcoming      what a lane loads next, for whoever makes it before
    sample_costs  what samples cost: measured for the cost index, and measured again when a run begins
    planned       which samples share a pack, from their costs, before they are read; the packs of each rank's steps
    units         what a batch is made of: a sample, or a pack
    reading       in which blocks samples are read, and how far ahead
    produced      what leaves a lane
    survival      when a source whose samples are all skipped counts as empty
    restoring     a sample or a batch made again from its `__restore_key__`
    wrappers      `MapDataset`, `FilterDataset`, `BatchDataset`: functions of the user around the encoder

To change: a default, `run_options` (the split part and the limit of validations: `datasets`); how far ahead remote data
are read, the constants of `reading`, used in `ReadAhead._wants_to_look`; what is checked when data are opened,
`datasets._plan` and `LaneDataset`; the order of hooks, `Work`: of samples in its constructor, `_decoded` and `load`, of
packs in `pack` and `members`, of batches in `batch`, and `Restorer`, which follows it; what an encoded sample depends
on, `memo.keys_of` and `samples_key.content_keys`, and how often that is checked, `CHECKED_OF` of `memo` and
`NUM_CHECKED` of `sample_costs`; the order of drawing, packing and grouping, `Lane.next` downwards;
the state of a lane, `Lane.state`, `_encoded_packs` and `_restore`, with `_LaneCheck` of `order.state` and
`order.redeal`; how a pending item is written, `Pending.encode` and `decode` of `order.pending`, with `_PendingCheck`; a
restore key, `Work` wherever it marks samples, packs and batches, `take_held` of `decode.sample_loader`, and
`restoring`, which reads it. An error is worded where it is raised; what the user's hooks did wrong, in `work` and
`lane`; that nothing of a source stays, in `Survival.count_skip`.
"""
