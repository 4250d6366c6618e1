"""The exceptions of this package, and the error handlers. Every message says what is wrong, where, and how to fix it.

    BridgeDataError
    ├── ConfigError          an argument, a YAML file or a combination of settings is wrong (before the first read)
    ├── DatasetError         data on disk does not match its metadata: missing, truncated, changed
    ├── SampleError          one sample could not be decoded or encoded, or is beyond a limit; counted, passed to the
    │   │                    error handler
    │   ├── FatalSampleError too many failures in a row, or a failure that is not limited to one sample: the run stops
    │   └── ForgottenSampleError a sample that was asked for is on a list of forgotten ones; counted, no failure
    ├── StateError           a saved state is damaged, or belongs to other data, settings or format version
    └── WorkerError          a worker process died, hung or could not be started; or another rank of the job failed

`SkipSample` (alias `IgnoreSample`) is not an error: user code raises it to skip a sample, and the skip is counted.
"""

import logging
import os
import shlex
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self, TypeAlias

from bridge_data.samples import SourceInfo, provenance_of

logger = logging.getLogger("bridge_data")


class BridgeDataError(Exception):
    """Base class of this package's errors."""


class ConfigError(BridgeDataError, ValueError):
    """A setting is wrong. The message names the file and line, or the argument."""

    has_location = False
    """Whether the message names file and line."""


class DatasetError(BridgeDataError):
    """A data set on disk is missing, incomplete or damaged. The message names the file, shard and key."""


class SampleError(BridgeDataError):
    """One sample failed. The message names the function that failed and the sample's key."""

    @classmethod
    def from_sample_key(cls, sample_key: str) -> Self:
        """The error that says that the sample of this key failed."""
        return cls(f"sample {sample_key} failed")

    @classmethod
    def from_sample(cls, sample: Any, message: str = "") -> Self:
        """The error that says that this sample failed, for a hook to raise.

        >>> print(SampleError.from_sample({"__key__": "0.tar/7"}, "it has no text"))
        sample 0.tar/7 failed: it has no text
        """
        return cls(f"sample {provenance_of(sample, '__key__')} failed" + (f": {message}" if message else ""))


class FatalSampleError(SampleError):
    """The failure tolerance of a hook was exceeded, or the failure is not limited to one sample."""


class ForgottenSampleError(SampleError):
    """A sample that was asked for is forgotten. Where a hook asks for it, its own sample is skipped as forgotten."""

    @classmethod
    def of(cls, name: str) -> Self:
        """The error that says that this sample is forgotten."""
        return cls(f"{name}: is forgotten (`bridge-data forget`), and not read")


class StateError(BridgeDataError):
    """A saved state cannot be restored here. The message names each difference, or the field that is damaged."""


class WorkerError(BridgeDataError):
    """A worker process failed, or another rank. The message names the worker, the lane and the sample it was working
    on, or the rank."""


def counted(number: int, noun: str) -> str:
    """`1 shard`, `12,000 shards`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 10) -> str:
    """`a, b, c and 7 more`, for messages; `none` without names."""
    if not names:
        return "none"
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def did_you_mean(wanted: str, known: Iterable[str], otherwise: str = "", cutoff: float = 0.5) -> str:
    """`; did you mean 'known'?`, to end a message about an unknown name; `otherwise` if none is spelled alike, by a
    share of `cutoff`."""
    import difflib

    near = difflib.get_close_matches(wanted, sorted(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else otherwise


HEAD_BYTES = 64
"""Bytes at the beginning of a file that tell what it is."""


def why_pointer(head: bytes) -> str | None:
    """What a file is that begins with `head`, if it is a pointer of Git LFS, as clones from a hub have without it."""
    is_pointer = head.startswith(b"version https://git-lfs")
    return "is a pointer of Git LFS, not the file itself: run `git lfs pull` in its clone" if is_pointer else None


def bridge_command(*words: object) -> str:
    """A command of ours as a user may type it: `bridge-data prepare 'my data'`."""
    return shlex.join(("bridge-data", *map(str, words)))


DAMAGED_STATE = "the state was edited or damaged: take an older checkpoint"
"""The advice of a `StateError` about a value that no run can have written."""


class SkipSample(Exception):
    """Raised by user code to skip the current sample (or batch); skips are counted.

    >>> def encode_sample(sample):
    ...     if len(sample.text) < 100:
    ...         raise SkipSample("its text is short")
    ...     return sample
    """


IgnoreSample = SkipSample

ErrorHandler: TypeAlias = Callable[[Exception, Any, list[SourceInfo] | None], None]
"""Called with (error, sample or list of samples, sources) when user code or a decoder fails on a sample, in the process
that runs the hooks: a worker, if there are any, so that what it remembers is that worker's, and ends with it. Returning
skips the sample; raising stops the run."""


_LIBRARIES = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
_INSTALLED = ("<frozen", *(os.path.join(folder, "") for folder in (os.path.dirname(__file__), *_LIBRARIES)))
"""How the paths of code begin that is not the user's."""
_PACKAGES = frozenset({"site-packages", "dist-packages"})
"""Folders of such code, also in other environments, which PYTHONPATH or a `.pth` file may name."""

REPEAT_S = 600.0
"""Seconds after which a repeated failure is reported again, however few there were."""


class LogThrottle:
    """Counts repeated events in this process, so that the first is reported in full and later ones rarely: the
    10th, 100th, 1,000th time, and the first time after ten minutes of silence."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Hashable, int] = {}
        self._reported_at: dict[Hashable, float] = {}

    def count(self, kind: Hashable, more: int = 1) -> int:
        """Count `more` of `kind`; return the number so far if it should be reported, else 0."""
        now = time.monotonic()
        with self._lock:
            before = self._counts.get(kind, 0)
            number = self._counts[kind] = before + more
            has_more_digits = not before or len(str(number)) > len(str(before))
            if not has_more_digits and now < self._reported_at[kind] + REPEAT_S:
                return 0
            self._reported_at[kind] = now
        return number

    def after_fork(self) -> None:
        """In a forked child: count from 0, with a lock that no thread of the parent can hold."""
        self._lock, self._counts, self._reported_at = threading.Lock(), {}, {}


log_throttle = LogThrottle()
"""The failures of this process."""

os.register_at_fork(after_in_child=log_throttle.after_fork)


class FailureReport(NamedTuple):
    """What a process tells of failures that are alike, of this `kind`: how many it has had so far, and the last of them
    in full and in short."""

    kind: tuple[Hashable, ...]
    number: int
    in_full: str
    in_short: str

    def log(self) -> None:
        """Log it as that of this process."""
        if self.number == 1:
            logger.error("%s", self.in_full)
            return
        logger.warning(
            "process %d has left out samples for the same reason %d times so far, the last one of %s",
            os.getpid(),
            self.number,
            self.in_short,
        )

    def log_in_all(self, num_more: int) -> None:
        """Log it, if it is due, among the failures of this process and of its workers, of which it tells `num_more`."""
        if number := log_throttle.count(self.kind, num_more):
            self._replace(number=1 if number == num_more else number).log()


class _Reporting:
    """Who logs the failures of this process."""

    send: Callable[[FailureReport], bool] | None = None


def report_failures_to(send: Callable[[FailureReport], bool] | None) -> None:
    """Have `log_exception` send what it would log in this process, a worker, to the trainer, which logs once what all
    its workers tell. `send` returns whether it could; else, and with None, it is logged here."""
    _Reporting.send = send


os.register_at_fork(after_in_child=lambda: report_failures_to(None))


def log_exception(error: Exception, sample: Any, sources: list[SourceInfo] | None = None) -> None:
    """Log a failure and skip the sample. Failures of the same type, in the same hook and at the same line of code, are
    logged once for a process and its workers on this machine, then counted: see `LogThrottle`. It is one line if the
    data are at fault; else it has the traceback."""
    notes = "; ".join(getattr(error, "__notes__", ()))  # names the hook and the sample
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    where = tuple((frame.filename, frame.lineno) for frame in frames)
    name = type(error).__name__
    kind = (type(error).__module__, name, notes.partition(",")[0], where)
    number = log_throttle.count(kind)
    if not number:
        return
    origin = ", ".join(f"{s.dataset_path}/{s.shard_name} #{s.index}" for s in sources or ()) or "unknown origin"
    if is_of_data(error):
        key = provenance_of(sample, "__key__") or "of unknown key"
        in_full = f"left out sample {key} of {origin}: {error} [{notes}]"
    else:
        in_full = f"left out a sample of {origin}:\n{''.join(traceback.format_exception(error)).rstrip()}"
    report = FailureReport(kind, number, in_full, f"{origin}: {name}: {error} [{notes}]")
    if _Reporting.send is None or not _Reporting.send(report):
        report.log()


def is_of_data(error: Exception) -> bool:
    """Whether a failure says what is wrong with a sample: a `SampleError` that no code of the user has caused."""
    if not isinstance(error, SampleError):
        return False
    frames = [] if error.__cause__ is None else traceback.extract_tb(error.__cause__.__traceback__)
    return all(_is_installed(frame.filename) for frame in frames)


def _is_installed(file: str) -> bool:
    return file.startswith(_INSTALLED) or not _PACKAGES.isdisjoint(Path(file).parts)


def reraise_exception(error: Exception, sample: Any, sources: list[SourceInfo] | None = None) -> None:
    """Stop the run at the first failure.

    >>> from bridge_data import WorkerConfig
    >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=reraise_exception)
    """
    raise error


def no_random_access(_: object, index: Any) -> NoReturn:
    """Raise a `ConfigError` that says how to iterate: torch's DataLoader asks for items by number."""
    raise ConfigError(
        "data sets and loaders here are iterated, not indexed, and need no torch.utils.data.DataLoader: "
        "`for batch in get_loader(dataset)`; batch size and workers are settings of the data set"
    )


def no_iterator(_: object) -> NoReturn:
    """Raise a `TypeError` that says how to get an iterator: `next(loader)` cannot know where a pass ends."""
    raise TypeError(
        "a loader is not an iterator: make one, `batches = iter(loader)`, then call `next(batches)`. Another "
        "iter(loader) continues where the last one stopped"
    )
