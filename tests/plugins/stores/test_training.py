"""Training from an object store: the batches of the local copy, wherever they are read."""

import contextlib
import json
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.plan import load_plan
from tests.object_store import Bucket, FaultyProxy, Server, environment, faulty_proxy
from tests.prepared import write_blend, write_texts

HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\n"


@pytest.fixture
def folder(bucket: Bucket) -> Path:
    """Two data sets and a blend of them, in the bucket."""
    write_texts(bucket.folder / "sets" / "a", 120, lambda n: f"a{n}", ratio="2,1,0")
    write_texts(bucket.folder / "sets" / "b", 60, lambda n: f"b{n}")
    write_blend(bucket.folder / "sets" / "blend.yaml", {"a": 3, "b": 1}, val="a")
    return bucket.folder / "sets"


def loader(path: object, num_workers: int = 0) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=2)
    dataset = get_train_dataset(
        str(path), worker_config=config, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=10
    )
    return get_savable_loader(dataset)


def texts(batches: Any, number: int) -> list[list[str]]:
    return [next(batches).text for _ in range(number)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_of_the_local_copy(folder: Path, bucket: Bucket, num_workers: int) -> None:
    with loader(folder / "blend.yaml") as local:
        expected = texts(iter(local), 60)
    with loader(f"{bucket.url}/sets/blend.yaml", num_workers) as remote:
        batches = iter(remote)
        assert texts(batches, 25) == expected[:25]
        state = json.loads(json.dumps(remote.save_state_rank()))
    with loader(f"{bucket.url}/sets/blend.yaml", num_workers) as resumed:
        resumed.restore_state_rank(state)
        assert texts(iter(resumed), 35) == expected[25:]


@pytest.mark.processes
def test_start_up_touches_no_shard(
    folder: Path, bucket: Bucket, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        plan = load_plan(f"{bucket.url}/sets/a")
        assert plan.sources[0].fingerprint
        first = [path for _, path, _ in proxy.requests]
        assert not [path for path in first if ".tar" in path]
        assert any(path.endswith("index.bridge") for path in first)
        proxy.requests.clear()
        load_plan(f"{bucket.url}/sets/a")
        again = [(method, path) for method, path, _ in proxy.requests]
        assert not [path for method, path in again if method == "GET" and path.endswith("index.bridge")]


def test_a_local_metadataset_may_name_urls_also_without_our_index_and_states_move(
    folder: Path, bucket: Bucket, tmp_path: Path
) -> None:
    (folder / "a" / ".nv-meta" / "index.bridge").unlink()
    with loader(folder / "blend.yaml") as local:
        batches = iter(local)
        expected = texts(batches, 10)
        state = local.save_state_rank()
        expected += texts(batches, 20)
    blend = write_blend(tmp_path / "blend.yaml", {f"{bucket.url}/sets/a": 3, f"{bucket.url}/sets/b": 1})
    with loader(blend) as mixed:
        assert texts(iter(mixed), 30) == expected
        mixed.restore_state_rank(state)
        assert texts(iter(mixed), 20) == expected[10:]


def test_what_is_missing_is_named_with_file_and_line(folder: Path, bucket: Bucket) -> None:
    (folder / "broken.yaml").write_text(f"{HEAD}splits:\n  train:\n    path: nowhere\n")
    sets = f"{bucket.url}/sets"
    for path, told in (
        ("/broken.yaml", f"{sets}/broken.yaml:5: {sets}/nowhere: no such folder"),
        ("/nowhere", f"{sets}/nowhere: no such folder or file"),
        ("", "not a prepared data set"),
    ):
        with pytest.raises(ConfigError, match=told):
            load_plan(f"{sets}{path}")


@contextlib.contextmanager
def begun_by_a_thread(server: Server) -> Iterator[threading.Event]:
    """Have `server` start while the body runs; a process that ends with the thread that started it.

    Yields: what is set once it answers.
    """
    begun, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (server.start(), begun.set(), ended.wait()))
    thread.start()
    yield begun
    server.kill()
    ended.set()
    thread.join()


@pytest.mark.processes
def test_a_store_that_goes_away_is_waited_for_and_in_the_end_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path / "served")
    write_texts(server.folder / "mortal" / "a", 6000)
    server.start()
    for name, value in environment(server.port).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "copies"))
    with loader(server.folder / "mortal" / "a") as local:
        expected = texts(iter(local), 1400)
    with loader("s3://mortal/a", 2) as waiting:
        batches = iter(waiting)
        assert texts(batches, 10) == expected[:10]
        server.kill()
        with begun_by_a_thread(server) as begun:
            assert texts(batches, 1390) == expected[10:]
            assert begun.is_set()
            monkeypatch.setenv("BRIDGE_DATA_RETRY_S", "0.2")
            with loader("s3://mortal/a") as alone, loader("s3://mortal/a", 2) as with_workers:
                streams = [iter(alone), iter(with_workers)]
                assert [texts(batches, 10) for batches in streams] == [expected[:10]] * 2
                server.kill()
                for batches in streams:
                    with pytest.raises(
                        BridgeDataError, match=r"s3://mortal/a/data-\d+.tar.*: cannot be read: .* attempts in \d+ s"
                    ):
                        texts(batches, 5000)


def seconds(path: str, proxy: FaultyProxy, share: float) -> float:
    """How long two workers take for 400 batches, once they run, where a share of the requests gets no answer."""
    with loader(path, num_workers=2) as remote:
        assert remote.wait_for_workers()
        batches = iter(remote)
        texts(batches, 60)
        proxy.share = share
        start = time.perf_counter()
        texts(batches, 400)
        took_s = time.perf_counter() - start
        proxy.share = 0.0
        return took_s


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "trickle"])
def test_two_workers_go_on_where_one_request_of_ten_gets_no_answer(
    fault: str, s3_server: Server, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a store with a latency, so that requests, and not the cores that the server shares, take the time. The bound
    leaves room for other work on the machine: of the runs of each kind the middle one counts."""
    monkeypatch.delenv("AWS_TIMEOUT")
    write_texts(bucket.folder / "large", 1_000, lambda n: f"{n} " * 2_000)
    with faulty_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        proxy.latency_s, proxy.shared_fault = 0.1, fault
        path = f"{bucket.url}/large"
        pairs = [(seconds(path, proxy, 0.0), seconds(path, proxy, 0.1)) for _ in range(7)]
    healthy, faulty = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"{fault}: {healthy / faulty:.2f} of the healthy rate; {[(round(a, 1), round(b, 1)) for a, b in pairs]} s")
    assert healthy / faulty >= 0.3
