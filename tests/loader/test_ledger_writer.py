"""What a ledger file does to a run: nothing, also where it cannot be written."""

import contextlib
import errno
import fcntl
import io
import json
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data.errors import ConfigError, log_throttle
from bridge_data.order.state import merge_states
from bridge_data.plugins.ledger import ledger_files
from bridge_data.plugins.ledger.ledger_files import RunLedger, ledger_file
from tests.plugins.ledger.test_ledger_files import check, make_loader, run, sums_of
from tests.prepared import write_texts


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("ledger") / "texts", 333)


@pytest.fixture(autouse=True)
def told_anew() -> Iterator[None]:
    log_throttle.after_fork()
    yield
    log_throttle.after_fork()


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Files of this process cannot grow beyond that of rank 0, and 10 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ledger_file(folder, 0).stat().st_size + 10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def steps(loader: Any, count: int) -> dict[str, Any]:
    """The whole state after `count` batches more."""
    for _ in zip(range(count), loader, strict=False):
        pass
    return merge_states([json.loads(json.dumps(loader.save_state_rank()))])


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.message for record in caplog.records if text in record.message]


@pytest.mark.parametrize("fills_at", [0, 20])
def test_a_disk_that_was_full_for_a_while_costs_a_log_line_and_no_record(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, fills_at: int
) -> None:
    with make_loader(data, (0, 1), tmp_path) as loader:
        steps(loader, fills_at)
        with full_disk(tmp_path):
            states = [steps(loader, 10) for _ in range(3)]
        (line,) = told(caplog, "cannot be written")
        assert f"from micro-batch {fills_at} on" in line and "File too large" in line
        whole = ledger_file(tmp_path, 0).stat().st_size
        state = steps(loader, 10)
        assert ledger_file(tmp_path, 0).stat().st_size > whole
        check(tmp_path, state)
    assert len(told(caplog, "can be written again")) == 1
    assert sums_of(states[-1]) == sums_of(run(data, tmp_path.with_name(f"{tmp_path.name}-alone"), 1, fills_at + 30))
    check(tmp_path, run(data, tmp_path, 2, 20, states[1]))


def test_what_is_more_than_may_be_kept_is_lost_and_said_to_be(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_files, "MAX_KEPT_BYTES", 1_000)
    with make_loader(data, (0, 1), tmp_path) as loader:
        steps(loader, 20)
        with full_disk(tmp_path):
            steps(loader, 20)
            assert "LACKS micro-batches 20 to 39 of this rank" in caplog.messages[-1]
        state = steps(loader, 20)
        with full_disk(tmp_path):
            steps(loader, 5)
            loader.close()
    assert "LACKS micro-batches 60 to 64 of this rank" in caplog.messages[-1]
    assert sorted(number for number, _ in RunLedger(tmp_path)) == [*range(20), *range(40, 60)]
    assert sums_of(state) == sums_of(run(data, tmp_path.with_name(f"{tmp_path.name}-alone"), 1, 60))


def test_what_was_kept_is_written_or_lost_before_a_resume(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with make_loader(data, (0, 1), tmp_path) as loader:
        early = steps(loader, 10)
        with full_disk(tmp_path):
            middle = steps(loader, 10)
            steps(loader, 10)
        loader.restore_state_rank(middle)
        check(tmp_path, steps(loader, 5))
        with full_disk(tmp_path):
            steps(loader, 5)
            loader.restore_state_rank(early)
            steps(loader, 1)
        assert any("LACKS micro-batches 25 to 29" in message for message in caplog.messages)
        check(tmp_path, steps(loader, 7))


def test_a_ledger_that_cannot_be_opened_is_refused_before_the_run(data: Path, tmp_path: Path) -> None:
    with make_loader(data, (0, 1), tmp_path), pytest.raises(ConfigError, match="another loader writes this ledger"):
        make_loader(data, (0, 1), tmp_path)
    make_loader(data, (0, 1), tmp_path).close()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written to"):
        make_loader(data, (0, 1), tmp_path / "file" / "ledger")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_and_used(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    check(tmp_path, run(data, tmp_path, 1, 20))
    assert len(told(caplog, "its file system has no locks")) == 1


def test_a_ledger_that_cannot_be_opened_does_not_stop_a_run_that_goes_on(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = run(data, tmp_path, 2, 20)
    kept = ledger_file(tmp_path, 1).rename(tmp_path / "kept")
    ledger_file(tmp_path, 1).mkdir()  # a folder cannot be written, nor by root
    with make_loader(data, (1, 2), tmp_path) as loader:
        loader.restore_state_rank(saved)
        for _ in zip(range(5), loader, strict=False):
            pass
        loader.save_state_rank()
        (line,) = told(caplog, "cannot be written")
        assert "Is a directory" in line
        ledger_file(tmp_path, 1).rmdir()
        kept.rename(ledger_file(tmp_path, 1))
    assert len(told(caplog, "can be written again")) == 1
    run(data, tmp_path, 2, 0, saved)
    assert [number for number, _ in RunLedger(tmp_path) if number % 2] == list(range(1, 30, 2))


def test_a_file_that_is_removed_or_cut_short_meanwhile_is_told_and_begun_again(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with make_loader(data, (0, 1), tmp_path) as loader:
        steps(loader, 10)
        shutil.rmtree(tmp_path)
        steps(loader, 10)
        assert "was removed, replaced or cut short" in caplog.text and "LACKS micro-batches before 10" in caplog.text
        assert [number for number, _ in RunLedger(tmp_path)] == list(range(10, 20))
        end = ledger_file(tmp_path, 0).stat().st_size
        steps(loader, 10)
        os.truncate(ledger_file(tmp_path, 0), end + 7)
        steps(loader, 10)
        assert "LACKS micro-batches before 30" in caplog.messages[-1]
    assert [number for number, _ in RunLedger(tmp_path)] == [*range(10, 20), *range(30, 40)]


class Interrupted(io.FileIO):
    """Its write of some 100 bytes or more is interrupted half-way, once, by SIGUSR1."""

    is_armed = False

    def write(self, data: Any, /) -> int:
        if not (Interrupted.is_armed and len(data) > 100):
            return super().write(data)
        Interrupted.is_armed = False
        written = super().write(data[: len(data) // 2])
        signal.raise_signal(signal.SIGUSR1)
        return written


@pytest.mark.parametrize("ends_by", ["going on", "exit", "close and exit"])
def test_a_save_by_a_signal_handler_within_a_write_leaves_a_whole_ledger(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    saved = []

    def save(*_: object) -> None:
        saved.append(json.loads(json.dumps(loader.save_state_rank())))
        if ends_by == "close and exit":
            loader.close()
        if ends_by != "going on":
            raise SystemExit(1)

    monkeypatch.setattr(io, "FileIO", Interrupted)
    handler = signal.signal(signal.SIGUSR1, save)
    try:
        with contextlib.suppress(SystemExit), make_loader(data, (0, 1), tmp_path) as loader:
            steps(loader, 10)
            Interrupted.is_armed = True
            state = steps(loader, 10)
            assert state == saved[0]
            saved.append(steps(loader, 10))
    finally:
        Interrupted.is_armed = False
        signal.signal(signal.SIGUSR1, handler)
    assert len(saved) == (2 if ends_by == "going on" else 1)
    check(tmp_path, saved[-1])


def test_a_child_that_lives_on_does_not_keep_the_ledger_of_a_closed_loader(data: Path, tmp_path: Path) -> None:
    ours, childs = os.pipe()
    with make_loader(data, (0, 1), tmp_path) as loader:
        saved = steps(loader, 5)
        if (child := os.fork()) == 0:
            os.close(childs)
            os.read(ours, 1)  # until the parent closes its end
            os._exit(0)
    try:
        check(tmp_path, run(data, tmp_path, 1, 5, saved))
    finally:
        os.close(childs)
        os.close(ours)
        os.waitpid(child, 0)
