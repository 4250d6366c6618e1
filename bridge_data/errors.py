"""What can go wrong, as a tree; every message says what was got, what was expected, where, and the way out.

    BridgeDataError
    ├── ConfigError          an argument, a YAML file or a combination of settings is wrong (before the first read)
    ├── DatasetError         data on disk is not what its metadata says: missing, truncated, changed
    ├── SampleError          one sample could not be read, decoded or encoded; counted, handled by the error handler
    │   └── FatalSampleError too many failures in a row, or one that no other sample can survive: the run stops
    ├── StateError           a saved state is damaged, or not of this data, these settings or this format version
    └── WorkerError          a worker process died, hung or could not be started

`SkipSample` (alias `IgnoreSample`) is not an error: user code raises it to leave a sample out, which is counted.
"""

import logging
import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

from bridge_data.samples import SourceInfo

logger = logging.getLogger("bridge_data")


class BridgeDataError(Exception):
    """Any error that this package raises on purpose."""


class ConfigError(BridgeDataError, ValueError):
    """A setting is wrong. The message names the file and line, or the argument."""


class DatasetError(BridgeDataError):
    """A data set on disk is missing, incomplete or damaged. The message names the file, shard and key."""


class SampleError(BridgeDataError):
    """One sample failed. The message names the function that failed and the sample's key."""


class FatalSampleError(SampleError):
    """The failure tolerance of a function was exceeded, or the failure cannot be confined to one sample."""


class StateError(BridgeDataError):
    """A saved state cannot be restored here. The message names each difference, or the field that is damaged."""


class WorkerError(BridgeDataError):
    """A worker process failed. The message names the worker, the lane and the sample it was working on."""


EDITED = "the state was edited or damaged: take an older checkpoint"
"""The way out of a `StateError` about a number that no run has written."""


class SkipSample(Exception):
    """Raised by user code to leave the current sample (or batch) out; the lane counts it."""


IgnoreSample = SkipSample

ErrorHandler: TypeAlias = Callable[[Exception, Any, list[SourceInfo] | None], None]
"""Called with (error, sample or list of samples, sources) when user code or a decoder fails on a sample.
Returning means: leave the sample out. Raising stops the run."""


_reported: set[tuple[type[Exception], str, int]] = set()


def log_exception(error: Exception, sample: Any, sources: list[SourceInfo] | None = None) -> None:
    """Log a failure and go on without the sample: in full the first time that its kind occurs at its line of code in
    this process, in one line after that."""
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
    """Stop at the first failure."""
    raise error
