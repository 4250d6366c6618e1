"""Columnar data, read in place: Parquet, Arrow IPC, Lance, MDS and litData."""
