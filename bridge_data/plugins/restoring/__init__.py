"""Samples, packs and batches of a run are made again from their restore keys."""
