"""The split parts of a data set or metadataset, with their sources by number.

Reads a path. Returns `SplitCatalog`s, whose samples are named by `SampleAddress`es. No shard is opened.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bridge_data.data import Records
from bridge_data.data.metadata import DATASET_YAML, META_FOLDER
from bridge_data.data.prepared import PreparedDataset
from bridge_data.data.records import count_samples
from bridge_data.errors import ConfigError
from bridge_data.limits import DEFAULT_LIMITS
from bridge_data.plan import EmptySplitError, Plan, Source
from bridge_data.plan.opening import load_dataset
from bridge_data.storage import Location


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CatalogSource:
    """One data set of a split part: `number` is its position there. `source` says how its samples are made; None if
    there is no dataset.yaml."""

    number: int
    records: Records
    source: Source | None

    @property
    def name(self) -> str:
        """The name of the folder or file."""
        return Path(str(self.records.root)).name

    @property
    def path(self) -> str:
        """Where it is stored."""
        return str(self.records.root)

    @property
    def subflavors(self) -> list[str]:
        """Each of its subflavors as `key=value`."""
        return [] if self.source is None else [f"{key}={value}" for key, value in self.source.subflavors.items()]

    @property
    def num_samples(self) -> int:
        """Its samples in this split part."""
        return count_samples(self.records)


@dataclasses.dataclass(frozen=True, slots=True)
class SampleAddress:
    """A sample: the number of its source in the split part, and its index in the source."""

    source: int
    index: int


class SplitCatalog:
    """The sources of one split part.

    `plan` has the weights of the blend if the part is for training; `notice` says why samples are shown as stored if
    the dataset.yaml cannot be used.
    """

    def __init__(self, name: str, plan: Plan | None, records: Sequence[Records], notice: str = "") -> None:
        self.name, self.plan, self.notice = name, plan, notice
        found: Sequence[Source | None] = [None] * len(records) if plan is None else plan.sources
        pairs = enumerate(zip(records, found, strict=True))
        self.sources = tuple(CatalogSource(number=n, records=kept, source=source) for n, (kept, source) in pairs)

    @property
    def num_samples(self) -> int:
        """Samples of all sources."""
        return sum(source.num_samples for source in self.sources)

    @classmethod
    def open(cls, path: Location, part: str, trust: Mapping[str, Any], *, training: bool = False) -> Self | None:
        """A split part of the data set, JSONL file or metadataset at `path`; without a usable dataset.yaml, its samples
        as stored; None if it has no samples. `trust` are options of `load_dataset`.

        Raises:
            ConfigError, DatasetError: if it cannot be opened.
        """
        try:
            plan = load_dataset(path, **trust).get_datasets(training=training, split_part=part)
            return cls(part, plan, [source.records for source in plan.sources])
        except EmptySplitError:
            return None
        except ConfigError as error:
            if not path.is_dir() or trust.get("where") is not None:
                raise
            shards = PreparedDataset.open(path, trust.get("limits", DEFAULT_LIMITS)).split(part)
            notice = str(error) if (path / META_FOLDER / DATASET_YAML).is_file() else ""
            return cls(part, None, [shards], notice) if shards.num_samples else None
