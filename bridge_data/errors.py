"""The exceptions of this package, and the error handlers. Every message says what is wrong, where, and how to fix it.

    BridgeDataError
    ├── ConfigError          an argument, a YAML file or a combination of settings is wrong (before the first read)
    ├── DatasetError         data on disk does not match its metadata: missing, truncated, changed
    ├── SampleError          one sample could not be read, decoded or encoded; counted, passed to the error handler
    │   └── FatalSampleError too many failures in a row, or a failure that is not limited to one sample: the run stops
    ├── StateError           a saved state is damaged, or belongs to other data, settings or format version
    └── WorkerError          a worker process died, hung or could not be started

`SkipSample` (alias `IgnoreSample`) is not an error: user code raises it to skip a sample, and the skip is counted.
"""

import logging
import shlex
import traceback
from collections.abc import Callable
from typing import Any, Self, TypeAlias

from bridge_data.samples import SourceInfo

logger = logging.getLogger("bridge_data")


class BridgeDataError(Exception):
    """Base class of this package's errors."""


class ConfigError(BridgeDataError, ValueError):
    """A setting is wrong. The message names the file and line, or the argument."""


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
        """The error that says that this sample failed, for a hook to raise."""
        key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
        return cls(f"sample {key} failed" + (f": {message}" if message else ""))


class FatalSampleError(SampleError):
    """The failure tolerance of a hook was exceeded, or the failure is not limited to one sample."""


class StateError(BridgeDataError):
    """A saved state cannot be restored here. The message names each difference, or the field that is damaged."""


class WorkerError(BridgeDataError):
    """A worker process failed. The message names the worker, the lane and the sample it was working on."""


def bridge_command(*words: object) -> str:
    """A command of ours as a user may type it: `bridge-data prepare 'my data'`."""
    return shlex.join(("bridge-data", *map(str, words)))


EDITED = "the state was edited or damaged: take an older checkpoint"
"""The advice of a `StateError` about a value that no run can have written."""


class SkipSample(Exception):
    """Raised by user code to skip the current sample (or batch); skips are counted."""


IgnoreSample = SkipSample

ErrorHandler: TypeAlias = Callable[[Exception, Any, list[SourceInfo] | None], None]
"""Called with (error, sample or list of samples, sources) when user code or a decoder fails on a sample.
Returning skips the sample; raising stops the run."""


_reported: set[tuple[type[Exception], str, int]] = set()


def log_exception(error: Exception, sample: Any, sources: list[SourceInfo] | None = None) -> None:
    """Log a failure and skip the sample. The full traceback is logged once per exception type and line of code."""
    origin = ", ".join(f"{s.dataset_path}/{s.shard_name} #{s.index}" for s in sources or ()) or "unknown origin"
    frames = traceback.extract_tb(error.__traceback__)
    kind = type(error), frames[-1].filename if frames else "", frames[-1].lineno or 0 if frames else 0
    if kind in _reported:
        where = "; ".join(getattr(error, "__notes__", ()))  # names the hook and the sample
        logger.warning("left out a sample of %s: %s: %s [%s]", origin, type(error).__name__, error, where)
        return
    _reported.add(kind)
    logger.error("left out a sample of %s:\n%s", origin, "".join(traceback.format_exception(error)).rstrip())


def reraise_exception(error: Exception, sample: Any, sources: list[SourceInfo] | None = None) -> None:
    """Stop the run at the first failure."""
    raise error
