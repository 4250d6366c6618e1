"""Factories of JSONL files: described in Python, where otherwise the path of the file does it.

Enters: a prepared JSONL file, and what its samples are. Leaves: a `Source`, or a `Plan` of it. A class of yours that
derives from one of these and overrides `load_sample` makes its samples itself. Names and settings are those of Energon.
"""

import copy
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

from bridge_data.errors import SampleError
from bridge_data.ignored import warn_ignored
from bridge_data.plan.dataset_code import ChosenParts
from bridge_data.plan.factories import BaseCoreDatasetFactory, Decode
from bridge_data.plan.source import Parts, Source
from bridge_data.plan.weights import EpochsPerShuffle, check_epochs
from bridge_data.samples import CrudeSample
from bridge_data.shards import Records, Subset, SubsetRange
from bridge_data.shards.jsonl_file import PART, open_jsonl
from bridge_data.storage import Location, location


class JsonlSettings(TypedDict, total=False):
    """What is said of a JSONL file; see `CrudeJsonlDatasetFactory`."""

    split_part: str
    training: bool
    worker_config: Any
    shuffle_over_epochs: EpochsPerShuffle
    parallel_shard_iters: int | None
    max_samples_per_sequence: int | None
    subset: SubsetRange | None
    split_config: str | None
    part_filter: Callable[[str], bool] | None


class CrudeJsonlDatasetFactory(BaseCoreDatasetFactory[CrudeSample]):
    """The part `split_part` of the prepared JSONL file `path`, of which each line is the part `json`, as bytes.

    Args:
        shuffle_over_epochs: how many epochs are shuffled together (see `bridge_data.plan.weights`).
        subset: a range of the samples.
        split_config: the file beside `path` that says which samples the part has; `<path>.split.yaml` if None.
        part_filter: says of `json` whether it is read; it is if None.
        worker_config, parallel_shard_iters, max_samples_per_sequence: taken without effect (see `bridge_data.ignored`).

    Raises:
        ConfigError: for wrong settings.
    """

    __sample_type__ = CrudeSample

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str = "train",
        training: bool = True,
        worker_config: Any = None,
        shuffle_over_epochs: EpochsPerShuffle = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: SubsetRange | None = None,
        split_config: str | None = None,
        part_filter: Callable[[str], bool] | None = None,
    ) -> None:
        warn_ignored(
            worker_config=worker_config,
            parallel_shard_iters=parallel_shard_iters,
            max_samples_per_sequence=max_samples_per_sequence,
        )
        self.path = location(path).absolute()
        self.split_part, self.split_config, self.training = split_part, split_config, training
        self.shuffle_over_epochs = check_epochs(shuffle_over_epochs)
        self.subset = subset
        self.subflavors = {}
        self._parts = None if part_filter is None else ChosenParts(part_filter)

    @property
    def paths(self) -> list[Location]:
        """The file."""
        return [self.path]

    def load_sample(self, sample: Parts) -> CrudeSample:
        """A sample of its part, which is bytes, with `__key__`, `__shard__`, `__sources__` and `__restore_key__`.

        It may raise `SkipSample`, and must not draw random numbers.
        """
        return CrudeSample(sample)

    def maker(self, decode: Decode | None, subflavors: dict[str, Any]) -> Callable[[Parts], CrudeSample]:
        """`load_sample` with these sub-flavors; `decode` is not used: a line is what it is."""
        bound = copy.copy(self)
        bound.subflavors = subflavors
        return bound.load_sample

    def source(self) -> Source:
        """The data set, opened, whose samples `load_sample` makes; see `BaseCoreDatasetFactory.source`."""
        return self._source(self)

    def _source(self, maker: "CrudeJsonlDatasetFactory | None") -> Source:
        records: Records = open_jsonl(self.path, self.split_part, split_config=self.split_config)
        if self.subset is not None:
            records = Subset(records, *self.subset.resolve(records.num_samples))
        return Source(
            path=str(self.path),
            split_part=self.split_part,
            records=records,
            sample_class=CrudeSample,
            field_map={},
            parts=self._parts,
            subflavors=self.subflavors,
            config_file=f"{type(self).__name__} of {self.path}",
            maker=maker,
            epochs_per_shuffle=self.shuffle_over_epochs,
        )

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.path} [{self.split_part}])"


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """A JSONL file whose lines are decoded, with `subflavors`; this is what the path of such a file stands for.

    Args:
        settings: those of `CrudeJsonlDatasetFactory`.

    Raises:
        ConfigError: for wrong settings.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        subflavors: Mapping[str, Any] | None = None,
        **settings: Unpack[JsonlSettings],
    ) -> None:
        super().__init__(path, **settings)
        self.subflavors = dict(subflavors or {})

    def load_sample(self, sample: Parts) -> CrudeSample:
        """The sample with its line decoded, and with the sub-flavors.

        Raises:
            SampleError: if the line is no JSON.
        """
        decoded = {**sample, "__subflavors__": self.subflavors}
        if PART in sample:
            try:
                decoded[PART] = json.loads(sample[PART])
            except ValueError as error:
                raise SampleError(f"{self.path}: sample {sample['__key__']} is no JSON: {error}") from error
        return super().load_sample(decoded)

    def source(self) -> Source:
        """The data set, opened; see `BaseCoreDatasetFactory.source`."""
        is_plain = type(self).load_sample is DefaultCrudeJsonlDatasetFactory.load_sample
        return self._source(None if is_plain else self)
