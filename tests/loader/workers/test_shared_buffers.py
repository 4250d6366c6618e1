import gc
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from bridge_data.loader.workers import shared_buffers
from bridge_data.loader.workers.batches import BatchPickler
from bridge_data.loader.workers.shared_buffers import BufferQuota, MappedBuffers, SharedArena, SharedBuffers
from bridge_data.samples import collation
from bridge_data.samples.pickling import from_pieces


class Ends:
    """The arena of a worker, and the reader in the trainer."""

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self.buffers, self.reader = SharedBuffers(num_spare=4), MappedBuffers(BufferQuota(max_bytes))
        self.arena = SharedArena(self.buffers)
        self.used: set[int] = set()
        self.copied: list[bool] = []
        place = self.buffers.place

        def counted(parts: Any) -> Any:
            self.copied[-1] = True
            return place(parts)

        self.buffers.place = counted  # type: ignore[method-assign]

    def pass_on(self, box: list[Any]) -> Any:
        """What arrives of the batch in `box`, out of which it is taken."""
        self.buffers.free(self.reader.take_released())
        self.copied.append(False)
        body, payload, descriptors = self.arena.place(BatchPickler().pieces_of(box.pop()))
        body = pickle.loads(pickle.dumps(body))
        self.reader.note(body, descriptors)
        self.used.add(body.buffer)
        return from_pieces(self.reader.open(body, memoryview(b"".join(payload))))


def test_small_batches_need_no_buffer_and_can_be_written() -> None:
    ends = Ends()
    batch = ends.pass_on([{"tokens": torch.arange(10), "flag": torch.ones(1, dtype=torch.bool), "array": np.ones(3)}])
    batch["tokens"] += 1
    batch["array"] += 1
    assert batch["tokens"].tolist() == list(range(1, 11)) and batch["array"].tolist() == [2, 2, 2]
    assert ends.pass_on(["text alone"]) == "text alone"
    assert ends.used == {-1}


KEPT = {
    "tensor": lambda batch: batch["tensor"],
    "slice": lambda batch: batch["tensor"][5:9],
    "view": lambda batch: batch["tensor"].reshape(100, -1).t()[3],
    "array of a tensor": lambda batch: batch["tensor"].numpy()[7:],
    "storage": lambda batch: batch["tensor"].untyped_storage(),
    "detached": lambda batch: batch["tensor"].detach(),
    "array": lambda batch: batch["array"],
    "slice of an array": lambda batch: batch["array"][::2][1:],
    "tensor of an array": lambda batch: torch.from_numpy(batch["array"])[2:],
    "memoryview": lambda batch: memoryview(batch["array"])[3:],
}


@pytest.mark.processes
@pytest.mark.parametrize("name", KEPT)
def test_a_buffer_is_not_written_as_long_as_anything_looks_at_it(name: str) -> None:
    ends = Ends()
    kept = KEPT[name](ends.pass_on([{"tensor": torch.ones(50_000), "array": np.ones(50_000)}]))
    gc.collect()
    assert ends.reader.take_released() == []
    del kept
    gc.collect()
    assert ends.reader.take_released() == [0]


@pytest.mark.processes
@pytest.mark.parametrize(("max_bytes", "max_buffers"), [(2 << 20, 256), (1 << 30, 5)])
def test_beyond_the_bounds_the_trainer_gets_private_copies_and_buffers_stay_few(
    max_bytes: int, max_buffers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_buffers, "MAX_HELD_BUFFERS", max_buffers)
    ends = Ends(max_bytes)
    kept = [ends.pass_on([torch.full((50_000,), number)]) for number in range(30)]
    assert all((batch.numpy() == number).all() for number, batch in enumerate(kept))
    assert len(ends.used) < 9
    del kept
    gc.collect()
    one = ends.pass_on([torch.ones(50_000)])
    assert ends.reader.take_released() == [] and one.sum() == 50_000


@pytest.mark.processes
def test_the_memory_of_batches_that_were_kept_is_given_back() -> None:
    ends = Ends()
    kept = [ends.pass_on([torch.ones(50_000)]) for _ in range(40)]
    assert len(ends.reader.maps) == 40
    kept.clear()
    for _ in range(60):
        ends.pass_on([torch.ones(50_000)])
    assert len(ends.reader.maps) == len(ends.buffers.maps) < 10


SIZE = 20_000


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    with ends.arena.active():
        yield ends


def stacked(number: int, size: int = SIZE) -> torch.Tensor:
    return collation.batch_stack([torch.full((size,), number), torch.full((size,), -number)])


def padded(number: int) -> torch.Tensor:
    return collation.batch_pad_stack([torch.full((3, SIZE), number), torch.full((5, SIZE - 7), number)])


def joined(number: int) -> torch.Tensor:
    return collation.concat_pad([torch.full((2, SIZE), number), torch.full((3, SIZE - 1), number)])


def test_collated_tensors_travel_uncopied_with_what_else_is_in_the_batch(ends: Ends) -> None:
    for number in range(1, 9):
        batch = ends.pass_on(
            [{"a": stacked(number), "small": torch.arange(3), "b": padded(number), "c": joined(number), "text": "x"}]
        )
        assert batch["a"].tolist() == [[number] * SIZE, [-number] * SIZE]
        assert batch["b"].shape == (2, 5, SIZE) and int(batch["b"].sum()) == number * (3 * SIZE + 5 * (SIZE - 7))
        assert batch["b"][1, :, -7:].abs().sum() == batch["b"][0, 3:].abs().sum() == 0
        assert batch["c"].shape == (5, SIZE) and int(batch["c"].sum()) == number * (5 * SIZE - 3)
        assert (batch["small"].tolist(), batch["text"]) == ([0, 1, 2], "x")
        del batch
    assert ends.copied[2:] == [False] * 6, "it knows by now how large a batch is"
    assert len(ends.buffers.maps) < 5


def test_what_a_hook_keeps_is_its_own(ends: Ends) -> None:
    kept = []
    for number in range(1, 30):
        kept.append(stacked(number))
        arrived = ends.pass_on([kept[-1][:]])
        kept[-1] += 1000
        assert int(arrived[0, 0]) == number
    assert [int(tensor[0, 0]) for tensor in kept] == [number + 1000 for number in range(1, 30)]
    assert len(ends.buffers.maps) < 20, "what is kept all the time is no longer built in buffers"


def test_several_batches_may_be_built_before_the_first_is_sent(ends: Ends) -> None:
    for start in (1, 11, 21, 31):
        waiting = [stacked(start + number) for number in range(3)]
        arrived = []
        while waiting:
            arrived.append(ends.pass_on([waiting.pop(0)]))
        assert [int(batch[0, 5]) for batch in arrived] == [start, start + 1, start + 2]


def test_samples_that_wait_for_long_keep_few_buffers(ends: Ends) -> None:
    waiting = [stacked(number, size=SIZE + 10_000 * number) for number in range(12)]
    assert len(ends.buffers.maps) == 4
    assert [int(tensor[0, 9]) for tensor in waiting] == list(range(12))
    assert int(ends.pass_on([stacked(5)])[0, 0]) == 5
    waiting.clear()
    assert int(ends.pass_on([stacked(6)])[0, 0]) == 6 and not ends.copied[-1]


@pytest.mark.processes
def test_batches_that_grow_and_those_with_gradients_arrive(ends: Ends) -> None:
    for size in range(SIZE, 20 * SIZE, SIZE):
        batch = ends.pass_on([{"a": stacked(1, size), "b": stacked(2, size)}])
        assert int(batch["a"][0].sum()) == size and int(batch["b"][0].sum()) == 2 * size
    trained = torch.ones(SIZE, requires_grad=True)
    assert collation.batch_stack([trained, trained]).requires_grad
    assert ends.pass_on([collation.batch_pad_stack([torch.ones(SIZE), torch.ones(2 * SIZE)])]).sum() == 3 * SIZE


def test_small_tensors_and_other_threads_have_memory_of_their_own(ends: Ends) -> None:
    assert ends.arena.allocate((10,), torch.int64) is None
    assert ends.arena.allocate((0, 10_000), torch.int64) is None
    assert ends.pass_on([collation.batch_stack([torch.arange(4)] * 2)]).tolist() == [[0, 1, 2, 3]] * 2
    assert not ends.buffers.maps


def test_buffers_of_unread_batches_come_back_and_a_huge_batch_is_forgotten(ends: Ends) -> None:
    for _ in range(9):
        ends.buffers.free(ends.reader.take_released())
        ends.copied.append(False)
        body, _, descriptors = ends.buffers.place(BatchPickler().pieces_of(torch.ones(50_000)))
        ends.reader.note(body, descriptors)
        ends.reader.discard(body)  # as after a restore
    assert len(ends.buffers.maps) == 1
    for size in (100 * SIZE, *[SIZE] * 30):
        ends.pass_on([stacked(1, size)])
    assert ends.arena._batch_bytes < 4 * 8 * SIZE * 2
