"""A limit, and a fraction of a repetition, count micro-batches that are handed out, also after lanes are resharded."""

import collections
import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from bridge_data import (
    InMemoryDataset,
    LaneDataset,
    SavableDataLoader,
    TextSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    merge_states,
)
from bridge_data.energon import RepeatDataset
from bridge_data.plan import Branch, Plan
from bridge_data.plan.blending import plan_of

Key = tuple[str, int]
"""(text, epoch)."""

STRIDE = 1_000
"""Sample n of source s says n + STRIDE * s."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Data that end."""

    sizes: tuple[int, ...]
    repetitions: tuple[float, ...]
    is_ordered: bool
    chunk: int | None
    batch_size: int
    drop_last: bool
    num_beyond: int | None
    """Micro-batches that are beyond the limit, if full ones counted; None: there is no limit."""

    def plan(self) -> Plan:
        sources = [
            InMemoryDataset(
                [TextSample(__key__=f"{n:04d}", text=str(n + STRIDE * number)) for n in range(size)]
            ).source()
            for number, size in enumerate(self.sizes)
        ]
        pairs = tuple(zip(self.repetitions, sources, strict=True))
        return plan_of(Branch("blend", pairs, epochized=True), training=True, what="blend")

    @property
    def limit(self) -> int | None:
        """Micro-batches of the job."""
        return None if self.num_beyond is None else max(1, self.num_samples // self.batch_size - self.num_beyond)

    @property
    def num_samples(self) -> int:
        """Those of a pass without a limit."""
        if self.is_ordered:
            return sum(self.sizes)
        pairs = zip(self.sizes, self.repetitions, strict=True)
        return sum(math.floor(size * Fraction(str(times)) + Fraction(1, 2)) for size, times in pairs)

    def dataset(self, rank: int, world_size: int, num_lanes: int) -> LaneDataset:
        common: dict[str, Any] = {"batch_size": self.batch_size, "batch_drop_last": self.drop_last}
        common["worker_config"] = WorkerConfig(rank, world_size, 0, num_lanes=num_lanes)
        if self.is_ordered:
            return get_val_dataset(self.plan(), limit=self.limit, **common)
        dataset = get_train_dataset(
            self.plan(), shuffle_buffer_size=10, max_samples_per_sequence=self.chunk, repeat=False, **common
        )
        return dataset if self.limit is None else dataset.first(self.limit)


REPETITIONS = st.sampled_from([1, 1, 2, 0.5, 1.3])

CASES = st.integers(1, 2).flatmap(
    lambda num_sources: st.builds(
        Case,
        sizes=st.tuples(*[st.integers(1, 60)] * num_sources),
        repetitions=st.tuples(*[REPETITIONS] * num_sources),
        is_ordered=st.booleans(),
        chunk=st.sampled_from([None, 1, 7]),
        batch_size=st.integers(1, 4),
        drop_last=st.sampled_from([False, False, True]),
        num_beyond=st.integers(-4, 6),
    )
)


def opened(case: Case, world_size: int, num_lanes: int, state: Any = None) -> list[SavableDataLoader]:
    """All ranks of a job."""
    loaders = [get_savable_loader(case.dataset(rank, world_size, num_lanes)) for rank in range(world_size)]
    for loader in loaders if state is not None else ():
        loader.restore_state_rank(json.loads(json.dumps(state)))
    return loaders


def taken(loaders: Sequence[SavableDataLoader], steps: int | None = None) -> list[list[Key]]:
    """The micro-batches of all ranks, in so many steps or to the end of the pass."""
    of_ranks = [[keys_of(batch) for batch in itertools.islice(loader, steps)] for loader in loaders]
    return [batch for step in itertools.zip_longest(*of_ranks) for batch in step if batch is not None]


def keys_of(batch: Any) -> list[Key]:
    return [(text, epoch) for text, (_, epoch, *_) in zip(batch.text, batch.__restore_key__[3:], strict=True)]


@settings(max_examples=60)
@given(
    case=CASES,
    layouts=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=3),
)
def test_a_pass_hands_out_as_much_as_its_limit_as_long_as_there_are_data(
    case: Case, layouts: list[tuple[int, int, int]]
) -> None:
    """Whatever the lanes, also if lanes are resharded on the way; and the same on any ranks with these lanes."""
    state, found, num_lanes = None, [], 1
    for world_size, of_rank, steps in layouts:
        num_lanes = world_size * of_rank
        loaders = opened(case, world_size, num_lanes, state)
        if found and loaders[0].save_state_rank()["micro_batch_index"] == 0:
            break  # it was over
        found += taken(loaders, steps)
        state = merge_states([loader.save_state_rank() for loader in loaders])
    rest, alone = [], opened(case, 1, num_lanes, state)
    if not found or alone[0].save_state_rank()["micro_batch_index"]:
        rest = taken(alone)
        assert sorted(rest) == sorted(taken(opened(case, num_lanes, num_lanes, state)))
    found += rest
    keys = collections.Counter(itertools.chain.from_iterable(found))
    assert case.limit is not None and len(found) <= case.limit and max(keys.values(), default=1) == 1
    if len(found) < case.limit:
        event("all of the data")
        num_dropped = case.num_samples - len(keys)
        assert 0 <= num_dropped <= (case.batch_size - 1) * num_lanes * case.drop_last


@given(
    case=CASES.map(lambda case: dataclasses.replace(case, num_beyond=None)),
    ranks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    repeats=st.sampled_from([0.3, 0.5, 1.9, 2.5]),
)
def test_a_fraction_of_the_last_repetition_is_handed_out_whatever_the_lanes_have(
    case: Case, ranks: tuple[int, int], repeats: float
) -> None:
    world_size, num_lanes = ranks[0], ranks[0] * ranks[1]
    datasets = [case.dataset(rank, world_size, num_lanes) for rank in range(world_size)]
    whole = sum(len(get_savable_loader(dataset)) for dataset in datasets)
    size, exact = case.batch_size, Fraction(str(repeats))
    of_last = exact % 1 * (case.num_samples // size if case.drop_last else -(-case.num_samples // size)) // 1
    counted = []
    for dataset in datasets:
        loader = get_savable_loader(RepeatDataset(dataset, repeats=repeats))
        counted.append([sum(1 for _ in loader) for _ in range(2)])
        assert counted[-1] == [len(loader)] * 2
    assert sum(first for first, _ in counted) == whole * int(repeats) + min(of_last, whole)
