"""A small Megatron-core training loop around the DataModule."""
