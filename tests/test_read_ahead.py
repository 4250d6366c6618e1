import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset, read_ahead, storage
from bridge_data.lane_dataset import LaneDataset
from bridge_data.read_ahead import ReadAhead
from bridge_data.storage import prefetching, remote
from tests.object_store import Bucket, Server, faulty_proxy
from tests.prepared import write_texts

SAMPLE_BYTES = 2048
"""A text of `write_texts` with its headers."""

Announced = list[tuple[str, int, int]]


def dataset(path: object, num_lanes: int = 2) -> LaneDataset:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=num_lanes)
    return get_train_dataset(
        str(path), worker_config=config, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=10, repeat=False
    )


def write_far_apart(folder: Path, num_samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of which each is a whole place, and each comes with a request of its own."""
    write_texts(folder, num_samples, lambda n: f"a{n}", ratio="1,0,0")
    (folder / ".nv-meta/index.bridge").unlink()
    monkeypatch.setattr(prefetching, "MAX_REQUEST_BYTES", 1)


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Announced]:
    seen: Announced = []
    monkeypatch.setattr(storage, "prefetch", seen.extend)
    monkeypatch.setattr(read_ahead, "LOT_SAMPLES", 8)
    monkeypatch.setattr(read_ahead, "BURST_BYTES", 0)
    monkeypatch.setattr(read_ahead, "FIRST_LEAD", 8)
    yield seen


def followed(data: LaneDataset, state: Any, announced: Announced, count: int) -> int:
    """The samples of a lane, whose cursor is taken to its end; what it comes to was announced."""
    cursor, scout = (data._order.cursor(0, state) for _ in range(2))
    ahead = ReadAhead(scout, data._loaders)
    while True:
        ahead.follow(cursor, count)
        try:
            refs = [ref for _, ref in cursor.take(count)]
        except StopIteration:
            return cursor.draws
        for ref in refs:
            for place in data._loaders[ref.source].places(ref.index):
                assert place in announced


@pytest.mark.parametrize("count", [1, 5, 30])
def test_what_comes_is_announced_before_and_once(
    bucket: Bucket, announced: Announced, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    write_far_apart(bucket.folder / "a", 120, monkeypatch)
    data = dataset(f"{bucket.url}/a")
    num_samples = followed(data, data.new_state(), announced, count)
    assert len(announced) == len(set(announced)) == num_samples


def counts_after_draws(data: LaneDataset, announced: Announced, num_draws: int) -> list[int]:
    """How much is announced before each draw."""
    state = data.new_state()
    cursor, scout = (data._order.cursor(0, state) for _ in range(2))
    ahead = ReadAhead(scout, data._loaders)
    counts = []
    for _ in range(num_draws):
        ahead.follow(cursor)
        counts.append(len(announced))
        cursor.next()
    return counts


@pytest.mark.parametrize("num_at_once", [0, 3, 100])
def test_a_lot_is_announced_evenly_while_the_one_before_it_is_read_but_for_some_at_once(
    bucket: Bucket, announced: Announced, monkeypatch: pytest.MonkeyPatch, num_at_once: int
) -> None:
    monkeypatch.setattr(read_ahead, "BURST_BYTES", num_at_once * SAMPLE_BYTES)
    write_far_apart(bucket.folder / "a", 120, monkeypatch)
    counts = counts_after_draws(dataset(f"{bucket.url}/a"), announced, 32)
    assert counts == [8 * (1 + draw // 8) + min(8, max(num_at_once, 1 + draw % 8)) for draw in range(32)]


def test_small_requests_are_not_begun_in_a_bunch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "BURST_BYTES", 0)
    monkeypatch.setattr(read_ahead, "REQUEST_BYTES", 1 << 20)
    lot = [[("s3://a/file", number << 24, 1 << 20 if number < 4 else 1)] for number in range(8)]
    assert [draw for draw, _ in read_ahead._due(lot, 100, 220)] == [100, 119, 139, 159, 179, 189, 199, 209]


def test_what_the_first_lot_wants_late_is_announced_later(
    bucket: Bucket, announced: Announced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "LOT_SAMPLES", 25)
    monkeypatch.setattr(read_ahead, "FIRST_LEAD", 10)
    write_far_apart(bucket.folder / "a", 120, monkeypatch)
    counts = counts_after_draws(dataset(f"{bucket.url}/a"), announced, 25)
    assert counts == [min(25, 11 + draw) + 1 + draw for draw in range(25)]


def test_nothing_is_announced_of_local_files(tmp_path: Path, announced: Announced) -> None:
    write_texts(tmp_path / "a", 120, lambda n: f"a{n}", ratio="1,0,0")
    data = dataset(tmp_path / "a")
    state = data.new_state()
    cursor, scout = (data._order.cursor(0, state) for _ in range(2))
    ReadAhead(scout, data._loaders).follow(cursor)
    assert announced == []


@pytest.mark.parametrize("num_lanes", [1, 2])
def test_lots_end_by_their_bytes_of_which_each_lane_has_its_share(
    bucket: Bucket, announced: Announced, monkeypatch: pytest.MonkeyPatch, num_lanes: int
) -> None:
    monkeypatch.setattr(read_ahead, "LOT_BYTES", 6 * SAMPLE_BYTES)
    write_far_apart(bucket.folder / "a", 120, monkeypatch)
    data = dataset(f"{bucket.url}/a")
    state = data.new_state()
    cursor, scout = (data._order.cursor(0, state) for _ in range(2))
    ReadAhead(scout, data._loaders, num_lanes).follow(cursor, count=1)
    assert [size for *_, size in announced] == [SAMPLE_BYTES] * (6 // num_lanes + 1)


def test_lanes_of_one_process_do_not_drive_out_what_was_fetched_for_another(
    bucket: Bucket, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_far_apart(bucket.folder / "a", 400, monkeypatch)
    monkeypatch.setattr(read_ahead, "LOT_BYTES", 48 * SAMPLE_BYTES)
    ahead = prefetching.Prefetcher(remote._range, max_bytes=64 * SAMPLE_BYTES)
    monkeypatch.setattr(remote._known, "ahead", ahead)
    with faulty_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        with get_savable_loader(dataset(f"{bucket.url}/a", num_lanes=8)) as loader:
            assert len({text for batch in loader for text in batch.text}) == 400
        reads = [(path, extent) for method, path, extent in proxy.requests if method == "GET" and path.endswith(".tar")]
        assert len(reads) == len(set(reads)) == 400
    assert ahead.num_held_bytes == 0


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
