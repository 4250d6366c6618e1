import subprocess
import sys
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from bridge_data.storage import copies, local_copy, remote
from tests.object_store import Bucket, Server, faulty_proxy

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
        places = {child.communicate(timeout=120)[0].strip() for child in children}
        assert [child.returncode for child in children] == [0, 0, 0]
        assert len(places) == 1 and Path(places.pop()).read_bytes() == b"x" * 100_000
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
    assert copies.cache_folder() == Path("/home/someone/.cache/bridge_data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert copies.cache_folder() == Path("/caches/bridge_data")
    monkeypatch.setenv("BRIDGE_DATA_CACHE", "/fast")
    assert copies.cache_folder() == Path("/fast")
