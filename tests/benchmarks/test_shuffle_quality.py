"""The measures of mixing: known orders get the scores that arithmetic gives them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks import shuffle_quality
from benchmarks.mixing import sheet, statistics
from benchmarks.mixing.orders import GEOMETRIES, Geometry, full_batches
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


def test_the_closed_form_of_a_value_per_group_is_the_mean_over_random_values() -> None:
    rng = np.random.default_rng(0)
    layout = Layout([70, 430, 120, 380], RUN)
    batches = np.sort(rng.permutation(992).reshape(-1, 4, 8), axis=0).reshape(-1, BATCH)  # unevenly mixed
    values = rng.standard_normal((400, 4))[:, layout.shard]
    found = [statistics.value_inflation(batches, value) for value in values]
    expected = statistics.group_inflation(batches, layout.shard)
    assert expected > 2
    assert np.average(found, weights=values.var(axis=1)) == pytest.approx(expected, rel=0.1)


def test_an_epoch_is_the_next_time_that_each_sample_comes() -> None:
    stream = np.array([2, 0, 2, 1, 1, 0])  # the second epoch begins before the first has ended
    assert statistics.positions(stream, 3, 2).tolist() == [[1, 2, 0], [2, 1, 0]]


def test_a_short_batch_moves_none_of_the_next() -> None:
    batches = full_batches(np.arange(112), np.array([32, 16, 32, 32]), last=112)
    assert batches[:, 0].tolist() == [0, 48, 80]
    assert len(full_batches(np.arange(112), np.array([32, 16, 32, 32]), last=100)) == 2


def test_a_sample_that_is_missing_is_an_error() -> None:
    with pytest.raises(ValueError, match="sample 1 comes 1 times in 2 epochs"):
        statistics.positions(np.array([0, 1, 0]), 2, 2)


def test_a_layout_has_runs_of_the_setting_and_chunks_of_the_library() -> None:
    layout = Layout([250, 40], 100, 50)
    assert np.bincount(layout.run).tolist() == [83, 83, 84, 40]
    assert np.bincount(layout.chunk).tolist() == [50] * 5 + [40]
    assert layout.offset_in_chunk[[0, 49, 50, 289]].tolist() == [0.01, 0.99, 0.01, 39.5 / 40]
    assert layout.offset_in_shard[[0, 249, 250]].tolist() == [0.002, 0.998, 0.0125]
    whole = Layout([250, 50], None)
    assert np.bincount(whole.run).tolist() == np.bincount(whole.chunk).tolist() == [250, 50]
    assert whole.num_equal_chunks == pytest.approx(300**2 / (250**2 + 50**2))


def good_figures() -> dict[str, Figure]:
    """Of all measures that have a limit."""
    inflations = [statistics.CHUNK_OFFSET_INFLATION, statistics.SHARD_OFFSET_INFLATION, statistics.CHUNK_INFLATION]
    correlations = [statistics.BETWEEN_EPOCHS, statistics.BETWEEN_SEEDS]
    times = [statistics.CHUNK_OFFSET_TIME, statistics.SHARD_OFFSET_TIME]
    return {
        **{name: Figure(-0.01, 0.01, 4) for name in correlations + times},
        **{name: Figure(1.1, 0.1, 4) for name in [*inflations, statistics.SHARD_INFLATION]},
        statistics.FIRST_OFFSET_P: Figure(0.5, math.nan, 60),
    }


def test_each_limit_is_kept_by_good_figures_and_not_by_others() -> None:
    layout, good = Layout(COUNTS, RUN), good_figures()
    limits = sheet.limits(good, layout, expected=1.2)
    assert all(limits[name].keeps(figure) for name, figure in good.items() if name in limits)
    assert limits[statistics.BETWEEN_EPOCHS].most == pytest.approx(5 / (40 * 4) ** 0.5)
    for name, bad in (
        (statistics.BETWEEN_EPOCHS, -0.4),
        (statistics.CHUNK_OFFSET_TIME, 0.031),
        (statistics.CHUNK_OFFSET_INFLATION, 1.16),
        (statistics.SHARD_OFFSET_INFLATION, 1.1 * 1.16),
        (statistics.CHUNK_INFLATION, 1.2 * 1.16),
        (statistics.CHUNK_INFLATION, 1.2 * 0.84),
        (statistics.FIRST_OFFSET_P, 1e-4),
    ):
        assert not limits[name].keeps(Figure(bad, 0.1, 4)), name
    unequal = sheet.limits(good, Layout([100] * 10 + [10] * 400, RUN), expected=1.2)
    assert unequal[statistics.CHUNK_OFFSET_INFLATION].most == 1.4


def test_a_figure_beyond_its_limit_is_bold_and_a_missing_library_says_so() -> None:
    good = good_figures()
    bad = {**good, statistics.BETWEEN_EPOCHS: Figure(0.945, 0.001, 4), statistics.FIRST_OFFSET_P: Figure(1e-9, 0, 60)}
    limits = sheet.limits(good, Layout(COUNTS, RUN), expected=1.2)
    lines = sheet.table({"a": good, "b": bad, "c": "not installed", "d": bad}, {"a": limits, "b": limits}).splitlines()
    assert lines[0] == "| measure | a | limit | b | limit | c | d |"
    epochs = "| -0.010 ± 0.010 | ± 0.395 | **0.945** ± 0.001 | ± 0.395 | not installed | 0.945 ± 0.001 |"
    assert lines[2] == f"| {statistics.BETWEEN_EPOCHS} {epochs}"
    assert "| 0.50 (60 seeds) | ≥ 0.001 | **1e-09** (60 seeds) | ≥ 0.001 | not installed |" in lines[-1]


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
