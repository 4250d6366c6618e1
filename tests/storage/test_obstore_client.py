import obstore
import pytest

from bridge_data.storage.obstore_client import ObstoreStore
from bridge_data.storage.retries import Denied, Missing, RequestError
from tests.object_store import Bucket

NO_CREDENTIALS = "Error performing PUT http://169.254.169.254/latest/api/token in 1 s - HTTP error"


@pytest.fixture
def store(bucket: Bucket) -> ObstoreStore:
    (bucket.folder / "a").write_bytes(b"abc")
    return ObstoreStore(bucket.url, obstore)


@pytest.mark.parametrize(
    ("text", "kind", "passing"),
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
def test_faults_are_told_apart(store: ObstoreStore, text: str, kind: type[RequestError], passing: bool) -> None:
    fault = store._fault(obstore.exceptions.GenericError(text))
    assert (type(fault), fault.passing) == (kind, passing)
    assert "<" not in str(fault)


def test_credentials_that_were_there_come_back(store: ObstoreStore) -> None:
    content, size = store.read("a", 1, 2)
    assert (bytes(content), size) == (b"bc", 3)
    assert store._fault(obstore.exceptions.GenericError(NO_CREDENTIALS)).passing


def test_versions_change_with_the_object(store: ObstoreStore, bucket: Bucket) -> None:
    before = store.info("a")
    assert store.info("a") == before
    obstore.put(store._bucket, "a", b"abcd")
    assert store.info("a") != before
