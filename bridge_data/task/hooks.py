"""Calling a task encoder's hooks: seeded generators, counted skips, a bounded number of failures.

Enters: a hook, its argument, the sample it works on. Leaves: the results, or none if the sample was left out.
Guarantees: random numbers depend on (seed, hook, source, epoch, index, part) and nothing else; nothing is left out
uncounted; errors that no other sample would survive stop the run at once.
"""

import collections
import random
from collections.abc import Callable, Sequence
from contextvars import Token
from typing import Any, Self

import numpy as np

from bridge_data.current import HookContext, Numbering, active
from bridge_data.errors import ConfigError, DatasetError, ErrorHandler, FatalSampleError, SkipSample
from bridge_data.later import torch
from bridge_data.order.random_keys import key64
from bridge_data.samples import SourceInfo
from bridge_data.task.observer import Observer
from bridge_data.task.overrides import declaration
from bridge_data.task.stateless import check_tolerance
from bridge_data.task.stores import CachePool, NoCachePool
from bridge_data.task.task_encoder import TaskEncoder
from bridge_data.topology import WorkerConfig

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

TRUNCATED = "truncated"
"""Under this name samples are counted that were cut short, and not left out."""

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


class _Generators:
    """The states of Python's, numpy's and torch's CPU generators when this is made."""

    def __init__(self) -> None:
        self._python, self._numpy, self._torch = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def restore(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)


class Hooks:
    """The hooks of one encoder as one lane calls them.

    `skipped` counts left-out samples by hook, and samples cut short as `TRUNCATED`; `batch_index` is the number of the
    micro-batch that is being made, None where it is not known; `sample` is (source key, epoch, index, part) of the
    (first) sample that is being worked on; `cache` is what cookers get as the cache pool. Hooks are
    run inside `with` it.

    Raises:
        ConfigError: if the encoder's failure tolerance is no number.
    """

    def __init__(
        self,
        encoder: TaskEncoder[Any, Any, Any, Any],
        worker_config: WorkerConfig,
        numbering: Numbering,
        handler: ErrorHandler | None = None,
    ) -> None:
        self.encoder = encoder
        self.worker_config = worker_config
        self.skipped: collections.Counter[str] = collections.Counter()
        self.batch_index: int | None = None
        self.cache: CachePool = NoCachePool()
        self.observer: Observer | None = None
        """Is called around each hook, and around the seeding of the random generators."""
        self._numbering = numbering
        self.sample: tuple[int, ...] = ()
        self._token: Token[HookContext | None] | None = None
        self._callers: _Generators | None = None
        self._handler = handler or worker_config.global_error_handler
        self.failures: collections.Counter[str] = collections.Counter()
        """By hook, how often it has failed in a row."""
        self.last_skip = "", ""
        """The hook that was the last to leave something out, and why."""
        self._declared = {name: declaration(encoder, name) for name in STAGES if name != "decode"}
        self._seeded = frozenset(name for name, hook in self._declared.items() if hook.seeded)
        self._tolerance = encoder.__default_failure_tolerance__
        check_tolerance(f"{type(encoder).__name__}(__default_failure_tolerance__", self._tolerance)

    @property
    def sample_index(self) -> int:
        """The number of the (first) sample that is being worked on."""
        source_key, epoch, index = self.sample[:3]
        return self._numbering.number_of(source_key, epoch, index)

    def run(
        self, stage: str, fn: Callable[[Any], Any], argument: Any, sample: tuple[int, ...], count: int = 1
    ) -> list[Any]:
        """`fn(argument)` as a list of results: none if left out, several from a generator.

        `sample` is (source key, epoch, index, part) of the (first) sample, and maybe which of several results of the
        hook before it is; `count` is how many samples are lost if the call leaves its argument out. What a generator
        yields before `SkipSample` is kept; what it yields before it fails is not.
        """
        if stage in self._seeded:
            self._seed(stage, sample)
        results: list[Any] = []
        self.sample = sample
        observer = self.observer
        if observer is not None:
            observer.begin(stage, sample[0])
        try:
            result = fn(argument)
            if hasattr(result, "__next__"):
                for part in result:
                    results.append(_not_none(part))  # noqa: PERF401 - what was yielded before SkipSample is kept
                if not results:
                    self._leave_out(stage, count, "it yielded nothing")
            else:
                results.append(_not_none(result))
        except SkipSample as skip:
            if not results:
                self._leave_out(stage, count, str(skip))
        except Exception as error:
            self._fail(stage, argument, error, count)
            return []
        finally:
            if observer is not None:
                observer.end()
        if self.failures:
            self.succeed(stage)
        return results

    def succeed(self, stage: str) -> None:
        """Note that `stage` has not failed, on the sample that is being worked on."""
        self.failures.pop(stage, None)

    def _leave_out(self, stage: str, count: int, reason: str) -> None:
        self.skipped[stage] += count
        self.last_skip = stage, reason

    def __enter__(self) -> Self:
        """Be at work in this thread: hooks that ask for the number of their sample, or for the cache, ask this one. At
        the end the caller's random generators are as they were: a lane may run inside the training process."""
        self._token = active.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        active.reset(self._token)
        self._token = None
        if self.observer is not None:
            self.observer.begin("seed")
        if self._callers is not None:
            self._callers.restore()
            self._callers = None
        if self.observer is not None:
            self.observer.end()

    def _seed(self, stage: str, sample: tuple[int, ...]) -> None:
        if self.observer is not None:
            self.observer.begin(f"seed {stage}")
        if self._callers is None and self._token is not None:
            self._callers = _Generators()
        seed_generators(rng_key(self.worker_config.seed_offset, stage, *sample))
        if self.observer is not None:
            self.observer.end()

    def _fail(self, stage: str, argument: Any, error: Exception, count: int) -> None:
        """Report a failure that loses `count` samples, and stop the run if there were too many in a row, or it is one
        that other samples would not survive either."""
        if isinstance(error, _FATAL):
            raise error
        if isinstance(error, OSError) and error.errno is not None:
            raise error  # from the system; Pillow raises it too, without a number, for images that it cannot read
        self._leave_out(stage, count, f"{type(error).__name__}: {error}"[:200])
        declared_tolerance = self._declared[stage].failure_tolerance if stage in self._declared else None
        tolerance = self._tolerance if declared_tolerance is None else declared_tolerance
        self.failures[stage] += 1
        where = f"rank {self.worker_config.rank}"
        no_limit = "" if tolerance else "; no limit would be math.inf"
        error.add_note(f"in {stage} of {type(self.encoder).__name__}, sample {keys_of(argument)}, {where}")
        if self.failures[stage] > tolerance:
            raise FatalSampleError(
                f"{stage} of {type(self.encoder).__name__} failed {self.failures[stage]} times in a row "
                f"(tolerance {tolerance}{no_limit}), last on sample {keys_of(argument)}, {where}: "
                f"{type(error).__name__}: {error}. Fix the hook or the data; "
                f"@stateless(failure_tolerance=...) sets the tolerance, SkipSample leaves a sample out on purpose."
            ) from error
        self._handler(error, argument, sources_of(argument))


def _not_none(result: Any) -> Any:
    if result is None:
        raise TypeError("it returned None: return what it has made, or raise SkipSample to leave the sample out")
    return result


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
