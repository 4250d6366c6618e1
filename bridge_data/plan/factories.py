"""Factories: data sets described in Python instead of YAML. Here is what all of Energon's factories share.

Enters: a path or the members of a join, and the settings. Leaves: a `Source`, or a `Plan` of it, which
`get_train_dataset` and `get_val_dataset` take instead of a path. A class that derives from a factory and overrides
`load_sample` makes its samples itself; a dataset.yaml may name it, if its module is trusted.
"""

import abc
import copy
import dataclasses
import os
from collections.abc import Callable, Container, Mapping
from typing import Any, ClassVar, Generic, TypedDict, TypeVar

from bridge_data.errors import ConfigError
from bridge_data.ignored import warn_ignored
from bridge_data.plan.blending import Plan, plan_of
from bridge_data.plan.dataset_code import ChosenParts
from bridge_data.plan.field_map import FieldAccess
from bridge_data.plan.sample_class import SampleClass
from bridge_data.plan.source import Parts, Source
from bridge_data.plan.weights import EpochsPerShuffle, check_epochs
from bridge_data.samples import CrudeSample, Sample
from bridge_data.shards import Records, Subset, SubsetRange
from bridge_data.storage import Location, location

T_sample = TypeVar("T_sample")

Decode = Callable[[Parts], Parts]


class FactorySettings(TypedDict, total=False):
    """Settings of all factories of a path; see `PathDatasetFactory`."""

    split_part: str
    training: bool
    worker_config: Any
    shuffle_over_epochs: EpochsPerShuffle
    parallel_shard_iters: int | None
    max_samples_per_sequence: int | None
    subset: SubsetRange | None
    split_config: str | None


class BaseCoreDatasetFactory(abc.ABC, Generic[T_sample]):
    """A single data set. Its samples, of the class `__sample_type__`, get `subflavors`."""

    __sample_type__: ClassVar[SampleClass]
    training: bool = True
    subflavors: dict[str, Any]

    @abc.abstractmethod
    def source(self) -> Source:
        """The data set, opened.

        Raises:
            ConfigError: if it is not as described. DatasetError: if the data differ from their metadata.
        """

    def build(self) -> Plan:
        """The plan of this data set alone, for training or validation, as `training` says.

        Raises:
            ConfigError: if it is not as described, or has no samples. DatasetError: if the data differ from their
            metadata.
        """
        source = self.source()
        return plan_of(source, training=self.training, what=f"{source.path}: the split part {source.split_part!r}")

    def __len__(self) -> int:
        return self.source().num_samples

    def _set(
        self, *, training: bool, shuffle_over_epochs: EpochsPerShuffle, subset: SubsetRange | None, **ignored: Any
    ) -> None:
        """Check and keep the settings that all factories have; `ignored` have no effect."""
        warn_ignored(**ignored)
        self.training, self.subset, self.subflavors = training, subset, {}
        self.shuffle_over_epochs = check_epochs(shuffle_over_epochs)

    def _cut(self, source: Source) -> Source:
        """`source` with the range and the epochs of this factory."""
        records: Records = source.records
        if self.subset is not None:
            records = Subset(records, *self.subset.resolve(records.num_samples))
        return dataclasses.replace(source, records=records, epochs_per_shuffle=self.shuffle_over_epochs)


class PathDatasetFactory(BaseCoreDatasetFactory[T_sample]):
    """The part `split_part` of the data set at `path`.

    Args:
        shuffle_over_epochs: how many epochs are shuffled together (see `bridge_data.plan.weights`).
        subset: a range of the samples.
        split_config: the file that defines the split parts, instead of the usual one.
        part_filter: whether to read a part, by its name; all are read if None.
        worker_config, parallel_shard_iters, max_samples_per_sequence: no effect (see `bridge_data.ignored`).

    Raises:
        ConfigError: for wrong settings.
    """

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
        if not issubclass(getattr(self, "__sample_type__", type(None)), (Sample, CrudeSample)):
            raise ConfigError(f"{type(self).__name__}: __sample_type__ is missing: name a class derived from Sample")
        self._set(
            training=training,
            shuffle_over_epochs=shuffle_over_epochs,
            subset=subset,
            worker_config=worker_config,
            parallel_shard_iters=parallel_shard_iters,
            max_samples_per_sequence=max_samples_per_sequence,
        )
        self.path = location(path).absolute()
        self.split_part, self.split_config = split_part, split_config
        self._parts: Container[str] | None = None if part_filter is None else ChosenParts(part_filter)

    @property
    def paths(self) -> list[Location]:
        """The path."""
        return [self.path]

    @abc.abstractmethod
    def load_sample(self, sample: Parts) -> T_sample:
        """Make a sample of its parts, which are bytes, with `__key__`, `__shard__`, `__sources__`, `__restore_key__`.

        It may raise `SkipSample`, and must not draw random numbers.
        """

    def maker(self, decode: Decode | None, subflavors: dict[str, Any]) -> Callable[[Parts], T_sample]:
        """`load_sample` with these sub-flavors; `decode` is not used by this class."""
        bound = copy.copy(self)
        bound.subflavors = subflavors
        return bound.load_sample

    def source(self) -> Source:
        """The data set, opened, whose samples `load_sample` makes; see `BaseCoreDatasetFactory.source`."""
        return self._source(self)

    @abc.abstractmethod
    def _open(self) -> Records: ...

    def _source(
        self, maker: "PathDatasetFactory[Any] | None", field_map: Mapping[str, FieldAccess] | None = None
    ) -> Source:
        source = Source(
            path=str(self.path),
            split_part=self.split_part,
            records=self._open(),
            sample_class=self.__sample_type__,
            field_map=field_map or {},
            parts=self._parts,
            subflavors=self.subflavors,
            config_file=f"{type(self).__name__} of {self.path}",
            maker=maker,
        )
        return self._cut(source)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.path} [{self.split_part}])"
