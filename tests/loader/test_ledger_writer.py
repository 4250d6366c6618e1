"""What a ledger file does to a run: nothing, also where it cannot be written."""

import contextlib
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data.errors import ConfigError, repeats
from bridge_data.loader import ledger_writer
from bridge_data.loader.ledger_files import RunLedger, ledger_file
from bridge_data.order.state import merge_states
from tests.loader.test_ledger_files import check, make_loader, run, sums_of
from tests.prepared import write_texts


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("ledger") / "texts", 333)


@pytest.fixture(autouse=True)
def told_anew() -> Iterator[None]:
    repeats.after_fork()
    yield
    repeats.after_fork()


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
    assert len(told(caplog, "is written again")) == 1
    assert sums_of(states[-1]) == sums_of(run(data, None, 1, fills_at + 30))
    check(tmp_path, run(data, tmp_path, 2, 20, states[1]))


def test_what_is_more_than_may_be_kept_is_lost_and_said_to_be(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_writer, "MAX_KEPT_BYTES", 1_000)
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
    assert sums_of(state) == sums_of(run(data, None, 1, 60))


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
        assert "LACKS micro-batches 25 to 29" in caplog.messages[-1]
        check(tmp_path, steps(loader, 8))


def test_what_a_failing_disk_left_of_a_record_is_cut_off(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with make_loader(data, (0, 1), tmp_path) as loader:
        steps(loader, 10)
        with ledger_file(tmp_path, 0).open("ab") as file:  # as if it could not be truncated after a write that failed
            file.write(b"half a record")
        check(tmp_path, steps(loader, 10))
    assert not caplog.records


def test_a_ledger_that_cannot_be_opened_is_refused_before_the_run(data: Path, tmp_path: Path) -> None:
    with make_loader(data, (0, 1), tmp_path), pytest.raises(ConfigError, match="another loader writes this ledger"):
        make_loader(data, (0, 1), tmp_path)
    make_loader(data, (0, 1), tmp_path).close()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written to"):
        make_loader(data, (0, 1), tmp_path / "file" / "ledger")
