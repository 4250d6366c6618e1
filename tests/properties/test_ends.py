"""Ends of finite data, in the words of the design: a limit is one of the whole job, a state saved at the end of a pass
begins the next one, and ranks that end evenly hand out one order; for any resumes on any numbers of ranks and
lanes."""

import dataclasses
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data import (
    SavableDataLoader,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    merge_states,
)
from tests.prepared import write_texts
from tests.properties.jobs import Encoder

SIZES = (1, 7, 23, 61)

TOPOLOGIES = st.tuples(st.integers(1, 5), st.integers(1, 3))
"""(ranks, lanes of a rank)"""


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            write_texts(Path(folder) / str(size), size, per_shard=10)
        yield Path(folder)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Finite data and what is done to it."""

    size: int
    batch_size: int
    ordered: bool = True
    limit: int | None = None
    packing: int | None = None
    skip_every: int = 0

    def loaders(self, data: Path, world_size: int, num_lanes: int, saved: Any = None) -> list[SavableDataLoader]:
        """Those of all ranks, restored."""
        settings: dict[str, Any] = {
            "batch_size": self.batch_size,
            "packing_buffer_size": self.packing,
            "task_encoder": Encoder(skip_every=self.skip_every),
        }
        shuffling = {"shuffle_buffer_size": 20, "max_samples_per_sequence": 5, "repeat": False}
        made = []
        for rank in range(world_size):
            settings["worker_config"] = WorkerConfig(rank, world_size, 0, num_lanes=num_lanes)
            path = data / str(self.size)
            if self.ordered:
                dataset = get_val_dataset(path, split_part="train", limit=self.limit, **settings)
            else:
                dataset = get_train_dataset(path, **shuffling, **settings)
                dataset = dataset if self.limit is None else dataset.first(self.limit)
            made.append(get_savable_loader(dataset))
            if saved is not None:
                made[-1].restore_state_rank(saved)
        return made


CASES = st.builds(
    Case,
    size=st.sampled_from(SIZES),
    batch_size=st.integers(1, 4),
    ordered=st.booleans(),
    limit=st.none() | st.integers(1, 20),
    packing=st.none() | st.just(6),
    skip_every=st.sampled_from([0, 3, 7]),
)


def taken(loaders: list[SavableDataLoader], steps: int | None = None) -> list[Any]:
    """The batches of `steps` steps, or of all up to the end; within a step, in slot order."""
    first_slot = loaders[0].save_state_rank()["micro_batch_index"]
    streams = [iter(loader) for loader in loaders]
    streams = [streams[(first_slot + turn) % len(streams)] for turn in range(len(streams))]
    batches: list[Any] = []
    while steps is None or steps > 0:
        step = [batch for stream in streams if (batch := next(stream, None)) is not None]
        if not step:
            break
        batches += step
        steps = None if steps is None else steps - 1
    return batches


def merged(loaders: list[SavableDataLoader]) -> dict[str, Any]:
    return merge_states([loader.save_state_rank() for loader in loaders])


@settings(max_examples=25, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    batch_size=st.integers(1, 4),
    limit=st.none() | st.integers(1, 20),
    chain=st.lists(st.tuples(TOPOLOGIES, st.integers(0, 4)), min_size=2, max_size=5),
)
def test_validation_without_filters_has_one_order_and_one_length_through_any_chain_of_topologies(
    data: Path, size: int, batch_size: int, limit: int | None, chain: list[tuple[tuple[int, int], int]]
) -> None:
    case = Case(size=size, batch_size=batch_size, limit=limit)
    expected = taken(case.loaders(data, 1, 1))
    assert len(expected) == min(limit or size, -(-size // batch_size))
    found: list[Any] = []
    saved = None
    for (world_size, lanes_per_rank), steps in chain:
        loaders = case.loaders(data, world_size, world_size * lanes_per_rank, saved)
        found += taken(loaders, steps)
        saved = merged(loaders)
        if len(found) == len(expected):
            break
    else:
        found += taken(case.loaders(data, 1, 2, saved))
    assert found == expected


@settings(max_examples=25, deadline=None)
@given(case=CASES, before=TOPOLOGIES, after=TOPOLOGIES, steps=st.integers(0, 6))
def test_a_limit_is_never_exceeded_and_nothing_comes_twice(
    data: Path, case: Case, before: tuple[int, int], after: tuple[int, int], steps: int
) -> None:
    loaders = case.loaders(data, before[0], before[0] * before[1])
    found = taken(loaders, steps)
    rest = case.loaders(data, after[0], after[0] * after[1], merged(loaders))
    if rest[0].save_state_rank()["micro_batch_index"]:  # else the next pass has begun
        found += taken(rest) if after[0] > 1 else taken_of_pass(rest[0])
    keys = [key for batch in found for unit in batch for key in unit]
    assert len(keys) == len(set(keys))
    assert case.limit is None or len(found) <= case.limit


def taken_of_pass(loader: SavableDataLoader) -> list[Any]:
    """The rest of a pass, which may be nothing: then a lone rank begins the next one at once."""
    slot = loader.save_state_rank()["micro_batch_index"]
    stream = iter(loader)
    batches = list(itertools.islice(stream, 1))
    return [*batches, *stream] if loader.save_state_rank()["micro_batch_index"] > slot else []


@settings(max_examples=25, deadline=None)
@given(
    case=CASES,
    worlds=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4])),
    sees_end=st.booleans(),
    own_states=st.booleans(),
)
def test_what_was_saved_at_the_end_of_a_pass_begins_the_next_one(
    data: Path, case: Case, worlds: tuple[int, int], sees_end: bool, own_states: bool
) -> None:
    before, after = worlds
    case = case if sees_end else dataclasses.replace(case, packing=None, skip_every=0)
    loaders = case.loaders(data, before, 4)
    expected = [taken([loader]) for loader in case.loaders(data, after, 4)]
    for loader in loaders:
        count = len(taken([loader]))
        if not sees_end:
            loader.restore_state_rank(loader.dataset.new_state().to_dict())
            assert len(taken([loader], count)) == count
    again = case.loaders(data, after, 4, merged(loaders))
    if own_states and before == after and sees_end:
        again = case.loaders(data, after, 4)
        for loader, saved in zip(again, loaders, strict=True):
            loader.restore_state_rank(saved.save_state_rank())
    assert [taken([loader]) for loader in again] == expected
    assert [taken([loader]) for loader in again] == expected
