"""Training loops around the DataModule."""
