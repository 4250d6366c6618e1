"""Encoded samples, stored and shared with other epochs and jobs."""
