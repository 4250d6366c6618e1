"""One reader for the ranks of a replica, and micro-batches balanced between ranks."""
