"""Tars without an index of ours: those that nobody prepared, and those that Energon did."""
