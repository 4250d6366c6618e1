"""A join described in Python, where otherwise a metadataset does it.

Enters: factories of the members, the index that `prepare` made of a metadataset with this join, a joiner. Leaves: the
joined `Source`, or a `Plan` of it. The name and the settings are those of Energon.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.ignored import warn_ignored
from bridge_data.plan.factories import BaseCoreDatasetFactory, BaseWebdatasetFactory, T_sample
from bridge_data.plan.join import assemble
from bridge_data.plan.source import Join, Source
from bridge_data.plan.weights import EpochsPerShuffle, check_epochs
from bridge_data.samples import Sample
from bridge_data.shards import ShardSet, Subset, SubsetRange
from bridge_data.shards.join_index import open_join_at
from bridge_data.storage import Location, location

Members = Sequence[BaseWebdatasetFactory[Any]] | Mapping[str, BaseWebdatasetFactory[Any]]


class JoinedWebdatasetFactory(BaseCoreDatasetFactory[T_sample]):
    """Samples of several prepared folders that have the same key, joined; the first says which there are.

    Args:
        inner_datasets: the members; the joiner gets their samples by position, or by the names of a mapping.
        join_index: the index of this join, a file in the `.joins` folder beside a metadataset that has it.
        joiner: the class of the joined samples, whose `from_joined` joins them, or a function that does.
        shuffle_over_epochs: how many epochs are shuffled together (see `bridge_data.plan.weights`).
        subset: a range of the joined samples.
        worker_config, parallel_shard_iters, max_samples_per_sequence: taken without effect (see `bridge_data.ignored`).

    Raises:
        ConfigError: for wrong settings.
    """

    def __init__(
        self,
        inner_datasets: Members,
        *,
        training: bool = True,
        worker_config: Any = None,
        shuffle_over_epochs: EpochsPerShuffle = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: SubsetRange | None = None,
        join_index: str | os.PathLike[str],
        joiner: type[T_sample] | Callable[..., T_sample],
    ) -> None:
        warn_ignored(
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
        self.join_index, self.training, self.subset = location(join_index).absolute(), training, subset
        self.shuffle_over_epochs = check_epochs(shuffle_over_epochs)
        self.subflavors = self.inner_datasets[0].subflavors

    @property
    def paths(self) -> list[Location]:
        """The folders of the members."""
        return [path for member in self.inner_datasets for path in member.paths]

    def source(self) -> Source:
        """The join, opened.

        Raises:
            ConfigError: if the members cannot be joined. DatasetError: if the index is missing, or not of these data.
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
        index = open_join_at(self.join_index, shard_sets)
        joined = Join(members=sources, names=self.inner_dataset_keys, joiner=self._joiner)
        source = assemble(
            joined, shard_sets, index, self._sample_class, f"JoinedWebdatasetFactory of {self.join_index}"
        )
        source = dataclasses.replace(source, epochs_per_shuffle=self.shuffle_over_epochs)
        if self.subset is None:
            return source
        return dataclasses.replace(source, records=Subset(source.records, *self.subset.resolve(source.num_samples)))

    def __str__(self) -> str:
        return f"JoinedWebdatasetFactory({', '.join(map(str, self.inner_datasets))})"
