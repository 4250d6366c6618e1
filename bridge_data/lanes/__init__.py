"""Lanes: independent streams of micro-batches, each with an order, hooks and a state of its own.

Reads a path or samples in memory, a task encoder, and the options of a run. Returns micro-batches of a lane, each with
the state after it. A lane knows of no other lane, process or rank: `loader` runs them, and says whose turn it is.

    datasets        a path and options become a `LaneDataset`: `get_train_dataset`, `get_val_dataset`
    lane_dataset    plan, order and encoder as one object, which describes the lanes of a job; what a process opens of
                    it: readers, makers, lanes; its states: the first one, a saved one, resharded or repeated
    passes          how many batches a pass has, and with how many each lane ends
    lane            one lane: draws samples and has them made, takes these or packs, fills buckets, cuts batches; what
                    waits in it; its state
    survival        whether anything is left of what a lane draws, after many skips in a row
    maker           what is done to samples: reading, decoding, the hooks of samples; packs, groups and batches of them
    pack_source     which samples share a pack: the online packer, and how to add others
    maker_wrappers  what may go around a maker: the seam for samples that are kept, or made ahead or by others
    reading         in which blocks samples are read; the seam for reading ahead

Only a `Lane`, with its feed and pack source, has a position that changes; what `maker` does to a sample depends on the
sample alone. Hooks are called in the order that `maker` sets.
"""
