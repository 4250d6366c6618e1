"""The measures of mixing: known orders get the scores that arithmetic gives them."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks import shuffle_quality
from benchmarks.mixing import statistics
from benchmarks.mixing.orders import GEOMETRIES, Geometry
from benchmarks.mixing.statistics import Figure, Layout

COUNTS = [500] * 8
SAMPLES, BATCH, RUN = sum(COUNTS), 32, 100


def shuffled_streams(seeds: int) -> list[np.ndarray]:
    rngs = [np.random.default_rng(seed) for seed in range(seeds)]
    return [np.concatenate([rng.permutation(SAMPLES) for _ in range(2)]) for rng in rngs]


def measured(streams: list[np.ndarray], firsts: np.ndarray) -> Mapping[str, Figure]:
    batches = [stream.reshape(-1, BATCH) for stream in streams]
    return statistics.measure(streams, batches, firsts, Layout(COUNTS, RUN), epochs=2)


def test_a_true_permutation_scores_0_and_1() -> None:
    firsts = np.random.default_rng(9).integers(0, SAMPLES, 200)
    figures = measured(shuffled_streams(6), firsts)
    for name in figures:
        if name.startswith("correlation"):
            assert abs(figures[name].mean) < 0.04, name
        elif name.startswith("inflation"):
            assert figures[name].mean == pytest.approx(1, abs=0.15), name
        elif name.startswith("first sample"):
            assert figures[name].mean > 0.001, name
    assert figures[statistics.EARLY_LOW].mean == pytest.approx(16, abs=2)
    runs = SAMPLES // RUN
    assert figures[statistics.RUNS_IN_BATCH].mean == pytest.approx(runs * (1 - (1 - 1 / runs) ** BATCH), rel=0.02)


def test_a_sorted_order_scores_1_and_the_inflation_that_follows_from_it() -> None:
    stream = np.tile(np.arange(SAMPLES), 2)
    figures = measured([stream, stream], np.zeros(100, int))
    assert figures[statistics.BETWEEN_EPOCHS].mean == pytest.approx(1)
    assert figures[statistics.BETWEEN_SEEDS].mean == pytest.approx(1)
    # A batch of one shard alone: its mean has the variance of one value. 4 of 125 batches have two shards.
    assert figures[statistics.SHARD_INFLATION].mean == pytest.approx(BATCH, rel=0.05)
    assert figures[statistics.RUNS_IN_BATCH].mean < 1.4
    assert figures[statistics.FIRST_OFFSET_P].mean < 1e-6


def test_a_run_read_front_to_back_shows_in_the_offset_and_not_in_the_run() -> None:
    stream = np.arange(SAMPLES).reshape(-1, RUN).T.ravel()  # all offsets 0, then all offsets 1, ...
    figures = measured([np.tile(stream, 2)] * 2, np.array([]))
    assert figures[statistics.CHUNK_OFFSET_TIME].mean > 0.99
    assert figures[statistics.CHUNK_OFFSET_INFLATION].mean > 25
    assert figures[statistics.CHUNK_INFLATION].mean < 1
    assert figures[statistics.EARLY_LOW].mean == 100


def test_the_command_draws_ours_and_tells_which_peers_are_not_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GEOMETRIES, "large-shards", Geometry(counts=(50, 30) * 4, chunk=20))
    nowhere = ["--energon", str(tmp_path / "none"), "--streaming", str(tmp_path / "none")]
    figures = tmp_path / "figures.json"
    options = ["--geometry", "large-shards", "--seeds", "2", "--first-seeds", "2", "--json", str(figures)]
    shuffle_quality.main([*nowhere, *options])
    found = json.loads(figures.read_text())["large-shards"]
    assert found["Energon, 8 ranks"] == {"failed": "not installed"}
    assert found["bridge_data, 8 lanes"][statistics.BETWEEN_EPOCHS]["count"] == 2
    printed = capsys.readouterr().out
    assert "### large-shards: 8 shards of 30 to 50 samples" in printed
    assert "| bridge_data, 8 lanes | limit | bridge_data, 1 lane | limit | Energon, 8 ranks |" in printed
