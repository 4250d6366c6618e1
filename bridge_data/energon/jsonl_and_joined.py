"""Factories in Python of JSONL files, of joins, and of prepared data as their own files describe them.

The names and the settings are those of Energon.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Unpack

from bridge_data.data import Records, ShardSet, SubsetRange
from bridge_data.data.jsonl_file import PART, open_jsonl
from bridge_data.data.plain_data import parse_json
from bridge_data.energon.path_factory import FactorySettings, PathDatasetFactory
from bridge_data.energon.webdatasets import BaseWebdatasetFactory
from bridge_data.errors import ConfigError, SampleError
from bridge_data.extensions import importing
from bridge_data.plan.blending import Plan
from bridge_data.plan.factories import BaseCoreDatasetFactory, T_sample
from bridge_data.plan.opening import DatasetLoader
from bridge_data.plan.source import EpochsPerShuffle, Parts, Source
from bridge_data.samples import CrudeSample, Sample
from bridge_data.storage import Location, location, on_disk
from bridge_data.topology import WorkerConfig

Members = Sequence[BaseWebdatasetFactory[Any]] | Mapping[str, BaseWebdatasetFactory[Any]]


class JsonlSettings(FactorySettings, total=False):
    """Settings of a JSONL file; see `CrudeJsonlDatasetFactory`."""

    part_filter: Callable[[str], bool] | None


class CrudeJsonlDatasetFactory(PathDatasetFactory[CrudeSample]):
    """The part `split_part` of the prepared JSONL file `path`. Each line is the part `json`, as bytes.

    Settings are those of `PathDatasetFactory`; `split_config` is a file next to `path`, `<path>.split.yaml` if None.
    """

    __sample_type__ = CrudeSample
    _always_decoded = True

    @classmethod
    def prepare_dataset(cls, path: str | os.PathLike[str]) -> int:
        """Write the index of the JSONL file `path`, and return its number of lines.

        Raises:
            ConfigError: if there is no such file.
            DatasetError: naming the lines that are damaged.
        """
        from bridge_data.prepare.jsonl_lines import prepare_jsonl  # here: programs that train do not prepare

        return prepare_jsonl(on_disk(location(path))).num_samples

    def load_sample(self, sample: Parts) -> CrudeSample:
        return CrudeSample(sample)

    def _open(self) -> Records:
        return open_jsonl(self.path, self.split_part, split_config=self.split_config)


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """A JSONL file whose lines are decoded, with `subflavors`; the same as giving its path.

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
        """The sample with its line decoded, and with sub-flavors.

        Raises:
            SampleError: if the line is no JSON.
        """
        decoded = {**sample, "__subflavors__": self.subflavors}
        if PART in sample:
            try:
                decoded[PART] = parse_json(sample[PART])
            except ValueError as error:
                raise SampleError(f"{self.path}: sample {sample['__key__']} is no JSON: {error}") from error
        return super().load_sample(decoded)

    def source(self) -> Source:
        is_plain = type(self).load_sample is DefaultCrudeJsonlDatasetFactory.load_sample
        return self._source(None if is_plain else self)


class JoinedWebdatasetFactory(BaseCoreDatasetFactory[T_sample]):
    """Samples of several prepared folders, joined by key; the first folder defines the samples and their order.

    Args:
        inner_datasets: the members; the joiner gets their samples by position, or by the names of a mapping.
        join_index: the index of this join, a file in the `.joins` folder next to a metadataset with this join, or in
            Energon's `.cache` folder.
        joiner: the class of the joined samples, whose `from_joined` joins them, or a function that does.
        shuffle_over_epochs: how many epochs are shuffled together (see `EpochsPerShuffle`).
        subset: a range of the joined samples.
        worker_config: for a loader of `build()`; `get_train_dataset` and `get_val_dataset` take their own.
        parallel_shard_iters, max_samples_per_sequence: no effect (see `bridge_data.ignored`).

    Raises:
        ConfigError: for wrong settings.
    """

    def __init__(
        self,
        inner_datasets: Members,
        *,
        training: bool = True,
        worker_config: WorkerConfig | None = None,
        shuffle_over_epochs: EpochsPerShuffle = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: SubsetRange | None = None,
        join_index: str | os.PathLike[str],
        joiner: type[T_sample] | Callable[..., T_sample],
    ) -> None:
        self._set(
            training=training,
            shuffle_over_epochs=shuffle_over_epochs,
            subset=subset,
            worker_config=worker_config,
            parallel_shard_iters=parallel_shard_iters,
            max_samples_per_sequence=max_samples_per_sequence,
        )
        self.inner_dataset_keys: tuple[str, ...] | None = None
        if isinstance(inner_datasets, Mapping):
            self.inner_dataset_keys, inner_datasets = tuple(inner_datasets), tuple(inner_datasets.values())
        self.inner_datasets = tuple(inner_datasets)
        if not self.inner_datasets:
            raise ConfigError("JoinedWebdatasetFactory: inner_datasets: expected data sets to join, got none")
        self._sample_class: type[Sample]
        self._joiner: Callable[..., Any]
        if isinstance(joiner, type) and issubclass(joiner, Sample):
            self._sample_class, self._joiner = joiner, joiner.from_joined
        elif not isinstance(joiner, type) and callable(joiner):
            self._sample_class, self._joiner = Sample, joiner
        else:
            raise ConfigError(
                f"JoinedWebdatasetFactory: joiner: expected a class derived from Sample, or a function, got {joiner!r}"
            )
        self.join_index = location(join_index).absolute()
        self.subflavors = self.inner_datasets[0].subflavors

    @property
    def paths(self) -> list[Location]:
        """The folders of the members."""
        return [path for member in self.inner_datasets for path in member.paths]

    def source(self) -> Source:
        """The join, opened.

        Raises:
            ConfigError: if the members cannot be joined.
            DatasetError: if the index is missing, or for other data.
        """
        sources = tuple(member.source() for member in self.inner_datasets)
        shard_sets = []
        for source in sources:
            if not isinstance(source.records, ShardSet):
                raise ConfigError(
                    f"{source.name}: a member of a join is a whole split part of a prepared folder of tars; give the "
                    "subset to the join"
                )
            shard_sets.append(source.records)
        with importing("JoinedWebdatasetFactory", "bridge_data.plugins.joins"):  # here: other factories need no plug-in
            from bridge_data.plugins.joins.join import assemble
            from bridge_data.plugins.joins.joined_reader import Join
            from bridge_data.plugins.joins.joins import open_join_at
        index = open_join_at(self.join_index, shard_sets)
        joined = Join(members=sources, names=self.inner_dataset_keys, joiner=self._joiner)
        config_file = f"JoinedWebdatasetFactory of {self.join_index}"
        return self._cut(assemble(joined, shard_sets, index, self._sample_class, config_file))

    def __str__(self) -> str:
        return f"JoinedWebdatasetFactory({', '.join(map(str, self.inner_datasets))})"


class _FromConfig(BaseCoreDatasetFactory[Any]):
    """A prepared folder or JSONL file as a factory."""

    def __init__(self, loader: DatasetLoader, training: bool, split_part: str) -> None:
        self._loader, self.training, self._split_part = loader, training, split_part
        self.subflavors = loader.subflavors

    def source(self) -> Source:
        return self.build().sources[0]

    def build(self) -> Plan:
        return self._loader.get_datasets(
            training=self.training, split_part=self._split_part, worker_config=self.worker_config
        )


def get_dataset_from_config(
    path: str | os.PathLike[str],
    *,
    dataset_config: str | None = None,
    split_config: str | None = None,
    split_part: str | None = None,
    training: bool = True,
    subflavors: Mapping[str, Any] | None = None,
    worker_config: WorkerConfig | None = None,
    sample_type: type[Any] | None = None,
    trusted_modules: Collection[str] = (),
    trust_dataset_code: bool = False,
) -> BaseCoreDatasetFactory[Any]:
    """The prepared folder or JSONL file at `path` as a factory; see `DatasetLoader`.

    Args:
        split_part: the part of its split, `train` if None.
        sample_type: the class that its samples must have.
        worker_config: for a loader of `build()`.

    Raises:
        ConfigError: for wrong settings, or if the samples are of another class.
    """
    loader = DatasetLoader(
        path,
        subflavors=subflavors,
        dataset_config=dataset_config,
        split_config=split_config,
        trusted_modules=trusted_modules,
        trust_dataset_code=trust_dataset_code,
    )
    made = _FromConfig(loader, training, split_part or "train")
    made.worker_config = worker_config
    if sample_type is not None and not issubclass(made.source().sample_class, sample_type):
        raise ConfigError(f"{loader}: has {made.source().sample_class.__name__}, not {sample_type.__name__}")
    return made
