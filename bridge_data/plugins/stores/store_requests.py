"""Object stores: their URLs, the requests of a client, how requests fail, their time limits, and retries.

Reads a URL such as `s3://bucket/folder/file`, or an action that raises a `RequestError` when it fails; how long the
last successful requests took. Returns the store and the key that the URL names; the result of the action; the time
limits for the attempts at the next request: 4, 8, 16, 64 ... times their median, up to `full_limit_s`. Raises a
`DatasetError` that names the object, the number of attempts and how to fix it.

Missing objects and denied access are reported at once; transient faults are retried for a bounded time, at growing
intervals with jitter, so that a thousand readers do not retry together. A read ends in bounded time, even if the store
is silent or only trickles bytes; a lost answer costs a few times the usual answer; and two requests for the same bytes
are never open at the same time, so a slow store gets no double load.

Limits are rounded: an obstore client has one limit for all its requests, so rounding keeps clients few.
"""

import collections
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from bridge_data.counts import COUNTS
from bridge_data.errors import ConfigError, DatasetError, log_throttle
from bridge_data.storage.store import Version

logger = logging.getLogger("bridge_data")

RETRY_VARIABLE = "BRIDGE_DATA_RETRY_S"

RETRY_S = 30.0
"""For how long a request that fails for a transient reason is retried; `RETRY_VARIABLE` overrides it.

An attempt at a read of up to 4 MB takes 14 s at most (see `TimeLimits`). With one prefetch attempt and the last
attempt, that is 58 s, less than the loader's `watchdog_timeout_seconds`: so the error names what it waited for."""

MAX_OPEN = 128
"""Requests of a process that are open at a time, at most."""

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 10.0
_PASSING_STATUS = frozenset({408, 425, 429})
T = TypeVar("T")
Content: TypeAlias = bytes | memoryview
_VARYING = re.compile(r"\S*[/\d]\S*")
"""The variable parts in messages of the same fault: numbers, times, URLs."""

STATUS = re.compile(r"status[ _]code: (\d{3})")
"""Where clients have the status of an answer in their messages."""

HUB = "hf://datasets/"
"""How URLs of data sets on the Hugging Face hub start."""

_IN_HUB = re.compile(rf"(?P<base>{HUB}[^/@]+/[^/@]+(?:@(?:refs/(?:convert/[^/]+|pr/\d+)|[^/]+))?)(?:/(?P<key>.*))?")


def split_url(url: str) -> tuple[str, str]:
    """(`s3://bucket`, `folder/file`) of `s3://bucket/folder/file`; of the hub, (`hf://datasets/OWNER/NAME@REVISION`,
    `folder/file`).

    Raises:
        ConfigError: for another kind of URL, or one without a bucket.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme == "hf":
        match = _IN_HUB.fullmatch(url)
        if match is None:
            raise ConfigError(f"{url}: names no data set; expected {HUB}OWNER/NAME[@REVISION]/PATH")
        return match["base"], (match["key"] or "").strip("/")
    if not bucket:
        raise ConfigError(
            f"{url}: names no {'profile' if scheme == 'msc' else 'bucket'}; expected {scheme}://NAME/PATH"
        )
    return f"{scheme}://{bucket}", key.strip("/")


class Bucket(Protocol):
    """The objects of one bucket, container, profile or data set. It may be used by several threads; any method raises
    `RequestError`."""

    def read(self, key: str, start: int, num_bytes: int) -> tuple[Content, Version | None]:
        """(`num_bytes` bytes from `start`, or fewer if the object ends earlier; size and version of the
        object, if the answer has them)."""

    def read_all(self, key: str, at_most: int) -> bytes | int:
        """The whole object; if it is larger than `at_most` bytes and that is known before reading it, its size."""

    def info(self, key: str) -> Version:
        """Size and version of an object."""

    def list(self, folder: str) -> Iterator[tuple[str, Version]]:
        """(path below `folder`, size and version) of every object below it."""

    def write(self, key: str, content: bytes | Path) -> str | None:
        """Write an object, whole or not at all: these bytes, or the content of a file. Its version, if it is known."""

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""


def first_line(error: BaseException, limit: int = 600) -> str:
    """The message of an error, without the debugging hints that follow."""
    text = str(error).split("\n\n", 1)[0].replace("\n", " ").strip() or type(error).__name__
    return text if len(text) <= limit else f"{text[:limit]} ..."


class RequestError(Exception):
    """A request failed. `is_transient` says whether a retry may succeed."""

    def __init__(self, message: str, *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.is_transient = is_transient


class Missing(RequestError):
    """There is no such object."""


_CREDENTIALS = (
    "Check the credentials, the endpoint and the region in the environment (AWS_ACCESS_KEY_ID and so on; of msc:// the "
    "profile in MSC_CONFIG)."
)


class Denied(RequestError):
    """The credentials are missing or insufficient; `fix` says what to do."""

    def __init__(self, message: str, fix: str = _CREDENTIALS) -> None:
        super().__init__(message)
        self.fix = fix


def is_transient_status(status: int) -> bool:
    """Whether a request that was answered by this HTTP status may succeed when retried; 0 means no answer."""
    return not 400 <= status < 500 or status in _PASSING_STATUS


def persist(action: Callable[[], T], what: str, done: str = "read") -> T:
    """The result of `action`, retried while it fails for a transient reason; in messages, `what` is `done`.

    There is always a second attempt, even after a long first one, unless the time for retries is 0.

    Raises:
        DatasetError: if all attempts fail.
    """
    start, wait_s, attempts = time.monotonic(), FIRST_WAIT_S, 0
    while True:
        try:
            attempts += 1
            return action()
        except RequestError as fault:
            import random  # imported here: slow (hashlib), and only needed after a fault

            nap_s = wait_s * random.uniform(0.5, 1.0)
            took_s, allowed_s = time.monotonic() - start, retry_seconds()
            over = took_s + nap_s > allowed_s and (attempts > 1 or not allowed_s)
            if not fault.is_transient or over:
                raise _failure(what, fault, attempts, took_s, done) from None
            _tell(what, fault, attempts)
        COUNTS.retries += 1
        time.sleep(nap_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def _tell(what: str, fault: RequestError, attempts: int) -> None:
    """Log a retry: the first of each kind of fault in a bucket, and then now and then."""
    bucket = "/".join(what.split("/", 3)[:3])
    number = log_throttle.count((bucket, type(fault), _VARYING.sub("", str(fault))))
    if number:
        so_far = "" if number == 1 else f"; failed so {number} times so far in process {os.getpid()}"
        logger.warning("%s: attempt %d failed, and is made again: %s%s", what, attempts, fault, so_far)


def retry_seconds() -> float:
    """For how long to retry.

    Raises:
        ConfigError: if the environment variable is not a number.
    """
    text = os.environ.get(RETRY_VARIABLE)
    try:
        seconds = RETRY_S if text is None else float(text)
        if seconds >= 0:
            return seconds
    except ValueError:
        pass
    raise ConfigError(f"{RETRY_VARIABLE}={text!r}: expected a number of seconds, 0 or more")


def _failure(what: str, fault: RequestError, attempts: int, took_s: float, done: str) -> DatasetError:
    if isinstance(fault, Missing):
        return DatasetError(f"{what}: no such object. Check the URL, or copy it there. ({fault})")
    if isinstance(fault, Denied):
        return DatasetError(f"{what}: access denied. {fault.fix} ({fault})")
    if not fault.is_transient:
        return DatasetError(f"{what}: cannot be {done}: {fault}")
    return DatasetError(
        f"{what}: cannot be {done}: {attempts} attempts in {took_s:.0f} s failed, the last one with: {fault}. Check "
        f"that the store can be reached, then resume the run; {RETRY_VARIABLE} sets for how many seconds to retry."
    )


LATE = 4.0
"""How many medians a request may take, before rounding (then 3.4 to 4.8). The second and third attempt may take twice
as long as the one before, each later one this many times as long. If one request of ten gets no answer, then of a
thousand reads ten wait for a third attempt, and one for a fourth."""

UNKNOWN_S = 0.5
"""How long the first attempt may take while no median is known, as at the start of each worker."""

UNKNOWN_BYTES_PER_S = 1_000_000
"""The minimum rate for larger content then."""

SHORTEST_S = 1 / 32
"""No limit is shorter: below this, the machine itself would be the cause of the delay."""

FULL_S = 8.0
"""The last time limit of a request for up to 4 MB, in seconds."""

LONGEST_S = 32.0

SLOWEST_BYTES_PER_S = 500_000
"""The minimum rate for larger content."""

FEWEST = 4
"""Successful requests of about one size needed for a median; it is updated after the same number. Until then the limits
of other sizes apply."""

_REMEMBERED = 64


class TimeLimits:
    """The time limits of one store, by request size. Thread-safe."""

    def __init__(self) -> None:
        self._sizes: dict[int, _OfSize] = {}

    def of(self, num_bytes: int) -> tuple[float, ...]:
        """The limits of consecutive attempts, in seconds."""
        own = self._of_size(num_bytes)
        first_s = own.first_s
        if first_s is None:
            known = [other.first_s for other in list(self._sizes.values()) if other.first_s is not None]
            first_s = max(known, default=own.unknown_s)
        return _rising(first_s, own.full_s)

    def note(self, num_bytes: int, took_s: float) -> None:
        """Record the duration of a successful request."""
        self._of_size(num_bytes).note(took_s)

    def _of_size(self, num_bytes: int) -> "_OfSize":
        size = max(num_bytes, 1 << 14).bit_length() + 1 >> 1  # to a factor of four; below 16 KiB all are alike
        found = self._sizes.get(size)
        if found is None:
            found = self._sizes.setdefault(size, _OfSize(1 << 2 * size))
        return found


class _OfSize:
    def __init__(self, num_bytes: int) -> None:
        self.full_s = full_limit_s(num_bytes)
        self.unknown_s = min(self.full_s / LATE, max(UNKNOWN_S, _rounded(num_bytes / UNKNOWN_BYTES_PER_S)))
        """The limit of the first attempt if no size has a median."""
        self.first_s: float | None = None
        """The limit of the first attempt; None if too few have succeeded."""
        self._took_s: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)
        self._num_noted = 0

    def note(self, took_s: float) -> None:
        self._took_s.append(took_s)
        self._num_noted += 1
        if self._num_noted % FEWEST == 0:
            median = sorted(self._took_s)[len(self._took_s) // 2]
            self.first_s = max(SHORTEST_S, _rounded(LATE * median))


def full_limit_s(num_bytes: int) -> float:
    """The maximum time limit, in seconds, for a request of this many bytes, however slow the others are."""
    return min(LONGEST_S, max(FULL_S, _rounded(num_bytes / SLOWEST_BYTES_PER_S)))


def _rising(first_s: float, last_s: float) -> tuple[float, ...]:
    limits: list[float] = []
    while first_s < last_s / 2:  # so all of them together take less than twice as long as the last
        limits.append(first_s)
        first_s *= 2 if len(limits) < 3 else LATE
    return (*limits, last_s)


def _rounded(seconds: float) -> float:
    """To the nearest power of the square root of two."""
    return float(2.0 ** (round(2 * math.log2(max(seconds, 1e-6))) / 2))
