import pytest

from bridge_data.errors import ConfigError
from bridge_data.storage.urls import is_remote, split_url


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket/a/b.tar", ("s3://bucket", "a/b.tar")),
        ("s3://bucket", ("s3://bucket", "")),
        ("gs://bucket/a/", ("gs://bucket", "a")),
        ("az://container/a b", ("az://container", "a b")),
        ("msc://profile//a", ("msc://profile", "a")),
    ],
)
def test_a_url_is_a_store_and_a_key(url: str, parts: tuple[str, str]) -> None:
    assert split_url(url) == parts
    assert is_remote(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("hdfs://a/b", "hdfs://a/b: unknown kind of URL; expected a local path, or one of s3://, gs://, az://, msc://"),
        ("s3:///b", "names no bucket"),
        ("msc://", "names no profile"),
    ],
)
def test_others_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split_url(url)


def test_paths_are_local() -> None:
    assert not any(map(is_remote, ("a/b", "/a:b", "C:/a", "s3:/bucket")))
