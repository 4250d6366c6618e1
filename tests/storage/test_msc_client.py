import json
import os
from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from tests.object_store import Bucket

CONTENT = bytes(range(256)) * 100


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with one file, in a profile for the disk and in one for the S3 server."""
    (bucket.folder / "sets").mkdir()
    (bucket.folder / "sets" / "a.bin").write_bytes(CONTENT)
    name = bucket.folder.name
    if request.param == "file":
        provider = {"type": "file", "options": {"base_path": str(bucket.folder)}}
    else:
        options = {"base_path": name, "endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": "us-east-1"}
        provider = {"type": "s3", "options": options}
    config = tmp_path / "msc.json"
    config.write_text(json.dumps({"profiles": {name: {"storage_provider": provider}}}))
    monkeypatch.setenv("MSC_CONFIG", str(config))
    return f"msc://{name}/sets"


def test_reads_ranges_and_whole_objects(url: str) -> None:
    file = f"{url}/a.bin"
    assert storage.read(file, 100, 50) == CONTENT[100:150]
    assert storage.read_all(file) == CONTENT
    assert storage.size_bytes(file) == len(CONTENT)
    storage.prefetch([(file, *one) for one in [(0, 10), (1000, 10)]])
    assert storage.read(file, 1000, 10) == CONTENT[1000:1010]
    assert storage.is_folder(url) and not storage.is_file(url)
    assert storage.is_file(file) and not storage.is_folder(f"{url}/b")
    assert storage.list_sizes(url) == {"a.bin": len(CONTENT)}
    assert storage.read_if_there(f"{url}/b") is None


def test_what_is_wrong_is_said_at_once(url: str) -> None:
    with pytest.raises(DatasetError, match="no such object"):
        storage.read(f"{url}/b.bin", 0, 1)
    with pytest.raises(DatasetError, match=rf"wanted bytes 25590 to 25610, but the object has {len(CONTENT)}"):
        storage.read(f"{url}/a.bin", 25_590, 20)


def test_a_profile_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r'msc://nobody: cannot be opened: .*"nobody"'):
        storage.read("msc://nobody/a", 0, 1)
