"""A source: one part of the split of one prepared data set, and how its samples are to be built."""

import dataclasses
import functools
import json
from collections.abc import Callable, Container, Mapping
from typing import Any, Protocol, TypeAlias

from bridge_data.plan.auxiliary import AuxReference
from bridge_data.plan.field_map import FieldAccess
from bridge_data.plan.sample_class import SampleClass
from bridge_data.plan.weights import EpochsPerShuffle
from bridge_data.shards import Records

Parts: TypeAlias = dict[str, Any]
"""A sample as a dict: its parts by name, and its provenance under the dunder names."""


class SampleMaker(Protocol):
    """Makes samples in a way of its own: by a function beside the data, or as a class of the user."""

    def maker(self, decode: Callable[[Parts], Parts] | None, subflavors: dict[str, Any]) -> Callable[[Parts], Any]:
        """What makes a sample of its undecoded parts; `decode` is what the task encoder decodes with (None: nothing),
        `subflavors` are those of the source."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Join:
    """How samples of several sources become one: `joiner` is called with a sample of each of `members`, or None, in
    their order, or by their `names`."""

    members: tuple["Source", ...]
    names: tuple[str, ...] | None
    joiner: Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Samples 0..num_samples-1 of one split part of the data set at `path`, which `records` reads.

    `field_map` gives the fields of `sample_class`; a crude class has none. `parts` are the parts to read, None for all.
    `config_file` is the dataset.yaml that said so. If `joined`, a record holds a sample of each member, and these say
    how they are built. If there is a `maker`, it makes the samples, instead of the field map. `aux` is what cookers may
    read besides, `epochs_per_shuffle` is how many epochs are shuffled together.
    """

    path: str
    split_part: str
    records: Records
    sample_class: SampleClass
    field_map: Mapping[str, FieldAccess]
    parts: Container[str] | None
    subflavors: Mapping[str, Any]
    config_file: str
    joined: Join | None = None
    maker: SampleMaker | None = None
    aux: Mapping[str, AuxReference] = dataclasses.field(default_factory=dict)
    epochs_per_shuffle: EpochsPerShuffle = 1

    @property
    def name(self) -> str:
        """What to call it in messages: the folder's own name and the split part."""
        return f"{self.path.rstrip('/').rpartition('/')[2]}/{self.split_part}"

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.records.num_samples

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits that stand for which samples these are, in which order; wherever they lie, whoever prepared
        them, whatever is made of them. Names, sizes and sample counts of the shards decide it.

        Raises:
            DatasetError: if a shard is missing.
        """
        import hashlib  # here: a command that reads no data does not wait for it

        text = json.dumps(self.records.identity(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
