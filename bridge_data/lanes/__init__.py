"""Lanes: independent streams of micro-batches; what is done to samples, and how they are read ahead."""
