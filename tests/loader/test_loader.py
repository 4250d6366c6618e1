import collections
import gc
import itertools
import json
import os
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import bridge_data
from bridge_data.errors import ConfigError, StateError, WorkerError
from bridge_data.loader import SavableDataLoader, get_loader, get_savable_loader
from bridge_data.loader.workers.worker_pool import WorkerPool
from bridge_data.order.extras import Recorder
from bridge_data.order.state import LoaderState, merge_states
from tests.loader.conftest import in_turn
from tests.loader.streams import Streams, config, names, state_after
from tests.waiting import open_files, until

LOADER = Path(bridge_data.__file__).parent / "loader"
LENGTHS = [3, 0, 5, 1, 4, 2]
FINITE = [f"{lane}/{number}" for number in range(5) for lane in range(6) if number < LENGTHS[lane]]


def here(**settings: Any) -> SavableDataLoader:
    """A loader without workers."""
    return get_savable_loader(Streams(config(0), size=4, **settings))


def some(loader: SavableDataLoader, num: int) -> list[str]:
    return names(itertools.islice(loader, num))


@pytest.fixture(scope="module")
def two_workers() -> Iterator[SavableDataLoader]:
    """The finite lanes of `FINITE` on two workers."""
    with get_loader(Streams(config(2), lengths=LENGTHS)) as loader:
        yield loader


def test_options_of_workers_are_told_of_once_by_a_loader_that_has_none(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        get_loader(Streams(config(0)), sample_timeout_s=77, workers_help=False, pin_memory=False).close()
    get_loader(Streams(config(0))).close()
    told = [record.getMessage() for record in caplog.records if "num_workers=0" in record.getMessage()]
    assert len(told) == 1 and "no effect on it: workers_help, sample_timeout_s. " in told[0]


@pytest.mark.processes
def test_workers_give_the_same_stream(loader: SavableDataLoader) -> None:
    reference = here()
    assert some(loader, 100) == some(reference, 100) == in_turn(100)
    assert isinstance(loader._pool, WorkerPool)
    assert loader.skipped == reference.skipped == {"encode_sample": 30}


@pytest.mark.processes
def test_one_spawned_worker_gives_the_same_stream_and_more_than_lanes_warn() -> None:
    dataset = Streams(config(num_workers=3, num_lanes=1))
    with (
        pytest.warns(UserWarning, match=r"num_workers=3 share 1 lane .* as many batches as 1 workers"),
        get_loader(dataset, start_method="spawn") as loader,
    ):
        assert some(loader, 3) == in_turn(3, num_lanes=1)
        assert loader.wait_for_workers()
        assert some(loader, 30) == in_turn(30, num_lanes=1, start=3)
        assert isinstance(loader._pool, WorkerPool) and len(loader._pool._links) == 1


@pytest.mark.processes
@pytest.mark.parametrize("workers", [True, False])
def test_finite_lanes_end_and_can_be_iterated_again(workers: bool, two_workers: SavableDataLoader) -> None:
    loader = two_workers if workers else here(lengths=LENGTHS)
    loader.restore_state_rank(loader.dataset.new_state().to_dict())
    loader.wait_for_workers()
    for _ in range(3):
        iteration = iter(loader)
        assert names(iteration) == FINITE
        assert next(iteration, "over") == "over"
    at_end = loader.save_state_rank()
    other = here(lengths=LENGTHS)
    other.restore_state_rank(at_end)
    assert names(other) == FINITE and names(other) == FINITE, "what was saved at the end begins the next pass"
    loader.restore_state_rank(at_end)
    assert some(loader, 3) == FINITE[:3]


def test_no_virtual_epoch_of_finite_data_is_empty() -> None:
    loader = here(lengths=2, virtual_epoch_length=4)
    epochs = [names(loader) for _ in range(4)]
    assert [len(epoch) for epoch in epochs] == [4, 4, 4, 4]
    assert epochs[0] + epochs[1] + epochs[2] == in_turn(12)


def test_a_virtual_epoch_in_progress_keeps_its_length_on_any_number_of_ranks() -> None:
    def ranks(world_size: int) -> list[SavableDataLoader]:
        made = [
            Streams(config(0, num_lanes=12, rank=rank, world_size=world_size), virtual_epoch_length=5)
            for rank in range(world_size)
        ]
        return [get_loader(dataset) for dataset in made]

    saving = ranks(4)
    for loader, steps in ((loader, steps) for steps in (5, 3) for loader in saving):
        assert len(some(loader, steps)) == steps
    saved = merge_states([loader.save_state_rank() for loader in saving])
    for loader in ranks(6):
        loader.restore_state_rank(saved)
        assert [len(names(loader)) for _ in range(2)] == [2, 5]


@pytest.mark.parametrize("workers", [True, False])
def test_a_finite_stream_is_resumed_at_every_step(workers: bool, two_workers: SavableDataLoader) -> None:
    loader = two_workers if workers else here(lengths=LENGTHS)
    start = loader.dataset.new_state().to_dict()
    loader.wait_for_workers()
    for step in range(len(FINITE)):
        loader.restore_state_rank(start)
        assert some(loader, step) == FINITE[:step]
        saved = json.loads(json.dumps(loader.save_state_rank()))
        other = here(lengths=LENGTHS)
        other.restore_state_rank(saved)
        assert names(other) == FINITE[step:]
        loader.restore_state_rank(saved)
        assert names(loader) == FINITE[step:]


@pytest.mark.parametrize("workers", [True, False])
def test_lanes_that_stand_rounds_apart_go_on_in_the_order_of_their_slots(
    workers: bool, two_workers: SavableDataLoader
) -> None:
    """As after a save by several ranks of which one was ahead, since some of its lanes had ended."""
    loader = two_workers if workers else here(lengths=LENGTHS)
    loader.wait_for_workers()
    state = loader.dataset.new_state()
    done = [length if lane % 2 else min(length, 1) for lane, length in enumerate(LENGTHS)]
    state.lanes = {lane: state_after(number) for lane, number in enumerate(done)}
    loader.restore_state_rank(state.to_dict())
    left = [(number, lane) for lane, length in enumerate(LENGTHS) for number in range(done[lane], length)]
    assert left
    assert names(loader) == [f"{lane}/{number}" for number, lane in sorted(left)]


def test_an_endless_stream_is_resumed_at_every_step(loader: SavableDataLoader, tmp_path: Path) -> None:
    for step in range(14):
        torch.save(loader.save_state_rank(), tmp_path / "state.pt")
        saved = torch.load(tmp_path / "state.pt", weights_only=True)
        other = here()
        other.restore_state_rank(saved)
        assert some(other, 9) == in_turn(9, start=step)
        assert some(loader, 9) == in_turn(9, start=step)
        loader.restore_state_rank(saved)
        assert some(loader, 1) == in_turn(1, start=step)


def test_a_running_iteration_goes_on_where_it_is_restored(loader: SavableDataLoader) -> None:
    iteration = iter(loader)
    saved = [loader.save_state_rank() for _ in itertools.islice(iteration, 20)]
    loader.restore_state_rank(saved[4])
    assert names(itertools.islice(iteration, 10)) == in_turn(10, start=5)
    loader.restore_state_rank(saved[17])
    assert names(itertools.islice(iteration, 10)) == in_turn(10, start=18)


def test_ranks_share_the_lanes_and_their_merged_states_serve_any_number_of_ranks() -> None:
    def rank_loader(rank: int, world_size: int) -> SavableDataLoader:
        return get_loader(Streams(config(0, 6, rank, world_size), size=4))

    loaders = [rank_loader(rank, 2) for rank in range(2)]
    taken = [some(loader, 9) for loader in loaders]
    assert [name for pair in zip(*taken, strict=True) for name in pair] == in_turn(18)
    merged = merge_states([loader.save_state_rank() for loader in loaders])
    for world_size in (1, 2, 3, 6):
        resumed = [rank_loader(rank, world_size) for rank in range(world_size)]
        for loader in resumed:
            loader.restore_state_rank(merged)
        taken = [some(loader, 4) for loader in resumed]
        assert [name for group in zip(*taken, strict=True) for name in group] == in_turn(4 * world_size, start=18)
    with pytest.raises(StateError, match="lanes"):
        rank_loader(0, 1).restore_state_rank(loaders[0].save_state_rank())


def test_batches_that_the_trainer_keeps_never_change(loader: SavableDataLoader) -> None:
    kept = list(itertools.islice(loader, 12))
    slices = [batch.tokens[100:200].numpy()[::2] for batch in itertools.islice(loader, 12)]
    gc.collect()
    assert some(loader, 200) == in_turn(200, start=24)
    assert names(kept) == in_turn(12)
    firsts = [int(values[0]) - 100 for values in slices]
    assert firsts == [slot % 6 * 1_000_000 + slot // 6 for slot in range(12, 24)]


def test_a_message_lost_to_an_interrupt_is_made_good(loader: SavableDataLoader) -> None:
    assert some(loader, 5) == in_turn(5)
    stolen = [
        link._channel.receive()
        for link in loader._pool._links
        if len(link._queue) < 2  # else it has no credit, and sends nothing
    ]
    assert stolen
    assert some(loader, 40) == in_turn(40, start=5)


class Interrupting:
    """Raises KeyboardInterrupt, as Ctrl-C does, before line number `line` that this thread runs of the loader."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(str(LOADER)):
            return None
        self.left -= event == "line"
        if not self.left:
            sys.settrace(None)
            raise KeyboardInterrupt
        return self


def interrupted_at_every_line(loader: SavableDataLoader, lines: Iterable[int]) -> int:
    """Interrupt the taking of batches once at each of these lines; how often that was."""
    num_interrupts, before = 0, sys.gettrace()
    for line in lines:
        num_taken = loader.snapshot().micro_batch_index
        sys.settrace(Interrupting(line))
        try:
            found = some(loader, 2)
        except KeyboardInterrupt:
            num_interrupts += 1
            found = in_turn(loader.snapshot().micro_batch_index - num_taken, start=num_taken)
        finally:
            sys.settrace(before)
        assert found == in_turn(2, start=num_taken)[: len(found)]
        # What the state says comes next does, and nothing else has moved.
        assert some(loader, 3) == in_turn(3, start=num_taken + len(found))
    return num_interrupts


def test_an_interrupt_at_any_line_loses_nothing_and_nothing_comes_twice() -> None:
    assert interrupted_at_every_line(here(), range(1, 150)) > 100


@pytest.mark.processes
def test_nor_does_one_while_workers_are_asked(loader: SavableDataLoader) -> None:
    some(loader, 1)
    assert interrupted_at_every_line(loader, range(1, 250)) > 50


class Following(Recorder):
    """Sees that the batches it is told of follow each other, from where it was told to begin."""

    def begin(self, state: LoaderState) -> None:
        self.next = state.micro_batch_index

    def note(self, index: int, noted: Any) -> None:
        assert index in (self.next, self.next - 1), "the last one may be told twice"
        self.next = index + 1


def test_nor_does_one_of_a_restore_part_the_batches_from_what_follows_them() -> None:
    loader, num_interrupts = here(), 0
    following = loader._recorders["following"] = Following()
    saved = [loader.save_state_rank() for _ in itertools.islice(loader, 7)]
    for line in range(1, 60):
        before = sys.gettrace()
        sys.settrace(Interrupting(line))
        try:
            loader.restore_state_rank(saved[line % 7])
        except KeyboardInterrupt:
            num_interrupts += 1
        finally:
            sys.settrace(before)
        start = loader.snapshot().micro_batch_index
        assert some(loader, 3) == in_turn(3, start=start)
        assert following.next == start + 3
    assert num_interrupts > 10


@pytest.mark.processes
def test_workers_leave_nothing_behind_but_batches() -> None:
    gc.collect()
    num_descriptors = len(os.listdir("/proc/self/fd"))
    loader = get_loader(Streams(config(2)))
    assert some(loader, 1) == ["0/0"]
    kept = list(itertools.islice(loader, 9))
    state = loader.save_state_rank()
    processes = loader._pool.processes()
    assert len(processes) == 2
    loader.close()
    loader.close()
    assert not any(map(psutil.pid_exists, processes))
    assert loader.save_state_rank() == state and names(kept) == in_turn(9, start=1)
    with pytest.raises(WorkerError, match="closed"):
        next(iter(loader))
    del loader, kept
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= num_descriptors


@pytest.mark.processes
@pytest.mark.parametrize("started", [False, True])
def test_a_loader_that_is_let_go_ends_its_processes_even_while_they_start(started: bool) -> None:
    before = {*psutil.Process().children(recursive=True)}
    loader = get_loader(Streams(config(2)))
    until(lambda: not started or {*psutil.Process().children(recursive=True)} - before)
    del loader
    gc.collect()
    with get_loader(Streams(config(3))) as later:  # whose workers start after those of the other
        assert later.wait_for_workers()
    until(lambda: {*psutil.Process().children(recursive=True)} <= before)


def kinds_of_open_files(pid: int) -> collections.Counter[str]:
    return collections.Counter(name.partition(":")[0] for name in open_files(pid))


def test_workers_keep_to_themselves(loader: SavableDataLoader) -> None:
    some(loader, 10)
    workers = loader._pool.processes()  # not all of the server: those of loaders let go before come and end meanwhile
    assert len(workers) == 3
    for worker in workers:  # which work ahead meanwhile
        until(lambda pid=worker: kinds_of_open_files(pid).keys() <= {"socket", "/memfd", "anon_inode"})
        kinds = kinds_of_open_files(worker)  # its channel, its inbox and those of all; what wakes it to help
        assert kinds["socket"] <= 1 + 1 + len(workers) and kinds["anon_inode"] <= 1
        assert psutil.Process(worker).num_threads() == 1 and psutil.Process(worker).cwd() == os.getcwd()


def test_the_global_state_of_one_rank_needs_no_process_group() -> None:
    loader = here()
    some(loader, 5)
    state = loader.save_state_global()
    assert state == [loader.save_state_rank()]  # a list of the states of the ranks, as Energon's loader gives it
    for given in (state, merge_states(state)):
        other = here()
        other.restore_state_global(given)
        assert some(other, 3) == in_turn(3, start=5)
    with pytest.raises(StateError, match="src_rank"):
        loader.restore_state_global(None)


def test_wrong_use_of_a_loader_is_told() -> None:
    with pytest.raises(TypeError, match=r"a loader is not an iterator: make one, `batches = iter\(loader\)`"):
        next(here())
    assert some(get_loader(Streams(config(0), size=4), worker_config=config(0)), 2) == in_turn(2)
    with pytest.raises(ConfigError, match="num_workers=2, but the dataset was made with num_workers=0"):
        get_loader(Streams(config(0)), worker_config=config(2))
    child = here()
    child._owner += 1  # as a forked child finds it
    with pytest.raises(WorkerError, match="another one in this process"):
        next(iter(child))
