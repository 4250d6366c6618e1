import copy
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset, storage
from bridge_data.data.blocks import BlockBudget, ChunkBlocks
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.order import SampleRef
from bridge_data.plugins.stores import object_store, prefetching, read_ahead
from bridge_data.plugins.stores.read_ahead import ReadAhead
from tests.object_store import Bucket, Server, faulty_proxy
from tests.prepared import write_texts

SAMPLE_BYTES = 2048
"""A text of `write_texts` with its headers."""

Announced = list[tuple[str, int, int]]


def dataset(path: object, num_lanes: int = 2, **settings: Any) -> LaneDataset:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=num_lanes, **settings)
    return get_train_dataset(
        str(path), worker_config=config, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=10, repeat=False
    )


def write_far_apart(folder: Path, num_samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of which each is a whole range, and each comes with a request of its own."""
    write_texts(folder, num_samples, lambda n: f"a{n}", ratio="1,0,0")
    (folder / ".nv-meta/index.bridge").unlink()
    monkeypatch.setattr(prefetching, "MAX_REQUEST_BYTES", 1)


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Announced]:
    seen: Announced = []
    monkeypatch.setattr(storage, "prefetch", seen.extend)
    monkeypatch.setattr(read_ahead, "LOT_SAMPLES", 8)
    monkeypatch.setattr(read_ahead, "LEAD", 4)
    monkeypatch.setattr(read_ahead, "BURST_BYTES", 0)
    monkeypatch.setattr(storage, "REQUEST_BYTES", 0)
    yield seen


class Listed:
    """A cursor of samples that are listed, with their epoch and a source of large blocks."""

    def __init__(self, indices: Sequence[int]) -> None:
        self.num_drawn, self._indices = 0, indices

    def next(self) -> SampleRef:
        if self.num_drawn == len(self._indices):
            raise StopIteration
        self.num_drawn += 1
        return SampleRef(0, 0, self._indices[self.num_drawn - 1])

    def take(self, count: int) -> list[tuple[int, SampleRef]]:
        return [(self.num_drawn, self.next()) for _ in range(count)]

    def copy(self) -> "Listed":
        return copy.copy(self)


BLOCK, WINDOW = 4, 64


def windows(num_samples: int) -> list[int]:
    """Samples in windows of `WINDOW`, each of which begins with the first sample of each of its blocks."""
    return [
        begin + block + number
        for begin in range(0, num_samples, WINDOW)
        for number in range(BLOCK)
        for block in range(0, WINDOW, BLOCK)
    ]


def counts_after_draws(announced: Announced, indices: Sequence[int], bucket: Bucket, num_lanes: int = 1) -> list[int]:
    """How much is announced before each draw."""
    write_texts(bucket.folder / "a", 640, lambda n: f"a{n}", per_shard=640)
    loader = dataset(f"{bucket.url}/a").opened.readers[0]
    loader.read_in_blocks(ChunkBlocks(640, BLOCK), BlockBudget(1 << 30))
    cursor, ahead = Listed(indices), ReadAhead([loader], num_lanes)
    counts = []
    for _ in indices:
        ahead.follow(cursor)
        counts.append(len(announced))
        cursor.next()
    return counts


@pytest.mark.parametrize("num_lanes", [1, 2])
def test_no_more_is_announced_than_a_lane_has_room_for(
    bucket: Bucket, announced: Announced, monkeypatch: pytest.MonkeyPatch, num_lanes: int
) -> None:
    monkeypatch.setattr(read_ahead, "BURST_BYTES", BLOCK * SAMPLE_BYTES)
    monkeypatch.setattr(prefetching, "MAX_REQUEST_BYTES", 1)
    monkeypatch.setattr(read_ahead, "AHEAD_BYTES", 12 * BLOCK * SAMPLE_BYTES)
    indices = windows(640)
    counts = counts_after_draws(announced, indices, bucket, num_lanes)
    met = list(itertools.accumulate(index % BLOCK == 0 for index in indices))
    ahead = [count - before for count, before in zip(counts, [0, *met], strict=False)]
    assert max(ahead) == 12 // num_lanes
    assert counts[-1] == len(set(announced)) == 640 // BLOCK


def test_a_lane_that_begins_announces_little_more_than_it_takes(
    bucket: Bucket, announced: Announced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetching, "MAX_REQUEST_BYTES", 1)
    counts = counts_after_draws(announced, range(0, 640, BLOCK), bucket)
    assert counts[:4] == [2, 4, 6, 8]
    assert counts[-1] == 640 // BLOCK


@pytest.mark.processes
def test_neighbours_come_with_one_request_also_after_a_restart(
    bucket: Bucket, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of which a part was taken before come again, each once."""
    write_texts(bucket.folder / "a", 400, lambda n: f"a{n}")
    with faulty_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")

        def reads() -> list[Any]:
            asked = [(path, extent) for method, path, extent in proxy.requests if method == "GET"]
            return [read for read in asked if read[0].endswith(".tar")]

        with get_savable_loader(dataset(f"{bucket.url}/a")) as loader:
            batches = iter(loader)
            before = [text for _ in range(30) for text in next(batches).text]
            state = json.loads(json.dumps(loader.save_state_rank()))
            rest = [text for batch in batches for text in batch.text]
        assert len({*before, *rest}) == 400
        num_before = len(reads())
        with get_savable_loader(dataset(f"{bucket.url}/a")) as loader:
            loader.restore_state_rank(state)
            assert [text for batch in loader for text in batch.text] == rest
        again = reads()[num_before:]
        assert len(again) == len(set(again)) < 100 > num_before


@pytest.mark.processes
def test_lanes_of_one_process_do_not_drive_out_what_was_fetched_for_another(
    bucket: Bucket, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_far_apart(bucket.folder / "a", 240, monkeypatch)
    monkeypatch.setattr(read_ahead, "AHEAD_BYTES", 48 * SAMPLE_BYTES)
    ahead = prefetching.Prefetcher(object_store._range, max_bytes=64 * SAMPLE_BYTES)
    monkeypatch.setattr(object_store._known, "ahead", ahead)
    with faulty_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        with get_savable_loader(dataset(f"{bucket.url}/a", num_lanes=8, max_open_bytes=0)) as loader:
            num_opened = len(proxy.requests)
            assert len({text for batch in loader for text in batch.text}) == 240
        reads = [
            (path, extent)
            for method, path, extent in proxy.requests[num_opened:]
            if method == "GET" and path.endswith(".tar")
        ]
        assert len(reads) == len(set(reads)) == 240
    assert ahead.num_held_bytes == 0
