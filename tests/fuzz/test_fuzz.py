"""A short round of fuzzing, the same each time (`make fuzz` is the long one); and that the harness finds faults."""

import os
from pathlib import Path

import pytest

from tests.fuzz import __main__ as harness
from tests.fuzz.__main__ import TARGETS_MODULE, Result, run_child, run_target
from tests.fuzz.targets import BY_NAME, TARGETS
from tests.ranks import write_program

NUM_CASES = 50 if "BRIDGE_DATA_EXAMPLES" in os.environ else 5


def test_targets_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(TARGETS)


@pytest.mark.processes
def test_a_short_round_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "python")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    results = {name: Result(name) for name in BY_NAME}
    settings = [
        {"name": name, "module": TARGETS_MODULE, "corpus": str(tmp_path / name), "seed": 0}
        | {"seconds": 60, "num_cases": NUM_CASES}
        for name in BY_NAME
    ]
    assert run_child(settings, results) is None
    assert {name: result.failures for name, result in results.items() if result.failures} == {}
    assert {name: result.num_read for name, result in results.items()} == dict.fromkeys(BY_NAME, NUM_CASES)
    print(*results.values(), sep="\n")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("raises", "KeyError: 'a'"),
        ("dies", "the process ended with -6"),
        pytest.param("hangs", "a case took more than 5 s", marks=pytest.mark.slow),
        pytest.param("grows", "MiB more memory", marks=pytest.mark.slow),
        ("talks", "a message of 100000 characters"),
        ("refuses good files", "refused"),
    ],
)
def test_each_fault_is_found_and_its_file_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, found: str
) -> None:
    monkeypatch.setattr(harness, "MAX_CASE_S", 5.0)
    result = run_target(name, tmp_path, seconds=3, num_cases=2, seed=0, module="tests.fuzz.broken")
    assert not result.is_good
    assert any(found in failure for failure in result.failures), result.failures
    kept = [path for path in tmp_path.rglob("*.bin") if path.parent.name in ("failures", "deaths")]
    assert len(kept) >= (name != "refuses good files")


@pytest.mark.processes
def test_refused_cases_are_good_and_their_corpus_is_read_again(tmp_path: Path) -> None:
    first = run_target("refuses", tmp_path, seconds=30, num_cases=5, seed=0, module="tests.fuzz.broken")
    again = run_target("refuses", tmp_path, seconds=30, num_cases=5, seed=0, module="tests.fuzz.broken")
    assert first.is_good and again.is_good
    assert (first.num_read, again.num_read) == (5, 6)


def test_a_run_that_read_nothing_fails(tmp_path: Path) -> None:
    assert not Result("a").is_good
    assert not run_target("refuses", tmp_path, seconds=0, num_cases=0, seed=0, module="tests.fuzz.broken").is_good
