"""Memory of batches: arenas to build them in, shared slots to send them without a copy, and their pickles."""
