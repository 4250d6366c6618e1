"""Batches built in shared memory are sent without a copy; memory is reused only when nothing refers to it any more."""

import gc
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from bridge_data.loader.memory.arenas import PrivateArena, SlotArena
from bridge_data.loader.memory.batches import Encoder, decode
from bridge_data.loader.memory.slots import Kept, SlotReader, SlotWriter
from bridge_data.samples import collation

SIZE = 20_000


class Ends:
    """The arena of a worker, and the reader in the trainer."""

    def __init__(self) -> None:
        self.slots = SlotWriter()
        self.arena, self.reader = SlotArena(self.slots), SlotReader(Kept(1 << 30))
        self.copied: list[bool] = []
        place = self.slots.place

        def counted(parts: Any) -> Any:
            self.copied[-1] = True
            return place(parts)

        self.slots.place = counted  # type: ignore[method-assign]

    def pass_on(self, box: list[Any]) -> Any:
        """What arrives of the batch in `box`, out of which it is taken."""
        self.slots.free(self.reader.take_released())
        self.copied.append(False)
        parts = Encoder().encode(box.pop())
        body, payload, descriptors = self.arena.place(parts)
        body = pickle.loads(pickle.dumps(body))
        self.reader.note(body, descriptors)
        return decode(self.reader.open(body, memoryview(b"".join(payload))))


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    with ends.arena.active():
        yield ends


LARGE = (4, 1 << 20)


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
    assert len(ends.slots.maps) < 5


def test_what_the_trainer_keeps_is_never_written(ends: Ends) -> None:
    kept = [ends.pass_on([stacked(number)]) for number in range(20)]
    assert [int(batch[0, -1]) for batch in kept] == list(range(20)) and not any(ends.copied)


def test_what_a_hook_keeps_is_its_own(ends: Ends) -> None:
    kept = []
    for number in range(1, 30):
        kept.append(stacked(number))
        arrived = ends.pass_on([kept[-1][:]])
        kept[-1] += 1000
        assert int(arrived[0, 0]) == number
    assert [int(tensor[0, 0]) for tensor in kept] == [number + 1000 for number in range(1, 30)]
    assert len(ends.slots.maps) < 20, "what is kept all the time is no longer built in slots"


def test_several_batches_may_be_built_before_the_first_is_sent(ends: Ends) -> None:
    for start in (1, 11, 21, 31):
        waiting = [stacked(start + number) for number in range(3)]
        arrived = []
        while waiting:
            arrived.append(ends.pass_on([waiting.pop(0)]))
        assert [int(batch[0, 5]) for batch in arrived] == [start, start + 1, start + 2]


def test_memory_of_a_batch_that_is_not_sent_is_used_again(ends: Ends) -> None:
    for number in range(30):
        stacked(number)
    gc.collect()
    assert int(ends.pass_on([stacked(7)])[1, 1]) == -7
    assert len(ends.slots.maps) == 1


def test_samples_that_wait_for_long_keep_few_slots(ends: Ends) -> None:
    waiting = [stacked(number, size=SIZE + 10_000 * number) for number in range(12)]
    assert len(ends.slots.maps) == 4
    assert [int(tensor[0, 9]) for tensor in waiting] == list(range(12))
    assert int(ends.pass_on([stacked(5)])[0, 0]) == 5
    waiting.clear()
    assert int(ends.pass_on([stacked(6)])[0, 0]) == 6 and not ends.copied[-1]


def test_a_small_part_of_what_was_built_does_not_keep_the_rest(ends: Ends) -> None:
    whole = stacked(3, size=1_000_000)
    arrived = ends.pass_on([whole[0, :50_000]])
    assert ends.copied == [True] and int(arrived.sum()) == 150_000


@pytest.mark.processes
def test_batches_that_grow_and_those_with_gradients_arrive(ends: Ends) -> None:
    for size in range(SIZE, 20 * SIZE, SIZE):
        batch = ends.pass_on([{"a": stacked(1, size), "b": stacked(2, size)}])
        assert int(batch["a"][0].sum()) == size and int(batch["b"][0].sum()) == 2 * size
    trained = torch.ones(SIZE, requires_grad=True)
    assert collation.batch_stack([trained, trained]).requires_grad
    assert ends.pass_on([collation.batch_pad_stack([torch.ones(SIZE), torch.ones(2 * SIZE)])]).sum() == 3 * SIZE


def test_one_batch_that_was_far_larger_does_not_enlarge_those_after_it(ends: Ends) -> None:
    ends.pass_on([stacked(1, 100 * SIZE)])
    for number in range(30):
        ends.pass_on([stacked(number)])
    assert ends.arena._batch_bytes < 4 * 8 * SIZE * 2


def test_small_tensors_and_other_threads_have_memory_of_their_own(ends: Ends) -> None:
    assert ends.arena.allocate((10,), torch.int64) is None
    assert ends.arena.allocate((0, 10_000), torch.int64) is None
    assert ends.pass_on([collation.batch_stack([torch.arange(4)] * 2)]).tolist() == [[0, 1, 2, 3]] * 2
    assert not ends.slots.maps


@pytest.mark.processes
def test_private_memory_is_used_again_when_nothing_looks_at_it() -> None:
    arena = PrivateArena()
    first = arena.allocate(LARGE, torch.uint8)
    assert first is not None
    address, view = first.data_ptr(), first[1:3].numpy()
    del first
    gc.collect()
    second = arena.allocate(LARGE, torch.uint8)
    assert second is not None and second.data_ptr() != address
    view[...] = 7
    del view
    gc.collect()
    third = arena.allocate(LARGE, torch.uint8)
    assert third is not None and third.data_ptr() == address


def test_kept_tensors_keep_their_values() -> None:
    arena = PrivateArena()
    kept = []
    for number in range(12):
        tensor = arena.allocate(LARGE, torch.uint8)
        assert tensor is not None
        kept.append(tensor.fill_(number))
    assert [int(tensor.min()) for tensor in kept] == [int(tensor.max()) for tensor in kept] == list(range(12))
    kept.clear()
    gc.collect()
    assert len(arena._spare) == 4


def test_small_private_tensors_are_left_to_torch() -> None:
    assert PrivateArena().allocate((10, 10), torch.float32) is None


def test_pieces_grow_with_what_is_asked_for() -> None:
    arena = PrivateArena()
    for count in (1 << 20, 1 << 23, 1 << 20):
        tensor = arena.allocate((count,), torch.float32)
        assert tensor is not None and tensor.shape == (count,)
        tensor.fill_(1)
