import json
import logging
import os
import runpy
from pathlib import Path
from typing import Any

import pytest

from bridge_data import errors
from bridge_data.decode import SampleDecoder
from bridge_data.errors import LogThrottle, SampleError, listed, log_exception


def test_of_many_names_the_first_are_listed() -> None:
    assert listed([]) == "none"
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert listed(["a", "b", "c"], 3) == "a, b, c"
    assert listed([str(number) for number in range(1_010)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 1,000 more"


def test_it_is_told_at_powers_of_ten() -> None:
    log_throttle = LogThrottle()
    told = [number for number in (log_throttle.count("a") for _ in range(12_345)) if number]
    assert told == [1, 10, 100, 1_000, 10_000]
    assert log_throttle.count("b") == 1


def test_it_is_told_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    log_throttle = LogThrottle()
    told = []
    for _ in range(9):
        told.append(log_throttle.count("a"))
        now[0] += 200
    assert told == [1, 0, 0, 4, 0, 0, 7, 0, 0]


def test_a_forked_child_counts_anew() -> None:
    errors.log_throttle.count("of the parent")
    child = os.fork()
    if child == 0:
        os._exit(errors.log_throttle.count("of the parent"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def refuse(reason: str) -> None:
    raise ValueError(reason)


def first(reason: str) -> None:
    refuse(reason)


def second(reason: str) -> None:
    refuse(reason)


def fail(action: Any, reason: str, note: str) -> None:
    try:
        action(reason)
    except ValueError as error:
        error.add_note(note)
        log_exception(error, None)


def test_data_at_fault_take_one_line_and_code_at_fault_its_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = {"__key__": "a.tar/7"}
    for handlers, part in ((None, "jpg"), ({"own": json.loads}, "own"), ({"own": refuse}, "own")):
        monkeypatch.setattr(errors, "log_throttle", LogThrottle())
        try:
            SampleDecoder(handlers=handlers)(sample | {part: b"nothing"})
        except SampleError as error:
            error.add_note("in decode")
            log_exception(error, sample)
    damaged, of_library, of_user = caplog.messages
    assert damaged.startswith(
        "left out sample a.tar/7 of unknown origin: sample 'a.tar/7': part 'jpg' (7 bytes) cannot"
    )
    assert damaged.endswith("[in decode]") and not {"\n"} & {*damaged, *of_library}
    assert "Traceback" in of_user and "in refuse" in of_user


def test_packages_of_another_environment_are_no_code_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, is_data in (("lib/python3.12/site-packages", True), ("mine", False)):
        (file := tmp_path / folder / "reader.py").parent.mkdir(parents=True)
        file.write_text("def read(content):\n    raise ValueError(content)\n")
        reader = runpy.run_path(str(file))
        with pytest.raises(SampleError) as failed:
            SampleDecoder(handlers={"own": reader["read"]})({"__key__": "a.tar/7", "own": b"nothing"})
        assert errors.is_of_data(failed.value) == is_data


def test_failures_are_the_same_by_type_hook_and_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "log_throttle", LogThrottle())
    caplog.set_level(logging.WARNING, "bridge_data")
    for number in range(5):
        for action in (first, second):  # the line that raises is the same, but not the one that calls it
            for hook in ("encode_sample", "batch"):
                fail(action, f"sample {number} is bad", f"in {hook} of Mine, sample {number}, rank 0")
    assert len(caplog.messages) == 4
    assert all("Traceback" in text and "sample 0 is bad" in text for text in caplog.messages)
