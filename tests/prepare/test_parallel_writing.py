"""A function makes samples of items in several processes: the same files for any number of them, and after any
interruption."""

import contextlib
import os
import random
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge_data.errors import ConfigError, DatasetError, SampleError, SkipSample
from bridge_data.prepare.parallel_writing import write
from tests.prepare.killed import in_child
from tests.prepare.test_shard_writer import SPLIT, contents, tars, text_sample

OPTIONS: dict[str, Any] = {"split": SPLIT, "max_samples": 9}


def make(item: int) -> Any:
    """A sample; three of every seventh item, none of some."""
    if item % 11 == 5:
        raise SkipSample
    if item % 11 == 6:
        return None
    if item % 7 == 0:
        return ({"__key__": f"{item:05d}_{part}", "txt": f"{item} {part}"} for part in range(3))
    return {"__key__": f"{item:05d}", "json": {"item": item}}


def write_items(folder: Path, **settings: Any) -> int:
    return write(make, folder, items=range(100), **OPTIONS | settings)


@pytest.mark.processes
def test_any_number_of_processes_writes_the_same_files(tmp_path: Path) -> None:
    assert write_items(tmp_path / "1") == 108
    for num_workers in (2, 3):
        assert write_items(tmp_path / str(num_workers), num_workers=num_workers) == 108
        assert tars(tmp_path / "1") == tars(tmp_path / str(num_workers))


def test_samples_without_a_function_with_a_bar_if_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    samples = [{"__key__": str(number), "txt": str(number)} for number in range(20)]
    for name, progress in (("shown", True), ("silent", False)):
        assert write(iter(samples), tmp_path / name, progress=progress) == 20
        assert ("writing: " in capfd.readouterr().err) == progress
    expected = [(str(number), {"txt": str(number).encode()}) for number in range(20)]
    assert contents(tmp_path / "shown")["train"] == expected


def test_ranks_take_every_so_manieth_item(tmp_path: Path) -> None:
    for rank in range(3):
        write_items(tmp_path / "3", rank=rank, world_size=3)
    write_items(tmp_path / "1")
    assert {part: sorted(samples, key=str) for part, samples in contents(tmp_path / "3").items()} == {
        part: sorted(samples, key=str) for part, samples in contents(tmp_path / "1").items()
    }


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_failure_names_the_item(tmp_path: Path, num_workers: int) -> None:
    def fails(item: str) -> dict[str, Any]:
        return {"__key__": item, "txt": "a" if item != "item 17" else 1 // 0}

    items = (f"item {number}" for number in range(40))
    with pytest.raises(SampleError, match=r"^item 17, 'item 17': ZeroDivisionError") as caught:
        write(fails, tmp_path, items=items, num_workers=num_workers, max_samples=3)
    assert "in fails" in caught.value.__notes__[0]
    assert len(tars(tmp_path)) == 5 and not (tmp_path / ".nv-meta").exists()


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


def fail(item: Any) -> None:
    raise item


@pytest.mark.parametrize(
    ("function", "items", "error", "told"),
    [
        (
            lambda item: {"__key__": str(item), "txt": "a" if item == 0 else 7},
            range(3),
            SampleError,
            r"^item 1, 1: ConfigError: sample '1': part 'txt'.* expected text",
        ),
        (
            fail,
            [Mute()],
            SampleError,
            r"item 0, a Mute without a text \(ValueError\): Mute: a Mute without a text \(ValueError\)",
        ),
        (
            lambda item: {"__key__": str(item % 5), "txt": ""},
            range(10),
            DatasetError,
            r"key '0' is written twice: it is in train-000000.tar, .*\(item 5\)",
        ),
    ],
)
def test_what_cannot_be_stored_names_the_item(
    tmp_path: Path, function: Any, items: Any, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        write(function, tmp_path, items=items)


@pytest.mark.parametrize("item", [threading.Lock(), lambda: 1])
def test_items_that_cannot_be_sent_to_processes_are_told(tmp_path: Path, item: Any) -> None:
    def refused() -> None:
        with pytest.raises(ConfigError, match=r"items: cannot be sent to the processes .*; or num_workers=1"):
            write(lambda _: text_sample(0), tmp_path, items=[item], num_workers=2)

    assert in_child(refused) == 0  # a child, as a process with threads makes samples in threads
    assert write(lambda _: text_sample(0), tmp_path, items=[item]) == 1


def test_an_interrupted_call_goes_on_where_it_was(tmp_path: Path) -> None:
    made: list[int] = []

    def counted(item: int, stop_at: int) -> Any:
        if item == stop_at:
            raise KeyboardInterrupt
        made.append(item)
        return make(item)

    write_items(tmp_path / "whole")
    for stop_at in (30, 60, 90, 100):
        before = len(made)
        with contextlib.suppress(KeyboardInterrupt):
            write(partial(counted, stop_at=stop_at), tmp_path / "a", items=range(100), **OPTIONS)
        if stop_at > 30:  # no items but those of shards that were not whole, and those of which no sample was made
            assert len(made) - before < 30 + 9 + 9 + 18
    assert tars(tmp_path / "a") == tars(tmp_path / "whole")


def test_another_item_with_a_key_that_was_stored_before_the_interruption(tmp_path: Path) -> None:
    def interrupted(item: int) -> Any:
        if item == 20:
            raise KeyboardInterrupt
        return {"__key__": str(item), "txt": ""}

    with pytest.raises(KeyboardInterrupt):
        write(interrupted, tmp_path, items=range(30), max_samples=5)
    with pytest.raises(DatasetError, match=r"key '0' is written twice: .* \(item 0\), .* \(item 20\)"):
        write(lambda item: {"__key__": str(item % 20), "txt": ""}, tmp_path, items=range(30), max_samples=5)
    with pytest.raises(ConfigError, match="with num_items=30, here it is 40"):
        write(interrupted, tmp_path, items=range(40), max_samples=5)


def test_a_call_that_has_finished_does_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert write_items(tmp_path) == 108
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert write(lambda item: 1 // 0, tmp_path, items=range(100), **OPTIONS) == 108
    assert "was written by the same call already" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    with pytest.raises(DatasetError, match="is written twice"):
        write_items(tmp_path, max_samples=100)


def timed(folder: Path, seconds: float) -> None:
    """Write, and end this process without a word after a time, as SIGKILL would; its own processes end with it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    write_items(folder, num_workers=2)


@pytest.mark.slow
@pytest.mark.processes
def test_killed_at_20_random_moments(tmp_path: Path) -> None:
    write_items(tmp_path / "whole")
    rng, num_killed, folder = random.Random(0), 0, tmp_path / "0"
    started = time.monotonic()
    write_items(tmp_path / "timed", num_workers=2)
    seconds = time.monotonic() - started
    for _ in range(200):
        status = in_child(partial(timed, folder, rng.uniform(0.01, 1.2) * seconds))
        assert tars(folder).items() <= tars(tmp_path / "whole").items()
        num_killed += status == -signal.SIGALRM
        if status != -signal.SIGALRM:
            assert status == 0 and not (folder / ".writing").exists()
            assert contents(folder) == contents(tmp_path / "whole")
            if num_killed >= 20:
                break
            folder = tmp_path / str(num_killed)
    assert num_killed >= 20


@pytest.mark.parametrize(
    ("source", "items", "message"),
    [
        (make, None, r"give the items"),
        ("photos", None, r"expected samples, or a function"),
        ({"__key__": "a"}, None, r"expected samples, or a function"),
        ([{"__key__": "a"}], [1], r"expected a function of an item"),
        (make, "abc", r"expected a list"),
        (make, 100, r"expected a list"),
    ],
)
def test_sources_that_are_none(tmp_path: Path, source: Any, items: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write(source, tmp_path, items=items)
    assert os.listdir(tmp_path) == []
