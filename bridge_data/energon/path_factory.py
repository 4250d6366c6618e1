"""What Energon's factories of a path share: its settings, and a `Source` whose samples `load_sample` makes."""

import abc
import copy
import os
from collections.abc import Callable, Container, Mapping
from typing import Any, ClassVar, TypedDict

from bridge_data.data import Records, SubsetRange
from bridge_data.errors import ConfigError
from bridge_data.options import path_text
from bridge_data.plan.factories import BaseCoreDatasetFactory, ChosenParts, Decode, T_sample
from bridge_data.plan.source import EpochsPerShuffle, FieldAccess, Parts, Source
from bridge_data.samples import CrudeSample, Sample
from bridge_data.storage import Location, location
from bridge_data.topology import WorkerConfig


class FactorySettings(TypedDict, total=False):
    """Settings of all factories of a path; see `PathDatasetFactory`."""

    split_part: str
    training: bool
    worker_config: WorkerConfig | None
    shuffle_over_epochs: EpochsPerShuffle
    parallel_shard_iters: int | None
    max_samples_per_sequence: int | None
    subset: SubsetRange | None
    split_config: str | None


class PathDatasetFactory(BaseCoreDatasetFactory[T_sample]):
    """The part `split_part` of the data set at `path`.

    Args:
        shuffle_over_epochs: how many epochs are shuffled together (see `EpochsPerShuffle`).
        subset: a range of the samples.
        split_config: the file that defines the split parts, instead of the usual one.
        part_filter: whether to read a part, by its name; all are read if None.
        worker_config: of a loader of `build()`; `get_train_dataset` and `get_val_dataset` take their own.
        parallel_shard_iters, max_samples_per_sequence: no effect (see `bridge_data.ignored`).

    Raises:
        ConfigError: for wrong settings.
    """

    _always_decoded: ClassVar[bool] = False  # see `Source`

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str = "train",
        training: bool = True,
        worker_config: WorkerConfig | None = None,
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
        self.path = location(path_text("path", path)).absolute()
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

    def load_function(self, decode: Decode | None, subflavors: dict[str, Any]) -> Callable[[Parts], T_sample]:
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
        self, sample_loader: "PathDatasetFactory[Any] | None", field_map: Mapping[str, FieldAccess] | None = None
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
            sample_loader=sample_loader,
            always_decoded=self._always_decoded,
        )
        return self._cut(source)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.path} [{self.split_part}])"
