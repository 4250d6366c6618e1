"""Worker processes: how they are started, watched, replaced and talked to, and batches in memory that they share."""
