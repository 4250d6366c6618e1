import os
from unittest import mock

import pytest

from bridge_data.errors import ConfigError, DatasetError, LogThrottle
from bridge_data.storage import object_stores
from bridge_data.storage.object_stores import (
    Denied,
    Missing,
    RequestError,
    TimeLimits,
    first_line,
    full_limit_s,
    persist,
    split_url,
)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_stores, "FIRST_WAIT_S", 1e-4)


BUSY = RequestError("busy", is_transient=True)


def failing(*errors: RequestError):
    """What fails with these errors, one after the other, and then is done."""
    return mock.Mock(side_effect=[*errors, "done"])


def test_transient_faults_pass_until_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert persist(failing(*[BUSY] * 5), "it") == "done"
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", "0.02")
    with pytest.raises(DatasetError, match=r"it: cannot be read: \d+ attempts in 0 s failed, the last one with: busy"):
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
    monkeypatch.setattr(object_stores, "log_throttle", LogThrottle())
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
        ("hdfs://a/b", "hdfs://a/b: unknown kind of URL; expected a local path, or one of s3://, gs://, az://"),
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


def test_the_first_limit_is_about_four_medians_and_the_others_rise() -> None:
    limits = TimeLimits()
    assert noted(limits, 1000, 0.03, 8) == (0.125, 0.25, 0.5, 2.0, 8.0)
    assert noted(limits, 1000, 30.0, 4) == (0.125, 0.25, 0.5, 2.0, 8.0)  # a few late ones change nothing
    assert noted(TimeLimits(), 1000, 0.04, 8)[0] == pytest.approx(2**-2.5)
    assert noted(TimeLimits(), 1000, 1e-4, 8)[0] == 1 / 32
    assert noted(TimeLimits(), 1000, 7.0, 8) == (8.0,)


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
