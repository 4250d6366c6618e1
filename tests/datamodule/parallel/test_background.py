import threading
from typing import Any

import pytest
import torch

from bridge_data import WorkerError
from bridge_data.datamodule.parallel.background import (
    BATCH,
    ERROR,
    Arrival,
    Arrivals,
    filled,
    from_bytes,
    to_parts,
)


def batch(number: Any) -> Arrival:
    return Arrival(BATCH, number, {"at": number})


def test_after_a_restore_nothing_comes_that_was_read_before_it() -> None:
    arrivals = Arrivals(None)
    arrivals.put(0, batch(1))
    arrivals.begin({"at": 7})
    arrivals.put(0, batch(2))  # read before, arrives after
    arrivals.put(1, batch(8))
    assert (arrivals.start, arrivals.get()) == ({"at": 7}, batch(8))


def test_what_is_of_a_later_restore_waits_for_it() -> None:
    arrivals = Arrivals(None)
    arrivals.put(1, batch(8))  # from a rank that has restored already
    arrivals.begin({"at": 7})
    assert arrivals.get() == batch(8)


def test_a_thread_waits_for_a_free_slot_a_restore_or_the_end() -> None:
    for release in (Arrivals.get, lambda arrivals: arrivals.begin({}), Arrivals.close):
        arrivals = Arrivals(1)
        arrivals.put(0, batch(1))
        thread = threading.Thread(target=arrivals.put, args=(0, batch(2)))
        thread.start()
        release(arrivals)
        thread.join(10)
        assert not thread.is_alive()


def test_an_error_comes_again_until_a_restore() -> None:
    arrivals: Any = Arrivals(None)
    error = Arrival(ERROR, ValueError("bad"), None)
    arrivals.put(0, error)
    assert arrivals.get() is arrivals.get() is error
    arrivals.begin({})
    arrivals.put(1, batch(1))
    assert arrivals.get() == batch(1)


def test_where_nothing_will_come_any_more_the_reason_is_raised_after_the_rest() -> None:
    arrivals = Arrivals(None)
    arrivals.put(0, batch(1))
    arrivals.fail(ValueError("gone"))
    assert arrivals.get() == batch(1)
    with pytest.raises(ValueError, match="gone"):
        arrivals.get()


def travelled(value: Any) -> Any:
    return from_bytes(filled(to_parts(value)))


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(WorkerError, match=r"<function .*<lambda>"):
        to_parts(batch(lambda: None))


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.bfloat16, torch.float64, torch.int64, torch.complex64])
def test_tensors_come_back_bit_by_bit_and_aligned(dtype: torch.dtype) -> None:
    sent = [torch.arange(number).to(dtype) for number in (3, 0, 17, 1)]
    got = travelled({"tensors": sent, "view": sent[2].reshape(1, 17).T, "names": ["a", None]})
    for before, after in zip(sent, got["tensors"], strict=True):
        assert after.dtype == dtype and torch.equal(before, after)
        assert after.numel() == 0 or after.data_ptr() % 64 == 0
    assert torch.equal(got["view"], sent[2].reshape(17, 1))
    assert got["names"] == ["a", None]


def test_what_came_may_be_written_to() -> None:
    got = travelled(torch.zeros(4))
    got += 1
    assert got.tolist() == [1, 1, 1, 1]
