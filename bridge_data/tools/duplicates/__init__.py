"""Duplicates: samples that are stored several times, within data sets and across them.

Enters: data sets. Leaves: groups of samples that are equal byte by byte, or whose pictures look alike; as a report, as
a table with a row for each sample, as a list of the keys of copies. `sample_hashes` reads every sample once,
`hash_groups` finds equal or close samples, `found_duplicates` counts and writes them.
"""

from bridge_data.tools.duplicates.found_duplicates import DuplicateReport, FoundDuplicates, find_duplicates
from bridge_data.tools.duplicates.sample_hashes import HashConfig, SampleHashes, hash_samples

__all__ = ["DuplicateReport", "FoundDuplicates", "HashConfig", "SampleHashes", "find_duplicates", "hash_samples"]
