"""A loader is told which trainers ask for its state when they have fetched batches ahead: the state is late."""
