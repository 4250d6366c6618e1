import gc
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from bridge_data.loader.memory import slots
from bridge_data.loader.memory.batches import Encoder, decode
from bridge_data.loader.memory.slots import Kept, SlotReader, SlotWriter
from bridge_data.loader.workers.messages import Body


class Ends:
    """A writer and a reader in one process."""

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self.writer, self.reader = SlotWriter(), SlotReader(Kept(max_bytes))
        self.slots: set[int] = set()

    def send(self, value: Any) -> Body:
        self.writer.free(self.reader.take_released())
        body, payload, descriptors = self.writer.place(Encoder().encode(value))
        self.sent = pickle.loads(pickle.dumps(body, protocol=5)), memoryview(b"".join(payload))
        self.reader.note(self.sent[0], descriptors)
        self.slots.add(body.slot)
        return self.sent[0]

    def pass_on(self, value: Any) -> Any:
        self.send(value)
        return decode(self.reader.open(*self.sent))


def test_small_batches_need_no_slot_and_can_be_written() -> None:
    ends = Ends()
    batch = ends.pass_on({"tokens": torch.arange(10), "flag": torch.ones(1, dtype=torch.bool), "array": np.ones(3)})
    batch["tokens"] += 1
    batch["array"] += 1
    assert batch["tokens"].tolist() == list(range(1, 11)) and batch["array"].tolist() == [2, 2, 2]
    assert ends.pass_on("text alone") == "text alone"
    assert ends.slots == {-1}


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
def test_a_slot_is_not_written_as_long_as_anything_looks_at_it(name: str) -> None:
    ends = Ends()
    kept = KEPT[name](ends.pass_on({"tensor": torch.ones(50_000), "array": np.ones(50_000)}))
    gc.collect()
    assert ends.reader.take_released() == []
    del kept
    gc.collect()
    assert ends.reader.take_released() == [0]


def test_slots_are_used_again_once_they_are_let_go() -> None:
    ends = Ends()
    for number in range(50):
        assert int(ends.pass_on(torch.full((50_000,), number))[-1]) == number
    assert ends.slots == {0}


def test_kept_batches_never_change_and_make_new_slots() -> None:
    ends = Ends()
    kept = [ends.pass_on(torch.full((50_000,), number)) for number in range(8)]
    for number in range(50):
        ends.pass_on(torch.full((50_000,), -number))
    assert all((batch.numpy() == number).all() for number, batch in enumerate(kept))
    assert len(ends.slots) == 9


@pytest.mark.processes
@pytest.mark.parametrize(("max_bytes", "max_slots"), [(2 << 20, 256), (1 << 30, 5)])
def test_beyond_the_bounds_the_trainer_gets_private_copies_and_slots_stay_few(
    max_bytes: int, max_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "MAX_KEPT_SLOTS", max_slots)
    ends = Ends(max_bytes)
    kept = [ends.pass_on(torch.full((50_000,), number)) for number in range(30)]
    assert all((batch.numpy() == number).all() for number, batch in enumerate(kept))
    assert len(ends.slots) < 9
    del kept
    gc.collect()
    one = ends.pass_on(torch.ones(50_000))
    assert ends.reader.take_released() == [] and one.sum() == 50_000


@pytest.mark.processes
def test_the_memory_of_batches_that_were_kept_is_given_back() -> None:
    ends = Ends()
    kept = [ends.pass_on(torch.ones(50_000)) for _ in range(40)]
    assert len(ends.reader._maps) == 40
    kept.clear()
    for _ in range(60):
        ends.pass_on(torch.ones(50_000))
    assert len(ends.reader._maps) == len(ends.writer.maps) < 10


def test_growing_batches_replace_slots_that_are_too_small() -> None:
    ends = Ends()
    for size in range(10_000, 400_000, 10_000):
        assert ends.pass_on(torch.ones(size)).numel() == size
    assert len(ends.reader._maps) == len(ends.writer.maps) == 1


def test_a_slot_given_back_unread_is_used_again() -> None:
    ends = Ends()
    for _ in range(5):
        ends.reader.discard(ends.send(torch.ones(50_000)))
    assert ends.slots == {0}


def test_views_outlive_both_ends() -> None:
    ends = Ends()
    tensor = ends.pass_on(torch.arange(50_000))
    del ends
    gc.collect()
    assert torch.equal(tensor, torch.arange(50_000))
