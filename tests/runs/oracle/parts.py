"""Runs whose batches say their keys, as several ranks and in several legs."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bridge_data import DefaultTaskEncoder, SkipSample, WorkerConfig, get_savable_loader, get_train_dataset, stateless
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.order.state import LoaderState, merge_states
from bridge_data.runs.run_order import RunOrder
from tests.prepared import write_blend, write_texts


class Filtering(DefaultTaskEncoder):
    """Leaves out every seventh sample."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if int(sample.text.split()[0]) % 7 == 0:
            raise SkipSample
        return sample


class Packing(Filtering):
    """Also packs pairs and triples."""

    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        packs, at = [], 0
        while at < len(samples):
            size = 2 + int(samples[at].text) % 2
            packs.append(samples[at : at + size])
            at += size
        return packs

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return dataclasses.replace(samples[0], __key__="|".join(sample.__key__ for sample in samples))


@dataclasses.dataclass
class Run:
    """A run in legs: `keys` and `ranks` by number of the micro-batch, the states that it saved, and `num_ranks` of the
    leg that saved each, by the micro-batches before it."""

    settings: dict[str, Any]
    keys: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    states: list[LoaderState] = dataclasses.field(default_factory=list)
    ranks: dict[int, int] = dataclasses.field(default_factory=dict)
    num_ranks: dict[int, int] = dataclasses.field(default_factory=dict)
    path: Path | None = None

    def dataset(self, world_size: int, rank: int = 0, num_lanes: int = 0) -> LaneDataset:
        """The data set of one rank."""
        config = WorkerConfig(rank, world_size, 0, num_lanes=num_lanes)
        assert self.path is not None
        return get_train_dataset(self.path, worker_config=config, **self.settings)

    def leg(
        self, path: Path, world_size: int, num_steps: int, *, num_lanes: int = 0, lost: int = 0, resaves: bool = False
    ) -> None:
        """Go on from the last state on some ranks for so many batches each, and save; then `lost` more, before a
        kill. With `resaves`, the last state is saved again first, in the place of the old one."""
        self.path = path
        loaders = [get_savable_loader(self.dataset(world_size, rank, num_lanes)) for rank in range(world_size)]
        first = 0
        if self.states:
            for loader in loaders:
                loader.restore_state_rank(self.states[-1].to_dict(), strict=False)
            first = self.states[-1].num_handed_out
            if resaves:
                self.states[-1] = saved(loaders)
        streams = [iter(loader) for loader in loaders]
        for step in range(num_steps + lost):
            if step == num_steps:
                self.states.append(saved(loaders))
            for rank, stream in enumerate(streams):
                batch = next(stream)
                if step < num_steps:
                    number = first + step * world_size + (rank - first) % world_size
                    self.keys[number] = [key for keys in batch.__key__ for key in keys.split("|")]
                    self.ranks[number] = rank
        if not lost:
            self.states.append(saved(loaders))
        self.num_ranks[self.states[-1].num_handed_out] = world_size


def saved(loaders: Sequence[Any]) -> LoaderState:
    """The state of all ranks."""
    return LoaderState.from_dict(merge_states([loader.save_state_rank() for loader in loaders]))


SETTINGS: dict[str, Any] = {"batch_size": 3, "shuffle_buffer_size": 40, "max_samples_per_sequence": 10}

LEGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "skips": {"task_encoder": Filtering()},
    "packing": {"task_encoder": Packing(), "packing_buffer_size": 20},
}
"""Kinds of runs, and the settings of each."""


def write_two(folder: Path) -> Path:
    """A metadataset of data sets a and b, of unequal sizes and weights."""
    write_texts(folder / "a", 230)
    write_texts(folder / "b", 77, per_shard=13)
    return write_blend(folder / "blend.yaml", {"a": 3, "b": 1})


def check(run: Run, order: RunOrder, numbers: Iterable[int]) -> None:
    """Check that these micro-batches of the run are told as they were."""
    for number in numbers:
        assert [sample.key for sample in order.micro_batch(number)] == run.keys[number], number


def numbers_with(run: Run, key: str) -> list[int]:
    """The micro-batches of the run that have this key, once for each time."""
    return [number for number, keys in sorted(run.keys.items()) for one in keys if one == key]
