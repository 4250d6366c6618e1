"""Worker processes: starting, watching, replacing, messages, and batches in shared memory."""
