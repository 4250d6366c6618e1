"""Duplicates: samples that are stored several times, within data sets and across them.

Reads data sets. Returns groups of samples that are equal byte by byte, or whose pictures look alike: as a report, as a
table with a row for each sample, as a list of the keys of copies. `sample_rows` reads every sample once and stores a
row of it on disk, `hash_groups` connects those with close pictures, `found_duplicates` groups, counts and writes them
with DuckDB.
"""

from bridge_data.plugins.duplicates.found_duplicates import DuplicateReport, find_duplicates
from bridge_data.plugins.duplicates.sample_rows import DuplicateConfig

__all__ = ["DuplicateConfig", "DuplicateReport", "find_duplicates"]
