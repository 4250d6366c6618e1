"""A source: one part of the split of one prepared data set, and how its samples are to be built."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from bridge_data import storage
from bridge_data.index import ShardSet
from bridge_data.plan.field_map import FieldAccess
from bridge_data.plan.sample_class import SampleClass


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Samples 0..num_samples-1 of the shards of one split part of the data set at `path`.

    `field_map` gives the fields of `sample_class`; a crude class has none. `parts` are the parts to read, None for all.
    `config_file` is the dataset.yaml that said so.
    """

    path: str
    split_part: str
    shards: ShardSet
    sample_class: SampleClass
    field_map: Mapping[str, FieldAccess]
    parts: frozenset[str] | None
    subflavors: Mapping[str, Any]
    config_file: str

    @property
    def name(self) -> str:
        """What to call it in messages: the folder's own name and the split part."""
        return f"{self.path.rstrip('/').rpartition('/')[2]}/{self.split_part}"

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.shards.num_samples

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits that stand for which samples these are, in which order; wherever they lie, whoever prepared
        them, whatever is made of them. Names, sizes and sample counts of the shards decide it.

        Raises:
            DatasetError: if a shard is missing.
        """
        shards = zip(self.shards.names, self._sizes_bytes(), self.shards.counts, strict=True)
        identity = {"shards": list(shards), "excluded": sorted(self.shards.excluded)}
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def _sizes_bytes(self) -> list[int]:
        index = self.shards.index
        if index is not None:
            return [index.entries[name].num_bytes for name in self.shards.names]
        return [storage.size_bytes(self.shards.path(shard)) for shard in range(len(self.shards.names))]
