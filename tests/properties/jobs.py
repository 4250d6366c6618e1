"""Jobs for property tests: an encoder with every feature of the pipeline, and whole jobs of several ranks in one
process."""

import json
from collections.abc import Iterator
from typing import Any

from bridge_data import DefaultTaskEncoder, LaneDataset, SkipSample, TextSample, stateless
from bridge_data.lanes.lane import Lane
from bridge_data.lanes.maker import Item
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
        self.states = [d.restored_state(plain) if plain else d.new_state() for d in datasets]
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


def items_in(lane: Lane) -> Iterator[Item]:
    """All that a lane holds, wherever in it."""
    yield from lane.pending.map(lambda item: item, lambda unit: [*unit.items]).items()
