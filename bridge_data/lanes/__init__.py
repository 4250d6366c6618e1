"""Lanes: independent streams of micro-batches; how samples are processed and read ahead."""
