import os

import pytest

from bridge_data.errors import ConfigError, DatasetError, Repeats
from bridge_data.storage import object_stores
from bridge_data.storage.object_stores import Denied, Missing, RequestError, first_line, persist, split_url


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_stores, "FIRST_WAIT_S", 1e-4)


def failing(*errors: RequestError):
    left = list(errors)

    def action() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return action


def test_transient_faults_pass() -> None:
    assert persist(failing(*[RequestError("busy", is_transient=True)] * 5), "it") == "done"


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


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", "0.02")
    with pytest.raises(DatasetError, match=r"it: cannot be read: \d+ attempts in 0 s failed, the last one with: busy"):
        persist(failing(*[RequestError("busy", is_transient=True)] * 1000), "it")


def test_that_it_is_tried_again_is_told_once_for_each_kind_of_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(object_stores, "repeats", Repeats())
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


@pytest.mark.parametrize("text", ["soon", "-1", ""])
def test_patience_is_a_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", text)
    with pytest.raises(ConfigError, match="expected a number of seconds"):
        persist(failing(RequestError("busy", is_transient=True)), "it")


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
    ],
)
def test_a_url_is_a_store_and_a_key(url: str, parts: tuple[str, str]) -> None:
    assert split_url(url) == parts


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
