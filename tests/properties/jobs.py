"""Jobs for property tests: an encoder with every feature of the pipeline, and whole jobs of several ranks in one
process."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridge_data import DefaultTaskEncoder, LaneDataset, SkipSample, TextSample, get_savable_loader, stateless
from bridge_data.lanes.lane import Lane
from bridge_data.lanes.units import Item
from bridge_data.loader.checkpoint import load_states, save_states
from bridge_data.order.pending import Pending
from bridge_data.order.state import LoaderState
from bridge_data.samples import edataclass

Key = tuple[str, int, int, int]
"""(source, epoch, index, part): what is never emitted twice."""


@edataclass
class Packed:
    """A pack: the keys of its members, and their total length."""

    keys: list[Key]
    length: int


def number_of(sample: TextSample) -> int:
    return int(sample.text)


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Skips every `skip_every`th sample, makes `num_parts` of every fifth, packs to `capacity`, groups by `num_groups`,
    and emits every micro-batch of three in two."""

    def __init__(self, *, skip_every: int = 0, num_parts: int = 1, capacity: int = 20, num_groups: int = 1) -> None:
        super().__init__()
        self.skip_every, self.num_parts, self.capacity, self.num_groups = skip_every, num_parts, capacity, num_groups

    @stateless
    def encode_sample(self, sample: TextSample) -> Any:
        if self.skip_every and number_of(sample) % self.skip_every == 1:
            raise SkipSample
        if self.num_parts > 1 and number_of(sample) % 5 == 2:
            return self._parts(sample)
        return sample

    def _parts(self, sample: TextSample) -> Iterator[TextSample]:
        for _ in range(self.num_parts):
            yield TextSample.derive_from(sample, text=sample.text)

    def select_samples_to_pack(self, samples: list[TextSample]) -> list[list[TextSample]]:
        """First fit; the emptiest pack is left for the next buffer."""
        packs: list[list[TextSample]] = []
        for sample in sorted(samples, key=length_of, reverse=True):
            for pack in packs:
                if sum(map(length_of, pack)) + length_of(sample) <= self.capacity:
                    pack.append(sample)
                    break
            else:
                packs.append([sample])
        return packs if len(packs) == 1 else packs[:-1]

    @stateless
    def pack_selected_samples(self, samples: list[TextSample]) -> Packed:
        return Packed(keys=[key_of(sample) for sample in samples], length=sum(map(length_of, samples)))

    @stateless
    def batch(self, samples: list[Any]) -> list[list[Key]]:
        return [sample.keys if isinstance(sample, Packed) else [key_of(sample)] for sample in samples]


class GroupingEncoder(Encoder):
    """As `Encoder`, with buckets of different batch sizes."""

    @stateless
    def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
        group = (sample.length if isinstance(sample, Packed) else number_of(sample)) % self.num_groups
        return ("group", group), group + 1 if group else None


def length_of(sample: TextSample) -> int:
    return 1 + number_of(sample) * 7 % 13


def key_of(sample: TextSample) -> Key:
    source, epoch, index, part = sample.__restore_key__
    return str(source), int(epoch), int(index), int(part)


class Job:
    """All ranks of a job: each runs its own lanes from its own share of the state."""

    def __init__(self, datasets: list[LaneDataset], saved: dict[str, Any] | None = None) -> None:
        self.datasets = datasets
        plain = json.loads(json.dumps(saved)) if saved else None
        self.states = [d.check_state(plain) if plain else d.new_state() for d in datasets]
        self.lanes: list[dict[int, Lane]] = [
            {lane: dataset.lane(lane, state) for lane in state.lanes}
            for dataset, state in zip(datasets, self.states, strict=True)
        ]
        self.slot = self.states[0].micro_batch_index
        self.skipped = 0

    @property
    def num_lanes(self) -> int:
        return self.states[0].num_lanes

    def step(self) -> list[Any]:
        """One micro-batch of every rank, in slot order; None of a lane that has ended."""
        world_size = len(self.datasets)
        batches = []
        for slot in range(self.slot, self.slot + world_size):
            rank, lane = slot % world_size, slot % self.num_lanes
            try:
                made = self.lanes[rank][lane].next()
            except StopIteration:
                batches.append(None)
                continue
            self.states[rank].lanes[lane] = made.state
            self.skipped += sum(made.skipped.values())
            batches.append(made.batch)
        self.slot += world_size
        return batches

    def save(self) -> list[dict[str, Any]]:
        """The state of every rank."""
        for state in self.states:
            state.micro_batch_index = self.slot
        return [LoaderState.to_dict(state) for state in self.states]


class LoaderJob:
    """All ranks of a job through the public surface: loaders, and checkpoint folders on disk."""

    def __init__(self, datasets: list[LaneDataset], folder: Path | None = None) -> None:
        self.datasets = datasets
        self.loaders = [get_savable_loader(dataset) for dataset in datasets]
        self.next_pass_has_begun = False
        """Whether finite data was over, so that what comes is that of the next pass."""
        if folder is not None:
            saved = load_states(folder)
            for loader in self.loaders:
                loader.restore_state_rank(saved)
            self.next_pass_has_begun = self._slot(0) == 0 < saved["micro_batch_index"]
        self._streams = [iter(loader) for loader in self.loaders]
        self._start = self._taken()

    def step(self) -> list[Any]:
        """One micro-batch of every rank; None of a rank whose data has ended."""
        batches = []
        for rank, stream in enumerate(self._streams):
            slot = self._slot(rank)
            batch = next(stream, None)
            self.next_pass_has_begun |= self._slot(rank) < slot or (slot == self._slot(rank) and batch is not None)
            batches.append(None if self.next_pass_has_begun else batch)
        return batches

    def _slot(self, rank: int) -> int:
        return int(self.loaders[rank].save_state_rank()["micro_batch_index"])

    def save(self, folder: Path, step: int) -> None:
        states = [loader.save_state_rank() for loader in self.loaders]
        save_states(folder, states, step=step, world_size=len(states))

    def accounted(self) -> tuple[int, int]:
        """(samples drawn, samples left out or pending) since this job began."""
        draws, pending = (now - before for now, before in zip(self._taken(), self._start, strict=True))
        return draws, pending + sum(sum(loader.skipped.values()) for loader in self.loaders)

    def pending(self) -> set[Key]:
        """The samples that are drawn and neither out nor left out."""
        keys = set()
        for dataset, loader in zip(self.datasets, self.loaders, strict=True):
            state = dataset.check_state(loader.save_state_rank())
            for number in state.lanes:
                for item in items_in(dataset.lane(number, state)):
                    source, epoch, index, _ = item.ref
                    keys.add((dataset.source_names[source], epoch, index, item.part))
        return keys

    def _taken(self) -> tuple[int, int]:
        lanes = [lane for loader in self.loaders for lane in loader.save_state_rank()["lanes"].values()]
        return sum(lane.get("draws", 0) for lane in lanes), sum(map(num_pending, lanes))


def items_in(lane: Lane) -> Iterator[Item]:
    """All that a lane holds, wherever in it."""
    yield from lane.pending.map(lambda item: item, lambda unit: [*unit.items]).items()


def num_pending(lane: dict[str, Any]) -> int:
    """Samples that a lane has drawn and not emitted."""
    return sum(1 for _ in Pending.from_dict(lane.get("pending", {})).loose())
