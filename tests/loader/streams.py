"""A small dataset whose lanes are known in closed form: what lane l yields n-th depends on nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from bridge_data.lanes.lane import Produced
from bridge_data.lanes.maker_wrappers import MakerWrapper
from bridge_data.order import SampleRef
from bridge_data.order.state import Generation, LoaderState, parse_state
from bridge_data.samples import Batch, edataclass
from bridge_data.topology import WorkerConfig

FINGERPRINT = {"sources": [["00", "streams"]], "weights": None, "order": "ordered"}
GEOMETRY = [[0]]


def state_after(num_batches: int) -> dict[str, Any]:
    """The state of a lane after so many batches."""
    return {"draws": num_batches, "cursors": {}, "micro_batches": num_batches}


@edataclass
class StreamBatch(Batch):
    tokens: torch.Tensor
    lengths: np.ndarray
    name: str


def expected(lane: int, number: int, size: int) -> StreamBatch:
    """The batch; `size` 8-byte numbers of its own."""
    tokens = torch.arange(size, dtype=torch.int64) + (lane * 1_000_000 + number)
    return StreamBatch(
        __key__=[f"{lane}/{number}"], tokens=tokens, lengths=np.full(3, number, np.int32), name=f"{lane}/{number}"
    )


class Stream:
    """One lane; `length` None: without end."""

    def __init__(self, dataset: Streams, lane: int, state: dict[str, Any], watch: Any) -> None:
        self._dataset, self._lane, self._watch = dataset, lane, watch
        self._number = state.get("micro_batches", 0)

    def next(self) -> Produced[Any]:
        length = self._dataset.length(self._lane)
        if length is not None and self._number >= length:
            raise StopIteration
        ref = SampleRef(0, 7, self._number)
        if self._watch is not None:
            self._watch(ref)
        if self._dataset.before_sample is not None:
            self._dataset.before_sample(self._lane, ref)
        batch = self._dataset.make(self._lane, self._number, self._dataset.size)
        self._number += 1
        skipped = {"encode_sample": 1} if self._number % 3 == 0 else {}
        return Produced(self._lane, batch, state_after(self._number), skipped)

    def state(self) -> dict[str, Any]:
        return state_after(self._number)

    def take_skipped(self) -> dict[str, int]:
        return {}


class Streams:
    """Lanes of `lengths` (None: without end; a number: all alike; else by lane), batches of `size` numbers."""

    def __init__(
        self,
        worker_config: WorkerConfig,
        *,
        lengths: int | list[int] | None = None,
        size: int = 8_192,
        virtual_epoch_length: int = 0,
        before_sample: Callable[[int, SampleRef], None] | None = None,
        make: Callable[[int, int, int], Any] = expected,
    ) -> None:
        self.worker_config, self.virtual_epoch_length = worker_config, virtual_epoch_length
        self.lengths, self.size, self.before_sample, self.make = lengths, size, before_sample, make
        self.modules: tuple[str, ...] = ()
        self.begins_anew = False
        self.skips = None
        self.extras = ()
        self.has_length = virtual_epoch_length > 0
        self.may_multiply = True

    def __len__(self) -> int:
        return self.virtual_epoch_length

    def length(self, lane: int) -> int | None:
        return self.lengths[lane] if isinstance(self.lengths, list) else self.lengths

    @property
    def passes(self) -> Streams:
        """Its own length."""
        return self

    def note_end(self, state: LoaderState) -> None:
        pass

    def is_repeated_after(self, state: LoaderState, *, even: bool = False) -> bool:
        return False

    def new_state(self, num_lanes: int | None = None) -> LoaderState:
        lanes: dict[int, dict[str, Any]] = {lane: {} for lane in self.worker_config.lanes}
        return LoaderState(FINGERPRINT, [Generation(num_lanes or self.worker_config.num_lanes, GEOMETRY)], 0, lanes)

    def describe(self, ref: SampleRef) -> str:
        return f"(source={ref.source}, epoch={ref.epoch}, index={ref.index})"

    def restored_state(self, data: LoaderState | dict[str, Any], *, strict: bool = True) -> LoaderState:
        state = parse_state(data)
        state.check(FINGERPRINT)
        if state.ended:
            return self.new_state(state.num_lanes)
        return state.of_rank(self.worker_config.rank, self.worker_config.world_size)

    def lane(self, lane: int, state: LoaderState, watch: Any = None, wrappers: Sequence[MakerWrapper] = ()) -> Stream:
        """Its samples take no time: nobody helps."""
        return Stream(self, lane, state.lanes[lane], watch)


def config(num_workers: int, num_lanes: int = 6, rank: int = 0, world_size: int = 1) -> WorkerConfig:
    """The place of a rank."""
    return WorkerConfig(rank=rank, world_size=world_size, num_workers=num_workers, num_lanes=num_lanes)


def names(batches: Any) -> list[str]:
    """Which batches these are, each seen to be what it should be."""
    found = []
    for batch in batches:
        lane, number = map(int, batch.name.split("/"))
        right = expected(lane, number, batch.tokens.numel())
        assert torch.equal(batch.tokens, right.tokens) and np.array_equal(batch.lengths, right.lengths)
        assert batch.__key__ == right.__key__
        found.append(batch.name)
    return found
