"""Samples chosen by an expression over their columns, with DuckDB."""
