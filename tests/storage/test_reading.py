from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.storage import RemotePath
from tests.object_store import Bucket


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, bucket: Bucket, tmp_path: Path) -> Path | RemotePath:
    """A folder with a file, on the disk and in a store."""
    folder = tmp_path / "a" if request.param == "disk" else bucket.folder / "a"
    folder.mkdir()
    (folder / "file").write_bytes(b"0123456789")
    return folder if request.param == "disk" else RemotePath(f"{bucket.url}/a")


def test_disks_and_stores_are_read_alike(place: Path | RemotePath) -> None:
    file = place / "file"
    for path in (file, str(file)):
        assert storage.read(path, 2, 3) == b"234"
        assert storage.read_all(path) == storage.read_if_there(path) == b"0123456789"
        assert storage.size_bytes(path) == 10
        storage.prefetch([(path, *one) for one in [(2, 5)]])
        assert storage.read(path, 3, 4) == b"3456"
    assert storage.is_file(file) and not storage.is_file(place)
    assert storage.is_folder(place) and not storage.is_folder(file)
    assert not storage.is_file(place / "other") and not storage.is_folder(place / "other")
    assert storage.read_if_there(place / "other") is None
    with pytest.raises(DatasetError, match=f"{place}/other"):
        storage.read_all(place / "other")


def test_other_urls_are_refused() -> None:
    for action in (storage.read_all, storage.size_bytes, storage.is_file, storage.is_folder, storage.read_if_there):
        with pytest.raises(ConfigError, match="ftp://a/b: unknown kind of URL"):
            action("ftp://a/b")


def test_what_one_request_fetches_is_said_of_objects_alone(tmp_path: Path) -> None:
    far, near = "s3://a/file", str(tmp_path / "file")
    places = [(far, 5 << 20, 10), (near, 0, 10), (RemotePath(far), 20, 10), (far, 0, 0), (far, 0, 10)]
    assert storage.by_request(places) == [[(far, 5 << 20, 10)], [(far, 0, 10), (far, 20, 10)]]
    assert storage.by_request([(near, 0, 10)]) == []
