"""Calling a task encoder's hooks: seeded generators, counted skips, a bounded number of failures.

Enters: a hook, its argument, the sample it works on. Leaves: the results, or none if the sample was left out.
Guarantees: random numbers depend on (seed, hook, source, epoch, index, part) and nothing else; nothing is left out
uncounted; errors that no other sample would survive stop the run at once.
"""

import collections
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from bridge_data.errors import ConfigError, DatasetError, ErrorHandler, FatalSampleError, SkipSample
from bridge_data.order.keys import key64
from bridge_data.samples import SourceInfo
from bridge_data.task.encoder import TaskEncoder
from bridge_data.task.stateless import declared

DEFAULT_FAILURE_TOLERANCE = 100
"""Failures in a row of one hook before the run stops."""

STAGES = (
    "decode",
    "cook_crude_sample",
    "encode_sample",
    "preencode_sample",
    "postencode_sample",
    "select_samples_to_pack",
    "pack_selected_samples",
    "batch_group_criterion",
    "batch",
    "encode_batch",
)

_FATAL = (
    ConfigError,
    DatasetError,
    FatalSampleError,
    NameError,
    ImportError,
    SyntaxError,
    SystemError,
    MemoryError,
    RecursionError,
    NotImplementedError,
)
"""Failures that say nothing about the sample: a fault in the code, the machine or the storage. Leaving samples out for
them would hide it, and would make replicas differ."""


def rng_key(seed: int, stage: str, *sample: int) -> int:
    """The 64-bit seed of everything that `stage` draws for a sample (source key, epoch, index, part)."""
    return key64(seed, STAGES.index(stage), *sample)


def seed_generators(key: int) -> None:
    """Seed Python's, numpy's and torch's CPU generators."""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)


@contextlib.contextmanager
def preserved_generators() -> Iterator[None]:
    """Give the caller's random generators back as they were: a lane may run inside the training process."""
    python, numpy_, torch_ = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_)
        torch.set_rng_state(torch_)


class Hooks:
    """The hooks of one encoder as one lane calls them; `skipped` counts left-out samples by hook."""

    def __init__(self, encoder: TaskEncoder[Any, Any, Any, Any], seed: int, handler: ErrorHandler, where: str) -> None:
        self.encoder = encoder
        self.skipped: collections.Counter[str] = collections.Counter()
        self._seed, self._handler, self._where = seed, handler, where
        self._failures: collections.Counter[str] = collections.Counter()
        self._declared = {name: declared(getattr(encoder, name)) for name in STAGES if name != "decode"}

    def run(self, stage: str, fn: Callable[[Any], Any], argument: Any, sample: tuple[int, ...], count: int = 1) -> Any:
        """`fn(argument)` as a list of results: none if left out, several from a generator.

        `sample` is (source key, epoch, index, part) of the (first) sample; `count` is how many samples are lost if
        the call leaves its argument out.
        """
        hook = self._declared.get(stage)
        if hook is not None and hook.seeded:
            seed_generators(rng_key(self._seed, stage, *sample))
        results: list[Any] = []
        try:
            result = fn(argument)
            if hasattr(result, "__next__"):
                for part in result:
                    results.append(part)  # noqa: PERF402 - what was yielded before SkipSample is kept
            else:
                results.append(result)
        except SkipSample:
            if not results:
                self.skipped[stage] += count
        except _FATAL:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # from the system; Pillow raises it too, without a number, for images that it cannot read
            self.skipped[stage] += count
            self._spend(stage, argument, error)
            return []
        self._failures[stage] = 0
        return results

    def _spend(self, stage: str, argument: Any, error: Exception) -> None:
        """Report a failure, and stop the run if there were too many in a row."""
        declared_tolerance = self._declared[stage].failure_tolerance if stage in self._declared else None
        tolerance = DEFAULT_FAILURE_TOLERANCE if declared_tolerance is None else declared_tolerance
        self._failures[stage] += 1
        error.add_note(f"in {stage} of {type(self.encoder).__name__}, sample {keys_of(argument)}, {self._where}")
        if self._failures[stage] > tolerance:
            raise FatalSampleError(
                f"{stage} of {type(self.encoder).__name__} failed {self._failures[stage]} times in a row "
                f"(tolerance {tolerance}), last on sample {keys_of(argument)}, {self._where}: "
                f"{type(error).__name__}: {error}. Mend the hook or the data; "
                f"@stateless(failure_tolerance=...) sets the tolerance, SkipSample leaves a sample out on purpose."
            ) from error
        self._handler(error, argument, sources_of(argument))


def keys_of(argument: Any) -> str:
    """The keys of a sample, a list of samples or a batch, for messages."""
    if isinstance(argument, Sequence) and not isinstance(argument, str):
        shown = ", ".join(keys_of(item) for item in argument[:3])
        return f"[{shown}{', ...' if len(argument) > 3 else ''}]"
    key = argument.get("__key__") if isinstance(argument, dict) else getattr(argument, "__key__", None)
    return "of unknown key" if key is None else str(key)


def sources_of(argument: Any) -> list[SourceInfo] | None:
    """Where a sample, the samples of a list or a batch were read."""
    if isinstance(argument, Sequence) and not isinstance(argument, str):
        return [source for item in argument for source in sources_of(item) or ()] or None
    sources = argument.get("__sources__") if isinstance(argument, dict) else getattr(argument, "__sources__", None)
    return list(sources) if sources else None
