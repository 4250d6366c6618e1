import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import obstore
import pytest

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError, LogThrottle
from bridge_data.plugins.stores import store_requests
from bridge_data.plugins.stores.clients import ObstoreBucket, open_bucket
from bridge_data.plugins.stores.store_requests import (
    Denied,
    Missing,
    RequestError,
    TimeLimits,
    first_line,
    full_limit_s,
    persist,
    split_url,
)
from tests.object_store import Bucket


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_requests, "FIRST_WAIT_S", 1e-4)


BUSY = RequestError("busy", is_transient=True)


def failing(*errors: RequestError):
    """What fails with these errors, one after the other, and then is done."""
    return mock.Mock(side_effect=[*errors, "done"])


def test_transient_faults_pass_until_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert persist(failing(*[BUSY] * 5), "it") == "done"
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", "0.02")
    with pytest.raises(DatasetError, match=r"it: cannot be read: \d+ attempts in \d s failed, the last one with: busy"):
        persist(failing(*[BUSY] * 1000), "it")
    for text in ("soon", "-1", ""):
        monkeypatch.setenv("BRIDGE_DATA_RETRY_S", text)
        with pytest.raises(ConfigError, match="expected a number of seconds"):
            persist(failing(BUSY), "it")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Missing("404"), r"it: no such object.*\(404\)"),
        (Denied("403"), r"it: access denied.*\(403\)"),
        (RequestError("odd"), "it: cannot be read: odd"),
    ],
)
def test_others_are_said_at_once(fault: RequestError, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        persist(failing(fault), "it")


def test_that_it_is_tried_again_is_told_once_for_each_kind_of_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_requests, "log_throttle", LogThrottle())
    for number in range(6):
        for text in (f"busy for {number} s at http://host/{number}", "gone"):
            faults = [RequestError(text, is_transient=True)] * 2
            assert persist(failing(*faults), f"s3://bucket/{number}") == "done"
    assert caplog.messages == [
        "s3://bucket/0: attempt 1 failed, and is made again: busy for 0 s at http://host/0",
        "s3://bucket/0: attempt 1 failed, and is made again: gone",
        "s3://bucket/4: attempt 2 failed, and is made again: busy for 4 s at http://host/4; failed so 10 times so far "
        f"in process {os.getpid()}",
        f"s3://bucket/4: attempt 2 failed, and is made again: gone; failed so 10 times so far in process {os.getpid()}",
    ]


def test_of_an_error_what_says_something_is_kept() -> None:
    assert first_line(ValueError("it is\nwrong\n\nDebug source:\nGeneric {}")) == "it is wrong"
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("x" * 1000), limit=5) == "xxxxx ..."


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket/a/b.tar", ("s3://bucket", "a/b.tar")),
        ("s3://bucket", ("s3://bucket", "")),
        ("gs://bucket/a/", ("gs://bucket", "a")),
        ("az://container/a b", ("az://container", "a b")),
        ("msc://profile//a", ("msc://profile", "a")),
        ("hf://datasets/us/pets", ("hf://datasets/us/pets", "")),
        ("hf://datasets/us/pets@v1/a/b", ("hf://datasets/us/pets@v1", "a/b")),
        ("hf://datasets/us/pets@refs/pr/3/a", ("hf://datasets/us/pets@refs/pr/3", "a")),
        ("hf://datasets/us/pets/a@b/c", ("hf://datasets/us/pets", "a@b/c")),
    ],
)
def test_a_url_is_a_store_and_a_key(url: str, parts: tuple[str, str]) -> None:
    assert split_url(url) == parts


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3:///b", "names no bucket"),
        ("msc://", "names no profile"),
        ("hf://us/pets", "names no data set; expected hf://datasets/OWNER/NAME"),
        ("hf://datasets/pets", "names no data set"),
    ],
)
def test_others_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split_url(url)


def noted(limits: TimeLimits, num_bytes: int, took_s: float, times: int) -> tuple[float, ...]:
    for _ in range(times):
        limits.note(num_bytes, took_s)
    return limits.of(num_bytes)


def test_without_a_median_the_limits_are_long_and_longer_for_large_requests() -> None:
    limits = TimeLimits()
    assert limits.of(1000) == limits.of((1 << 18) - 1) == noted(limits, 1000, 0.01, 3) == (0.5, 1.0, 2.0, 8.0)
    assert [TimeLimits().of(1 << power)[0] for power in (18, 19, 20, 21, 22, 40)] == [1.0, 1.0, 2.0, 2.0, 8.0, 8.0]
    for num_bytes, seconds in ((0, 8), (4_000_000, 8), (8_000_000, 16), (16 << 20, 32), (1 << 40, 32)):
        assert full_limit_s(num_bytes) == seconds <= limits.of(num_bytes)[-1] <= 32


def test_the_limits_follow_a_store_that_becomes_slow_and_fast_again() -> None:
    limits = TimeLimits()
    assert noted(limits, 1000, 0.03, 64)[0] == 0.125
    assert noted(limits, 1000, 0.3, 40)[0] == pytest.approx(2**0.5)
    assert noted(limits, 1000, 0.03, 40)[0] == 0.125


def test_sizes_have_their_own_limits_or_else_the_longest_of_the_others() -> None:
    limits = TimeLimits()
    noted(limits, 1 << 20, 0.2, 8)
    assert limits.of(1 << 20)[0] == limits.of(1000)[0] == limits.of(0)[0] == pytest.approx(2**-0.5)
    assert noted(limits, 1000, 0.03, 8)[0] == limits.of(0)[0] == 0.125
    assert limits.of(1 << 20)[0] == limits.of(1 << 24)[0] == pytest.approx(2**-0.5)


@pytest.mark.parametrize("took_s", [0.001 * 1.1**power for power in range(90)])
def test_where_one_request_of_ten_gets_no_answer_a_read_takes_less_than_twice_as_long(took_s: float) -> None:
    """And all attempts together take less than twice the last."""
    limits = noted(TimeLimits(), 1000, took_s, 8)
    assert limits[-1] == 8.0 and sum(limits) < 14 and list(limits) == sorted(limits)
    waits = sum(limit_s * 0.1 ** (number + 1) for number, limit_s in enumerate(limits[:3]))
    if 0.01 < took_s < 0.5:
        assert 3.3 * took_s < limits[0] <= 4.8 * took_s or limits[0] == 1 / 32
        assert took_s + waits < 2 * took_s


@pytest.mark.parametrize(
    ("url", "missing", "told"),
    [
        ("s3://some/a", "obstore", "the package obstore, which is not installed: pip install obstore"),
        (
            "msc://some/a",
            "multistorageclient",
            r"the package multistorageclient, .*pip install 'multi-storage-client\[boto3\]'",
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
        open_bucket(url)


def test_threads_share_a_client(bucket: Bucket) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = {id(store) for store, _ in threads.map(open_bucket, [f"{bucket.url}/a"] * 8)}
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
def store(bucket: Bucket) -> ObstoreBucket:
    (bucket.folder / "a").write_bytes(b"abc")
    return ObstoreBucket(bucket.url, obstore)


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
def test_faults_are_told_apart(store: ObstoreBucket, text: str, kind: type[RequestError], is_transient: bool) -> None:
    fault = store._fault(obstore.exceptions.GenericError(text))
    assert (type(fault), fault.is_transient) == (kind, is_transient)
    assert "<" not in str(fault)


def test_versions_change_with_the_object_and_credentials_that_were_there_come_back(store: ObstoreBucket) -> None:
    content, found = store.read("a", 1, 2)
    assert bytes(content) == b"bc" and found == store.info("a") and found.num_bytes == 3
    obstore.put(store._bucket, "a", b"abcd")
    assert store.info("a") != found
    assert store._fault(obstore.exceptions.GenericError(NO_CREDENTIALS)).is_transient
