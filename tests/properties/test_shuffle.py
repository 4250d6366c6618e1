"""The shuffle is as good as that of windows that are fully permuted: measured on whole epochs, with fixed seeds.

The limits are those of `benchmarks.mixing.sheet`, where `python -m benchmarks.shuffle_quality` prints them too.
"""

import dataclasses

import numpy as np
import pytest

from benchmarks.mixing import sheet, statistics
from benchmarks.mixing.statistics import Layout
from bridge_data.order import Cursor, Geometry, Row

BATCH, BUFFER, EPOCHS = 32, 100, 2
READ_BYTES = 1 << 18


@dataclasses.dataclass(frozen=True)
class Data:
    """Samples of each shard, and `max_samples_per_sequence`. By default a block has 5 samples."""

    counts: tuple[int, ...]
    chunk: int | None
    sample_bytes: float | None = READ_BYTES / 5
    num_lanes: int = 8

    def row(self, seed: int, *, buffer: int = BUFFER) -> Row:
        geometry = Geometry.choose(
            self.counts,
            num_lanes=self.num_lanes,
            max_samples_per_sequence=self.chunk,
            shuffle_buffer_size=buffer,
            sample_bytes=self.sample_bytes,
        )
        return Row(self.counts, geometry, seed)


DATA = {
    "many small shards": Data((100,) * 120, 100),
    "few large shards": Data((3_000,) * 4, 100),
    "unequal shards": Data(tuple(20 + 30 * number for number in range(28)), 100),
    "unequal chunks": Data((10,) * 600 + (60,) * 100, 60),
    "chunks of whole shards": Data((500,) * 24, None),
    "small samples": Data((1_000,) * 12, 100, sample_bytes=100),
    "samples of unknown size": Data((1_000,) * 12, None, sample_bytes=None),
    "one lane of many windows": Data((500,) * 24, 100, num_lanes=1),
}


def stream_of(row: Row, num_samples: int) -> np.ndarray:
    """What a job takes: a batch of each lane in turn, until each sample has come once an epoch."""
    lanes = [Cursor([[row]], None, lane) for lane in range(row.geometry.num_lanes)]
    seen, batches, num_drawn = np.zeros(num_samples, dtype=np.int64), [], 0
    while num_drawn < EPOCHS * num_samples or seen.min() < EPOCHS:
        for lane in lanes:
            batches.append([ref.index for _, ref in lane.take(BATCH)])
            num_drawn += len(batches[-1])
        np.add.at(seen, np.concatenate(batches[-len(lanes) :]), 1)
    return np.concatenate(batches)


def check_limits(data: Data, num_seeds: int) -> None:
    num_samples = sum(data.counts)
    rows = [data.row(1_000 + seed) for seed in range(num_seeds)]
    layout = Layout(data.counts, data.chunk, rows[0].geometry.chunk_size)
    streams = [stream_of(row, num_samples) for row in rows]
    batches = [stream[: EPOCHS * num_samples // BATCH * BATCH].reshape(-1, BATCH) for stream in streams]
    expected = np.mean([statistics.chunk_inflation_of_row(row, layout, BATCH) for row in rows[:3]])
    figures = statistics.measure(streams, batches, np.array([]), layout, EPOCHS)
    limits = sheet.limits(figures, layout, float(expected))
    judged = {name: (figure, limits[name]) for name, figure in figures.items() if name in limits}
    assert len(judged) == 7
    assert not {name: (figure, limit.text) for name, (figure, limit) in judged.items() if not limit.keeps(figure)}


@pytest.mark.parametrize("name", DATA)
def test_a_few_seeds_keep_the_limits(name: str) -> None:
    check_limits(DATA[name], num_seeds=10)


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA)
def test_forty_seeds_keep_the_limits(name: str) -> None:
    check_limits(DATA[name], num_seeds=40)


@pytest.mark.parametrize("name", DATA)
def test_the_first_sample_of_a_job_is_from_anywhere(name: str) -> None:
    data = DATA[name]
    rows = [data.row(seed) for seed in range(400)]
    firsts = np.array([Cursor([[row]], None, 0).next().index for row in rows])
    layout = Layout(data.counts, data.chunk, rows[0].geometry.chunk_size)
    assert statistics.uniform_p(firsts / layout.samples) > 0.001
    assert statistics.uniform_p(layout.offset_in_shard[firsts]) > 0.001
    assert statistics.uniform_p(layout.offset_in_chunk[firsts]) > 0.001


@pytest.mark.parametrize("chunk", [500, None])
def test_shuffle_buffer_size_is_how_many_samples_are_mixed_at_least(chunk: int | None) -> None:
    """Most neighbours on disk come in one window: half of them within (1 - 1/√2)W, where that is W samples."""
    data = Data((1_000,) * 40, chunk, sample_bytes=None, num_lanes=1)
    for buffer, least in ((0, 1_024), (1_000, 1_024), (4_000, 4_000), (13_000, 13_000)):
        stream = stream_of(data.row(7, buffer=buffer), 40_000)[:40_000]
        distance = np.abs(np.diff(np.argsort(stream, kind="stable")))
        window = float(np.median(distance[distance < 2 * least])) / (1 - 0.5**0.5)
        assert 0.95 * least < window < 1.3 * least
