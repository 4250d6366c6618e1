"""Batches shared between ranks: one reader for a replica, and micro-batches exchanged so that ranks finish together.

    sharing      what the DataModule asks for: `shared_loader` (its option `share`), `balanced_by` (`balance`)
    background   a loader whose batches come from a thread; any batch as bytes. The next two build on it
    replica      the ranks of one data-parallel replica: one reads and sends its batches to those that need them
    balance      a step: costs are gathered, `assignment` decides, batches are exchanged, each rank has its own
    assignment   what a micro-batch costs, and which rank works on which of a step

All ranks of a group must make their loaders, restore and close them in the same order.
"""
