"""Figures of planned packs: known packs have the loads of arithmetic; the command says who is missing."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import packing

STEP = packing.Step([np.array(one) for one in ([4], [1, 1], [3], [2, 2])], [16, 2, 9, 8])
"""Four packs, of two ranks."""


def test_packs_cost_the_square_of_their_samples_and_those_away_from_home_are_sent() -> None:
    assert packing.PLACED["as read"](STEP, 2, 4) == (25, 0)
    assert packing.PLACED["exchanged after reading"](STEP, 2, 4) == (18, 8)  # the first and the last pack
    assert packing.PLACED["assigned before reading"](STEP, 2, 4) == (18, 0)


def test_the_scheduler_of_megatron_shares_samples_longer_than_its_limit() -> None:
    pytest.importorskip("megatron.core.pipeline_parallel.hybrid_cp_schedule")
    whole, sent = packing.scheduled(STEP, 2, 4)
    assert whole >= sum(STEP.loads) / 2
    assert 0 < sent < 13 + 2
    shared, _ = packing.scheduled(STEP, 2, 2)
    assert shared >= sum(STEP.loads) / 2


@pytest.mark.slow
def test_the_command_writes_figures_and_says_what_is_not_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = packing.Workload("chat_tokens", 2_048, 24_000)
    monkeypatch.setattr(packing, "WORKLOADS", {"chats": workload, "more": workload._replace(capacity=8_192)})
    monkeypatch.setattr(packing, "WAYS", dict(list(packing.WAYS.items())[:4:3]))
    nowhere = ["--energon", str(tmp_path / "none"), "--bridge", str(tmp_path / "none")]
    options = [
        "--rounds",
        "1",
        "--steps",
        "1",
        "--scale",
        "0.05",
        "--data",
        str(tmp_path),
        "--json",
        str(tmp_path / "it"),
    ]
    packing.main([*nowhere, *options])
    row = json.loads((tmp_path / "it").read_text())["packs"]["chats"]
    assert 0.95 < row[packing.OURS]["fill"] <= 1
    assert row[packing.OURS]["ratio"] == 1
    assert row["Energon, buffer 200"] == {"failed": "not installed"}
    assert "| Energon, buffer 200 | not installed |" in capsys.readouterr().out


def test_the_page_has_the_marks() -> None:
    assert packing.tables.in_page(packing.PAGE.read_text(), "new", packing.BEGIN, packing.END)
