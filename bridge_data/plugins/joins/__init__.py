"""Data sets joined by key: our joins, and those that Energon prepared."""
