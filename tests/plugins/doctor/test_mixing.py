"""Figures of mixing: those of orders that are drawn, and of a true permutation."""

import numpy as np
import pytest

from benchmarks.mixing.statistics import group_inflation
from bridge_data.order import Geometry, Row
from bridge_data.order.row import ChunkTable
from bridge_data.plugins.doctor.mixing import expected_inflation, mixing_of, windows_of_epoch

COUNTS = [500] * 8
SAMPLES, BATCH = sum(COUNTS), 32


def mixed(**changes: int | None) -> tuple[Row, ChunkTable]:
    settings: dict[str, int | None] = {"num_lanes": 4, "max_samples_per_sequence": 50, "shuffle_buffer_size": 100}
    geometry = Geometry.choose(COUNTS, **settings | changes)
    return Row(COUNTS, geometry, key=1), ChunkTable(COUNTS, geometry.chunk_size)


def test_the_expected_inflation_is_that_of_batches_out_of_windows_that_are_permuted() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), [32, 160] * 20)
    windows = [np.flatnonzero(groups % 4 == number) for number in range(4)]
    orders = [np.concatenate([rng.permutation(window) for window in windows]) for _ in range(60)]
    found = np.mean([group_inflation(order.reshape(-1, BATCH), groups) for order in orders])
    known = float(((np.bincount(groups) / len(groups)) ** 2).sum())
    assert found > 2.5
    assert found == pytest.approx(expected_inflation([groups[w] for w in windows], known, len(groups), BATCH), rel=0.02)
    everything = np.repeat(np.arange(40), 100)  # one window: a true permutation
    assert expected_inflation([everything], 1 / 40, SAMPLES, BATCH) == pytest.approx(1)


def test_the_mixing_of_a_row_is_that_of_the_samples_it_gives() -> None:
    row, chunks = mixed()
    lanes = [np.concatenate(list(windows_of_epoch(Row(COUNTS, row.geometry, key))))[:SAMPLES] for key in range(20)]
    found = np.mean(
        [
            group_inflation(lane[: SAMPLES // BATCH * BATCH].reshape(-1, BATCH), np.arange(SAMPLES) // 50)
            for lane in lanes
        ]
    )
    mixing = mixing_of(row, chunks, BATCH)
    assert mixing.is_exact
    assert mixing.inflation > 1.2
    assert mixing.inflation == pytest.approx(found, rel=0.05)
    assert mixing.position_std == pytest.approx(80**-0.5)


def test_the_estimate_of_large_data_is_near_the_exact_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    row, chunks = mixed(num_lanes=2, shuffle_buffer_size=1024)
    exact = mixing_of(row, chunks, BATCH)
    monkeypatch.setattr("bridge_data.plugins.doctor.mixing.MAX_SAMPLES", 1600)
    estimate = mixing_of(row, chunks, BATCH)
    assert not estimate.is_exact
    assert estimate.inflation == pytest.approx(exact.inflation, rel=0.1)


def test_data_in_the_order_of_files_have_batches_of_one_chunk_and_a_single_chunk_mixes_nothing() -> None:
    row, chunks = mixed(max_samples_per_sequence=None, shuffle_buffer_size=None)
    assert mixing_of(row, chunks, BATCH).inflation == pytest.approx(BATCH, rel=0.15)
    row, chunks = mixed()
    unshuffled = Row(COUNTS, row.geometry, key=1, epochs_per_shuffle=None)
    assert mixing_of(unshuffled, chunks, BATCH).inflation > 0.6 * BATCH
    geometry = Geometry.choose([10], num_lanes=1, max_samples_per_sequence=None, shuffle_buffer_size=None)
    mixing = mixing_of(Row([10], geometry, 0), ChunkTable([10], geometry.chunk_size), 4)
    assert (mixing.inflation, mixing.position_std) == (1.0, 1.0)


def test_windows_of_an_epoch_hold_each_sample_once() -> None:
    row = Row(COUNTS, Geometry(num_lanes=3, chunk_size=50, block_size=5, window_size=200), key=1)
    windows = list(windows_of_epoch(row))
    assert len(windows) > 3
    assert sorted(np.concatenate(windows)) == list(range(SAMPLES))
