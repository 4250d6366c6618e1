import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.storage.clients import ObstoreStore, open_store
from bridge_data.storage.object_stores import Denied, Missing, RequestError
from tests.object_store import Bucket


@pytest.mark.parametrize(
    ("url", "missing", "told"),
    [
        ("s3://some/a", "obstore", r'package obstore: pip install "bridge-data\[s3\]"'),
        (
            "msc://some/a",
            "multistorageclient",
            r'package multistorageclient: pip install "bridge-data\[s3\]"',
        ),
        ("az://container/a", None, r"az://container: cannot be opened: .*Account must be specified"),
        ("msc://nobody/a", None, r'msc://nobody: cannot be opened: .*"nobody"'),
    ],
)
def test_what_a_client_lacks_is_named(
    url: str, missing: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=told):
        open_store(url)


def test_threads_share_a_client(bucket: Bucket) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = {id(store) for store, _ in threads.map(open_store, [f"{bucket.url}/a"] * 8)}
    assert len(found) == 1


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


@pytest.mark.processes
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
    with pytest.raises(DatasetError, match="no such object"):
        storage.read(f"{url}/b.bin", 0, 1)
    with pytest.raises(DatasetError, match=rf"wanted bytes 25590 to 25610, but the object has {len(CONTENT)}"):
        storage.read(file, 25_590, 20)


NO_CREDENTIALS = "Error performing PUT http://169.254.169.254/latest/api/token in 1 s - HTTP error"


@pytest.fixture
def store(bucket: Bucket) -> ObstoreStore:
    (bucket.folder / "a").write_bytes(b"abc")
    return ObstoreStore(bucket.url, obstore)


@pytest.mark.parametrize(
    ("text", "kind", "is_transient"),
    [
        ("HTTP error: error sending request", RequestError, True),
        (
            "Server returned non-2xx status code: 503 Slow Down: <?xml ?><Error><Code>SlowDown</Code></Error>",
            RequestError,
            True,
        ),
        ("Server returned non-2xx status code: 429 Too Many Requests", RequestError, True),
        ("Server returned non-2xx status code: 400 Bad Request", RequestError, False),
        ("Server returned non-2xx status code: 403 Forbidden", Denied, False),
        ("Server returned non-2xx status code: 404 Not Found", Missing, False),
        ("Received non-partial response when range requested", RequestError, False),
        (NO_CREDENTIALS, Denied, False),
    ],
)
def test_faults_are_told_apart(store: ObstoreStore, text: str, kind: type[RequestError], is_transient: bool) -> None:
    fault = store._fault(obstore.exceptions.GenericError(text))
    assert (type(fault), fault.is_transient) == (kind, is_transient)
    assert "<" not in str(fault)


def test_versions_change_with_the_object_and_credentials_that_were_there_come_back(store: ObstoreStore) -> None:
    content, found = store.read("a", 1, 2)
    assert bytes(content) == b"bc" and found == store.info("a") and found.num_bytes == 3
    obstore.put(store._bucket, "a", b"abcd")
    assert store.info("a") != found
    assert store._fault(obstore.exceptions.GenericError(NO_CREDENTIALS)).is_transient
