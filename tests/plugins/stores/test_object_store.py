import functools
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.stores import object_store
from bridge_data.plugins.stores.clients import ObstoreBucket, open_bucket
from bridge_data.storage import copies, local_copy
from tests.object_store import Bucket, FaultyProxy, Server, faulty_proxy

CONTENT = bytes(range(256)) * 1024


@pytest.fixture
def url(bucket: Bucket) -> str:
    (bucket.folder / "folder").mkdir()
    (bucket.folder / "folder" / "file.tar").write_bytes(CONTENT)
    return f"{bucket.url}/folder/file.tar"


@pytest.fixture
def proxy(s3_server: Server, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy that the environment leads to; nothing has been read of `bucket` through another one."""
    with faulty_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        yield proxy


def test_what_is_long_is_read_in_pieces(
    url: str, proxy: FaultyProxy, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "PIECE_BYTES", 100_000)
    proxy.faults.extend([503, "cut"])
    assert storage.read(url, 1, len(CONTENT) - 1) == CONTENT[1:]
    assert storage.read_all(url) == storage.read_if_there(url) == CONTENT
    assert {"bytes=1-100000", "bytes=100000-199999"} <= {header for _, _, header in proxy.requests}
    (bucket.folder / "empty").write_bytes(b"")
    assert storage.read_all(f"{bucket.url}/empty") == b""


def test_what_is_there_is_listed_and_what_is_not_said_at_once(url: str, bucket: Bucket) -> None:
    for path in (f"{url}.idx", "s3://there-is-no-such-bucket/a"):
        for action in (functools.partial(storage.read, start=0, num_bytes=1), storage.read_all, storage.version):
            with pytest.raises(DatasetError, match=f"{path}.*: no such object"):
                action(path)
    assert storage.is_folder(bucket.url) and not storage.is_folder("s3://there-is-no-such-bucket/a")
    for name in ("folder/deeper/b", "folder2/c"):
        (bucket.folder / name).parent.mkdir()
        (bucket.folder / name).write_bytes(b"bb")
    assert storage.list_sizes(f"{bucket.url}/folder") == {"deeper/b": 2, "file.tar": len(CONTENT)}
    assert len(storage.list_sizes(bucket.url)) == 3


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("AWS_SECRET_ACCESS_KEY", "another", "access denied. Check the credentials"),
        ("AWS_ALLOW_HTTP", "false", "AWS_ALLOW_HTTP=true"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1", "1 attempts.*resume the run"),
    ],
)
def test_wrong_settings_are_said_at_once(
    url: str, name: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", "0")
    monkeypatch.setenv(name, value)
    for action in (lambda: storage.read(url, 0, 1), lambda: storage.is_folder(url), lambda: storage.is_file(url)):
        with pytest.raises(DatasetError, match=rf"{url}.*{told}"):
            action()


@pytest.mark.parametrize("faults", [[500, 503, 429], ["cut", 503, "cut"]])
def test_transient_faults_are_tried_again(url: str, proxy: FaultyProxy, faults: list[int | str]) -> None:
    proxy.faults.extend(faults)
    assert storage.read(url, 1000, 100_000) == CONTENT[1000:101_000]
    assert not proxy.faults
    assert len(proxy.requests) == 4


@pytest.mark.parametrize("fault", ["hang", "trickle"])
def test_a_request_that_gets_no_answer_in_time_is_made_anew(
    url: str, proxy: FaultyProxy, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_TIMEOUT")
    for _ in range(16):
        storage.read(url, 0, 1000)
    proxy.faults.extend([fault, fault])
    start = time.monotonic()
    assert storage.read(url, 1000, 1000) == CONTENT[1000:2000]
    assert time.monotonic() - start < 8
    assert not proxy.faults and len(proxy.requests) >= 19


@pytest.mark.parametrize("fault", ["hang", "trickle"])
def test_a_store_that_never_answers_is_an_error_after_a_bounded_time(
    url: str, proxy: FaultyProxy, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_TIMEOUT")
    monkeypatch.setattr("bridge_data.plugins.stores.store_requests.FULL_S", 0.5)
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", "1")
    proxy.shared_fault, proxy.share = fault, 1.0
    start = time.monotonic()
    with pytest.raises(DatasetError, match=r"bytes 5 to 105: .* \d attempts in \d+ s .* no whole answer"):
        storage.read(url, 5, 100)
    assert time.monotonic() - start < 8


def test_a_fault_that_does_not_pass_is_an_error_in_the_end_and_a_whole_object_for_a_range_at_once(
    url: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", "0.3")
    proxy.faults.append("whole")
    with pytest.raises(DatasetError, match="answers a range with the whole object"):
        storage.read(url, 5, 2)
    proxy.faults.extend([503] * 100)
    with pytest.raises(DatasetError, match=rf"{url}: bytes 5 to 7: .* \d attempts in \d+ s.*503.*BRIDGE_DATA_RETRY_S"):
        storage.read(url, 5, 2)
    assert 2 <= len(proxy.requests) <= 9


def test_a_client_that_is_never_in_time_is_not_asked_again(
    url: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose credentials take longer to get."""
    monkeypatch.delenv("AWS_TIMEOUT")
    monkeypatch.setattr("bridge_data.plugins.stores.clients._LATE_AT_FIRST", 3)
    monkeypatch.setattr("bridge_data.plugins.stores.store_requests.FULL_S", 2.0)
    proxy.faults.extend(["hang", 503] * 3)
    for _ in range(6):
        assert storage.read(url, 0, 10) == CONTENT[:10]
    store, _ = open_bucket(url)
    assert isinstance(store, ObstoreBucket)
    assert store._clients[0.5].is_useless and not store._clients[2.0].is_useless


def test_what_was_announced_is_read_from_memory_and_a_failed_announcement_is_no_error(
    url: str, proxy: FaultyProxy
) -> None:
    storage.prefetch([(url, 0, 1000), (url, 2000, 1000)])
    assert storage.read(url, 2000, 1000) == CONTENT[2000:3000]
    assert storage.read(url, 0, 1000) == CONTENT[:1000]
    assert storage.size_bytes(url) == len(CONTENT)  # the answer told
    assert [header for _, _, header in proxy.requests] == ["bytes=0-2999"]
    proxy.faults.append(503)
    storage.prefetch([(url, 5000, 1000)])
    storage.prefetch([(f"{url}.idx", 0, 1000)])
    assert storage.read(url, 5000, 1000) == CONTENT[5000:6000]
    with pytest.raises(DatasetError, match="no such object"):
        storage.read(f"{url}.idx", 0, 1000)


def test_a_forked_child_is_told_that_clients_do_not_survive(url: str) -> None:
    assert storage.read(url, 0, 3) == CONTENT[:3]
    storage.prefetch([(url, 0, 1000)])
    with multiprocessing.get_context("fork").Pool(1) as child, pytest.raises(ConfigError, match="does not survive"):
        child.apply(storage.read, (url, 0, 3))
    assert storage.read(url, 0, 1000) == CONTENT[:1000]


COPY = "import sys; from bridge_data.storage import local_copy; print(local_copy(sys.argv[1]))"


def test_a_copy_is_made_once_and_anew_when_the_object_changes(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "PIECE_BYTES", 1000)
    content = bytes(range(256)) * 50
    (bucket.folder / "index").write_bytes(content)
    first = local_copy(f"{bucket.url}/index")
    assert first is not None and first.read_bytes() == content
    stamp = first.stat().st_ino
    assert local_copy(f"{bucket.url}/index") == first and first.stat().st_ino == stamp
    with open(first, "rb") as held:
        (bucket.folder / "index").write_bytes(b"new")
        second = local_copy(f"{bucket.url}/index")
        assert second is not None and second.read_bytes() == b"new"
        assert not first.exists() and held.read() == content


def test_what_is_local_is_its_own_copy_and_a_cache_that_cannot_be_written_is_named(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = bucket.folder / "index"
    index.write_bytes(b"x")
    assert (local_copy(index), local_copy(tmp_path / "b"), local_copy(f"{bucket.url}/nothing")) == (index, None, None)
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(index))
    with pytest.raises(ConfigError, match="set BRIDGE_DATA_CACHE to a folder"):
        local_copy(f"{bucket.url}/index")


def test_several_processes_download_once(bucket: Bucket, s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    (bucket.folder / "index").write_bytes(b"x" * 100_000)
    with faulty_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        command = [sys.executable, "-c", COPY, f"{bucket.url}/index"]
        children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        paths = {child.communicate(timeout=120)[0].strip() for child in children}
        assert [child.returncode for child in children] == [0, 0, 0]
        assert len(paths) == 1 and Path(paths.pop()).read_bytes() == b"x" * 100_000
        assert len([method for method, _, _ in proxy.requests if method == "GET"]) == 1


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRIDGE_DATA_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value, folder in (
        ("HOME", "/home/someone", "/home/someone/.cache/bridge_data"),
        ("XDG_CACHE_HOME", "/caches", "/caches/bridge_data"),
        ("BRIDGE_DATA_CACHE", "/fast", "/fast"),
    ):
        monkeypatch.setenv(name, value)
        assert copies.cache_folder() == Path(folder)
