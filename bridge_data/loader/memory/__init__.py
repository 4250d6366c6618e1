"""Memory of batches: built in shared memory, sent without a copy, and used again."""
