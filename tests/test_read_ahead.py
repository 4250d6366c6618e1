import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset, read_ahead, storage
from bridge_data.lane_dataset import LaneDataset
from bridge_data.read_ahead import ReadAhead
from tests.object_store import Bucket, Server, faulty_proxy
from tests.prepared import write_texts

SAMPLE_BYTES = 2048
"""A text of `write_texts` with its headers."""

Announced = list[tuple[str, int, int]]


def dataset(path: object) -> LaneDataset:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=2)
    return get_train_dataset(
        str(path), worker_config=config, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=10, repeat=False
    )


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Announced]:
    seen: Announced = []
    monkeypatch.setattr(storage, "prefetch", seen.extend)
    monkeypatch.setattr(read_ahead, "LOT_SAMPLES", 8)
    yield seen


def followed(data: LaneDataset, state: Any, announced: Announced) -> int:
    """The samples of a lane, whose cursor is taken to its end; what it comes to was announced."""
    cursor, scout = (data._order.cursor(0, state) for _ in range(2))
    ahead = ReadAhead(scout, data._loaders)
    while True:
        ahead.follow(cursor)
        try:
            refs = [ref for _, ref in cursor.take(5)]
        except StopIteration:
            return cursor.draws
        for ref in refs:
            for place in data._loaders[ref.source].places(ref.index):
                assert place in announced


def test_what_comes_is_announced_before_and_once(tmp_path: Path, announced: Announced) -> None:
    write_texts(tmp_path / "a", 120, lambda n: f"a{n}", ratio="1,0,0")
    (tmp_path / "a/.nv-meta/index.bridge").rename(tmp_path / "kept")  # without it a place is a whole sample
    data = dataset(tmp_path / "a")
    num_samples = followed(data, data.new_state(), announced)
    assert len(announced) == len(set(announced)) == num_samples


def test_lots_end_by_their_bytes(tmp_path: Path, announced: Announced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "LOT_BYTES", 3 * SAMPLE_BYTES)
    write_texts(tmp_path / "a", 120, lambda n: f"a{n}", ratio="1,0,0")
    (tmp_path / "a/.nv-meta/index.bridge").unlink()
    data = dataset(tmp_path / "a")
    state = data.new_state()
    cursor, scout = (data._order.cursor(0, state) for _ in range(2))
    ReadAhead(scout, data._loaders).follow(cursor)
    assert [size for *_, size in announced] == [SAMPLE_BYTES] * 6


def test_neighbours_come_with_one_request_also_those_that_were_pending(
    bucket: Bucket, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_texts(bucket.folder / "a", 400, lambda n: f"a{n}", ratio="1,0,0")
    with faulty_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        with get_savable_loader(dataset(f"{bucket.url}/a")) as loader:
            batches = iter(loader)
            texts = [text for _ in range(30) for text in next(batches).text]
            state = json.loads(json.dumps(loader.save_state_rank()))
            rest = [text for batch in batches for text in batch.text]
        assert len(texts) == 120 and len({*texts, *rest}) == 400
        reads = [path for method, path, _ in proxy.requests if method == "GET" and ".tar" in path]
        assert len(reads) < 100
        with get_savable_loader(dataset(f"{bucket.url}/a")) as loader:
            loader.restore_state_rank(state)
            assert [text for batch in loader for text in batch.text] == rest
