"""The runner from end to end, on a little data, with our own loader alone."""

from pathlib import Path

import psutil
import pytest

from benchmarks.speed import programs, rounds
from benchmarks.speed.programs import OURS
from benchmarks.speed.summary import summarize


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["text", "video", "audio"])
def test_a_round_gives_figures_of_equal_samples_and_leaves_nothing_running(tmp_path: Path, workload: str) -> None:
    if workload == "video":
        pytest.importorskip("skimage", reason="scikit-image is not installed: the extra bench has it")
    before = set(psutil.Process().children(recursive=True))
    extent = rounds.Extent(folder=tmp_path, rounds=1, seconds=0.1, scale=0.02)
    ours = summarize(rounds.throughput(workload, 2, extent))[OURS]
    assert ours["check"] == "equal"
    assert ours["samples_per_s"] > 0
    assert ours["restore_s"] > 0
    assert set(psutil.Process().children(recursive=True)) <= before


def test_other_content_is_told(tmp_path: Path) -> None:
    (tmp_path / "reference.json").write_text('{"01": ["a text"], "02": [[3, 4, 5], "uint8", 100.0]}')
    assert rounds.checked([["shard.tar/01", ["a text"]]], tmp_path, "text") == "equal"
    assert rounds.checked([["02", [[3, 4, 5], "uint8", 100.001]]], tmp_path, "jpeg") == "equal"
    assert "01" in rounds.checked([["01", ["another"]]], tmp_path, "text")
    assert "02" in rounds.checked([["02", [[3, 4, 5], "uint8", 101.0]]], tmp_path, "jpeg")
    assert "unknown" in rounds.checked([["03", ["a text"]]], tmp_path, "text")


def test_a_program_that_fails_or_is_not_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nothing" in programs.run(OURS, "text", tmp_path / "nothing", 0, 0.1)["failed"]
    monkeypatch.setattr(programs, "ENVIRONMENTS", tmp_path)
    assert "make peers" in programs.run("litdata", "text", tmp_path, 0, 0.1)["failed"]
