import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.storage import local_copy, remote
from bridge_data.storage.clients import ObstoreStore, open_store
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


def test_reads_ranges_and_whole_objects(url: str) -> None:
    assert storage.read(url, 10, 5) == CONTENT[10:15]
    assert storage.read(url, 0, len(CONTENT)) == storage.read_all(url) == CONTENT
    assert storage.read(url, 10, 0) == b""
    assert storage.size_bytes(url) == len(CONTENT)
    assert storage.read_if_there(url) == CONTENT


def test_what_is_long_is_read_in_pieces(
    url: str, proxy: FaultyProxy, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PIECE_BYTES", 100_000)
    proxy.faults.extend([503, "cut"])
    assert storage.read(url, 1, len(CONTENT) - 1) == CONTENT[1:]
    assert storage.read_all(url) == storage.read_if_there(url) == CONTENT
    assert {"bytes=1-100000", "bytes=100000-199999"} <= {header for _, _, header in proxy.requests}
    (bucket.folder / "empty").write_bytes(b"")
    assert storage.read_all(f"{bucket.url}/empty") == b""


@pytest.mark.parametrize(("start", "num_bytes"), [(len(CONTENT) - 5, 10), (len(CONTENT), 1), (10**9, 1)])
def test_a_read_beyond_the_end_is_an_error_and_not_a_short_read(url: str, start: int, num_bytes: int) -> None:
    with pytest.raises(DatasetError, match=rf"{url}: wanted bytes {start} to {start + num_bytes}.*has 262144.*trunc"):
        storage.read(url, start, num_bytes)


def test_what_is_not_there_is_said_at_once(url: str, bucket: Bucket) -> None:
    for path in (f"{url}.idx", "s3://there-is-no-such-bucket/a"):
        for action in (functools.partial(storage.read, start=0, num_bytes=1), storage.read_all, remote.info):
            with pytest.raises(DatasetError, match=f"{path}.*: no such object"):
                action(path)
    assert storage.read_if_there(f"{url}.idx") is None
    assert not storage.is_file(f"{bucket.url}/folder") and not storage.is_folder(url)
    assert storage.is_file(url) and storage.is_folder(f"{bucket.url}/folder") and storage.is_folder(bucket.url)
    assert not storage.is_folder("s3://there-is-no-such-bucket/a")


def test_objects_are_listed_with_their_sizes(url: str, bucket: Bucket) -> None:
    (bucket.folder / "folder" / "deeper").mkdir()
    (bucket.folder / "folder" / "deeper" / "b").write_bytes(b"bb")
    (bucket.folder / "folder2").mkdir()
    (bucket.folder / "folder2" / "c").write_bytes(b"c")
    assert storage.list_sizes(f"{bucket.url}/folder") == {"deeper/b": 2, "file.tar": len(CONTENT)}
    assert len(storage.list_sizes(bucket.url)) == 3


def test_wrong_credentials_are_said_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    for action in (lambda: storage.read(url, 0, 1), lambda: storage.is_folder(url), lambda: storage.is_file(url)):
        with pytest.raises(DatasetError, match=rf"{url}.*access denied. Check the credentials"):
            action()


def test_http_must_be_allowed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(DatasetError, match="AWS_ALLOW_HTTP=true"):
        storage.read(url, 0, 1)


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


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "trickle"])
def test_where_one_request_of_ten_gets_no_answer_reading_is_half_as_fast_at_least(
    url: str, proxy: FaultyProxy, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read after the other from a store with a latency: requests, and not the cores, take the time."""
    monkeypatch.delenv("AWS_TIMEOUT")
    proxy.latency_s, proxy.shared_fault = 0.05, fault

    def seconds(share: float) -> float:
        proxy.share = share
        start = time.perf_counter()
        for number in range(60):
            assert storage.read(url, number, 1000) == CONTENT[number : number + 1000]
        return time.perf_counter() - start

    seconds(0.0)
    pairs = [(seconds(0.0), seconds(0.1)) for _ in range(2)]
    ratio = sum(healthy for healthy, _ in pairs) / sum(faulty for _, faulty in pairs)
    print(f"{fault}: {ratio:.2f} of the healthy rate; {pairs}")
    assert ratio >= 0.5


@pytest.mark.parametrize("fault", ["hang", "trickle"])
def test_a_store_that_never_answers_is_an_error_after_a_bounded_time(
    url: str, proxy: FaultyProxy, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_TIMEOUT")
    monkeypatch.setattr("bridge_data.storage.object_stores.FULL_S", 0.5)
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", "1")
    proxy.shared_fault, proxy.share = fault, 1.0
    start = time.monotonic()
    with pytest.raises(DatasetError, match=r"bytes 5 to 105: .* [23] attempts in [12] s .* no whole answer"):
        storage.read(url, 5, 100)
    assert time.monotonic() - start < 5


def test_a_client_that_is_never_in_time_is_not_asked_again(
    url: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose credentials take longer to get."""
    monkeypatch.delenv("AWS_TIMEOUT")
    monkeypatch.setattr("bridge_data.storage.clients._LATE_AT_FIRST", 3)
    monkeypatch.setattr("bridge_data.storage.object_stores.FULL_S", 2.0)
    proxy.faults.extend(["hang", 503] * 3)
    for _ in range(6):
        assert storage.read(url, 0, 10) == CONTENT[:10]
    store, _ = open_store(url)
    assert isinstance(store, ObstoreStore)
    assert store._clients[0.5].is_useless and not store._clients[2.0].is_useless


def test_the_environment_may_set_another_time(url: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_TIMEOUT", "200ms")
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", "0")
    proxy.faults.append("hang")
    with pytest.raises(DatasetError, match="1 attempts in 0 s"):
        storage.read(url, 5, 100)


def test_a_fault_that_does_not_pass_is_an_error_in_the_end(
    url: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", "0.3")
    proxy.faults.extend([503] * 100)
    with pytest.raises(DatasetError, match=rf"{url}: bytes 5 to 7: .* \d attempts in \d+ s.*503.*BRIDGE_DATA_RETRY_S"):
        storage.read(url, 5, 2)
    assert 2 <= len(proxy.requests) <= 8


def test_a_whole_object_for_a_range_is_refused(url: str, proxy: FaultyProxy) -> None:
    proxy.faults.append("whole")
    with pytest.raises(DatasetError, match="answers a range with the whole object"):
        storage.read(url, 5, 2)


def test_a_server_that_is_gone_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", "0")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(DatasetError, match=rf"{url}.*1 attempts.*resume the run"):
        storage.read(url, 5, 2)


def test_what_was_announced_is_read_from_memory(url: str, proxy: FaultyProxy) -> None:
    storage.prefetch([(url, 0, 1000), (url, 2000, 1000)])
    assert storage.read(url, 2000, 1000) == CONTENT[2000:3000]
    assert storage.read(url, 0, 1000) == CONTENT[:1000]
    assert [header for _, _, header in proxy.requests] == ["bytes=0-2999"]
    assert storage.size_bytes(url) == len(CONTENT)  # the answer told
    assert len(proxy.requests) == 1


def test_a_failed_announcement_is_no_error(url: str, proxy: FaultyProxy) -> None:
    proxy.faults.append(503)
    storage.prefetch([(url, 0, 1000)])
    storage.prefetch([(f"{url}.idx", 0, 1000)])
    assert storage.read(url, 0, 1000) == CONTENT[:1000]
    with pytest.raises(DatasetError, match="no such object"):
        storage.read(f"{url}.idx", 0, 1000)


def test_announcing_local_ranges_does_nothing(tmp_path: Path) -> None:
    known = remote._known.ahead
    before = dict(known._blocks)
    storage.prefetch([(tmp_path / "nowhere", 0, 10)])
    assert known._blocks == before


def test_a_forked_child_is_told_that_clients_do_not_survive(url: str) -> None:
    assert storage.read(url, 0, 3) == CONTENT[:3]
    storage.prefetch([(url, 0, 1000)])
    child = os.fork()
    if child == 0:
        try:
            storage.read(url, 0, 3)
        except ConfigError as error:
            os._exit(0 if "does not survive" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert storage.read(url, 0, 1000) == CONTENT[:1000]


COPY = "import sys; from bridge_data.storage import local_copy; print(local_copy(sys.argv[1]))"


def test_a_copy_is_made_once_and_anew_when_the_object_changes(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PIECE_BYTES", 1000)
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


def test_what_is_local_is_its_own_copy(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    assert local_copy(tmp_path / "a") == tmp_path / "a"
    assert local_copy(tmp_path / "b") is None


def test_of_nothing_there_is_no_copy(bucket: Bucket) -> None:
    assert local_copy(f"{bucket.url}/nothing") is None


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


def test_a_cache_that_cannot_be_written_is_named(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bucket.folder / "index").write_bytes(b"x")
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set BRIDGE_DATA_CACHE to a folder"):
        local_copy(f"{bucket.url}/index")


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRIDGE_DATA_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert remote.cache_folder() == Path("/home/someone/.cache/bridge_data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert remote.cache_folder() == Path("/caches/bridge_data")
    monkeypatch.setenv("BRIDGE_DATA_CACHE", "/fast")
    assert remote.cache_folder() == Path("/fast")
