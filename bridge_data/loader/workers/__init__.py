"""Worker processes: how they are started, watched, replaced and talked to."""
