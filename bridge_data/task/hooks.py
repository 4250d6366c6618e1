"""How a hook of a task encoder is called: seeded generators, counted skips, a bounded number of failures.

Reads a hook, its argument and the sample it works on. Returns the results, or none if the sample was skipped. Raises
errors that would hit any other sample too, at once. Random numbers depend on (seed, hook, source, epoch, index, output)
only. Every skip is counted, and every truncated sample. Torch's defaults are those of a worker while hooks run.

A hook may have several versions, which call each other by `super()`: those of its class and its bases, and for an
`AugmentTaskEncoder` those of the inner encoder.
"""

import collections
import contextlib
import functools
import inspect
import logging
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextvars import Token
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar

from bridge_data.errors import (
    ConfigError,
    DatasetError,
    ErrorHandler,
    FatalSampleError,
    ForgottenSampleError,
    SkipSample,
)
from bridge_data.later import profiler, torch, torch_itself
from bridge_data.order.random_draws import key64
from bridge_data.running_hook import HookContext, active_hook
from bridge_data.samples import SourceInfo, provenance_of
from bridge_data.samples.collation import generic_batch
from bridge_data.task.augment import AugmentTaskEncoder
from bridge_data.task.generators import Generators, seed_generators
from bridge_data.task.observer import Observer, StageTracer, observed
from bridge_data.task.stores import CachePool, NoCachePool
from bridge_data.task.task_encoder import (
    HOOKS,
    MAPPED_TYPES,
    Declared,
    DefaultTaskEncoder,
    TaskEncoder,
    check_tolerance,
    declared,
)
from bridge_data.topology import WorkerConfig

if TYPE_CHECKING:
    from bridge_data.order.plan_order import Numbering

T = TypeVar("T")

STAGES = ("decode", *HOOKS)

_OF_SAMPLES = frozenset({"cook_crude_sample", "encode_sample", "preencode_sample", "postencode_sample"})

logger = logging.getLogger("bridge_data")

_RETURNED_NONE = "it returned None: return the result, or raise SkipSample to skip the sample"

_MANY_FAILURES = 100  # consecutive ones, at which a hook without a limit warns

FORGOTTEN = "forgotten"
"""The name under which samples are counted that are on a list of forgotten ones, or need one that is."""

TRUNCATED = "truncated"
"""The name under which truncated samples are counted; they are not skipped."""

FAILED = "failed"  # skipped samples are counted again under this name if a failure lost them

NO_STAGES = (TRUNCATED, FAILED)
"""Names in `Hooks.skipped` that are not hooks."""

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
)
"""Failures that do not come from the sample, but from the code, the machine or the storage. Skipping samples would
hide them, and would make replicas differ."""


def is_overridden(encoder: TaskEncoder[Any, Any, Any, Any], hook: str) -> bool:
    """Whether the user's encoder overrides `hook`, or another method."""
    return any(hook in names for _, names in _looked_in(encoder))


def hook_of(encoder: TaskEncoder[Any, Any, Any, Any], hook: str) -> Any:
    """The function to call for `hook`: of the outermost encoder that overrides it, or else of the innermost one."""
    places = _looked_in(encoder)
    return getattr(next((owner for owner, names in places if hook in names), places[-1][0]), hook)


_Place: TypeAlias = tuple[TaskEncoder[Any, Any, Any, Any], Mapping[str, Any]]


def _looked_in(encoder: TaskEncoder[Any, Any, Any, Any]) -> list[_Place]:
    """Where `super()` looks for a hook of the user, in order: an encoder, and names that it has itself or by a class of
    the user; then the same of the encoder inside it."""
    places: list[_Place] = [(encoder, vars(encoder))]
    for cls in type(encoder).__mro__:
        if cls is AugmentTaskEncoder:
            assert isinstance(encoder, AugmentTaskEncoder)
            return places + _looked_in(encoder.task_encoder)
        if cls in (DefaultTaskEncoder, TaskEncoder):
            break
        places.append((encoder, vars(cls)))
    return places


def _said(versions: Iterable[Any]) -> Declared:
    """What versions of a hook, which call each other in this order, declare together: seeded if any of them is; and the
    failure tolerance of the outermost one that has one."""
    seeded, tolerance = False, None
    for version in map(declared, versions):
        seeded = seeded or version.seeded
        tolerance = version.failure_tolerance if tolerance is None else tolerance
    return Declared(seeded=seeded, failure_tolerance=tolerance)


def may_yield(hook: Any) -> bool:
    """Whether a hook is a generator function, even if decorated, or is annotated to return a generator."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    function = inspect.unwrap(hook)
    returned = str(getattr(function, "__annotations__", {}).get("return"))
    return inspect.isgeneratorfunction(function) or _GENERATOR.match(returned) is not None


def seed_of(seed: int, stage: str, *random_key: int) -> int:
    """The 64-bit seed of the random numbers that `stage` draws for a sample with this `SampleIds.random_key`."""
    return key64(seed, STAGES.index(stage), *random_key)


_GENERATOR = re.compile(r"(<class ')?([\w.]+\.)?(Generator|Iterator)\b")


def _set_on(encoder: TaskEncoder[Any, Any, Any, Any]) -> tuple[Any, ...]:
    """What is looked up that may be set on an encoder, or on one inside it, after it was made: hooks, cookers, and the
    failure tolerance."""
    own = [vars(owner) for owner, names in _looked_in(encoder) if names is vars(owner)]
    hooks = [{name: attributes[name] for name in attributes.keys() & HOOKS} for attributes in own]
    return hooks, [*encoder.cookers], encoder.__default_failure_tolerance__


class EncoderHooks:
    """Which hooks an encoder has, and what they declare: looked up once for all lanes of a process."""

    def __init__(self, encoder: TaskEncoder[Any, Any, Any, Any]) -> None:
        self.encoder, self._set = encoder, _set_on(encoder)
        places = _looked_in(encoder)
        innermost, _ = places[-1]
        self.functions: dict[str, Callable[..., Any]] = {name: getattr(innermost, name) for name in HOOKS}
        """What to call for each hook: of the outermost encoder that overrides it, or else of the innermost one."""
        self.overridden = {name for _, names in places for name in names if name in self.functions}
        """The hooks that the user's encoder overrides."""
        self.declared: dict[str, Declared] = {}
        """What cookers, and the hooks that are overridden, declare."""
        cooks = [cooker.cook for cooker in encoder.cookers]
        if cooks:
            self.declared["cook_crude_sample"] = _said(cooks)
        for hook in self.overridden:
            versions = [(owner, names[hook]) for owner, names in places if hook in names]
            self.functions[hook] = getattr(versions[0][0], hook)
            of_cooking = cooks if hook == "cook_crude_sample" else []
            self.declared[hook] = _said([*(version for _, version in versions), *of_cooking])
        of_types = {hook for hook, name in MAPPED_TYPES.items() if getattr(innermost, name, None) is not None}
        self.does = self.overridden | of_types
        """The hooks that need to be called: they are overridden, or map their argument to a type."""
        self.preencodes = not self.overridden.isdisjoint(("preencode_sample", "postencode_sample"))
        """Whether samples are encoded in two steps."""
        self.groups = "batch_group_criterion" in self.does
        """Whether the encoder says which samples are batched together."""
        if "batch" not in self.does and getattr(innermost, "_raw_batch_type", None) is None:
            self.functions["batch"] = generic_batch  # which is all that the default one calls
        self.seeded = frozenset([name for name, hook in self.declared.items() if hook.seeded])
        """The hooks that may draw random numbers."""
        self._tolerance = encoder.__default_failure_tolerance__
        check_tolerance(f"{type(encoder).__name__}(__default_failure_tolerance__", self._tolerance)
        self.has_no_generators = not (self._may_yield(_OF_SAMPLES, *cooks) or encoder.splits_samples)
        """Whether no hook of samples is a generator, so that a sample goes into the batch it is encoded for."""

    def are_of(self, encoder: TaskEncoder[Any, Any, Any, Any]) -> bool:
        """Whether they are those of an encoder, to which hooks, cookers or a tolerance may have been set since."""
        return self.encoder is encoder and self._set == _set_on(encoder)

    def tolerance_of(self, stage: str) -> float:
        """How many failures of a stage in a row are tolerated."""
        own = self.declared[stage].failure_tolerance if stage in self.declared else None
        return (self._tolerance if own is None else own) or math.inf

    @property
    def may_multiply(self) -> bool:
        """Whether there may be more batches than full buckets of samples and one that is not full: with groups, or
        with hooks that are generators."""
        return self.groups or not self.has_no_generators or self._may_yield({"batch", "encode_batch"})

    def check(self, *, packing: bool) -> None:
        """Check that the hooks fit together, and with `packing`, that those are there that it needs.

        Raises:
            ConfigError: if not.
        """
        if self.preencodes and "encode_sample" in self.overridden:
            raise ConfigError(
                f"{type(self.encoder).__name__} overrides encode_sample and also preencode_sample or "
                "postencode_sample: encode in one go (encode_sample) or in two with packing in between (the other "
                "two), not both"
            )
        for hook in ("select_samples_to_pack", "pack_selected_samples") if packing else ():
            if hook not in self.does:
                raise ConfigError(
                    f"packing_buffer_size is set, but {type(self.encoder).__name__} does not override {hook}; "
                    "override it, or leave packing_buffer_size out"
                )

    def _may_yield(self, names: Set[str], *others: Callable[..., Any]) -> bool:
        """Whether one of these hooks is overridden by a generator, or one of the `others` is one."""
        return any(map(may_yield, [*(self.functions[name] for name in names & self.overridden), *others]))


class HookNotes(NamedTuple):
    """What is noted while hooks run on one sample."""

    skipped: dict[str, int]
    last_skip: tuple[str, str]
    is_positional: bool
    found_generator: bool
    """Whether a plain function has returned a generator."""


class Hooks:
    """The hooks of one encoder as one lane calls them, inside `with hooks:`.

    What changes while they run, and who changes it: `run`, and the hook by `HookContext`, set all that is of one call
    (`random_key`, `is_cut`, `is_positional`) and count (`skipped`, `last_skip`, `failures`). The lane sets
    `batch_index`, the number of the current micro-batch, while that is known (else it is None); it counts among
    `skipped` what it drops at the end, or misses after a restore, and takes `skipped` with each micro-batch.

    `cache` is the cache pool for cookers; the `observer` is called around each hook, and around the seeding of the
    random generators; with `raises`, a failure is raised instead of being reported and counted.
    """

    def __init__(
        self,
        of_encoder: EncoderHooks,
        worker_config: WorkerConfig,
        numbering: "Numbering",
        handler: ErrorHandler | None = None,
        *,
        cache: CachePool | None = None,
        observer: Observer | None = None,
        raises: bool = False,
    ) -> None:
        self.of_encoder, self.encoder = of_encoder, of_encoder.encoder
        self.functions, self.does, self.seeded = of_encoder.functions, of_encoder.does, of_encoder.seeded
        self.worker_config = worker_config
        self.cache, self.observer, self._raises = cache or NoCachePool(), observer, raises
        self.skipped: collections.Counter[str] = collections.Counter()
        """Skipped samples by hook, and those of `NO_STAGES`."""
        self.is_cut = self.is_positional = False
        self.batch_index: int | None = None
        self._is_profiled: Callable[[], bool] | None = None
        self._numbering = numbering
        self.random_key: tuple[int, ...] = ()
        """The `SampleIds.random_key` of the current sample; of several, that of the first."""
        self._token: Token[HookContext | None] | None = None
        self._callers: Generators | None = None
        self._defaults: contextlib.ExitStack | None = None
        self._handler = handler or worker_config.global_error_handler
        self.failures: collections.Counter[str] = collections.Counter()
        """Consecutive failures of each hook."""
        self.last_skip = "", ""
        """The hook of the last skip, and the reason."""
        self.has_no_generators = of_encoder.has_no_generators
        """As of the encoder; what is found while hooks run counts, too."""

    @property
    def sample_index(self) -> int:
        source_key, epoch, index = self.random_key[:3]
        return self._numbering.number_of(source_key, epoch, index)

    def run(
        self, stage: str, fn: Callable[[Any], Any], argument: Any, random_key: tuple[int, ...], count: int = 1
    ) -> list[Any]:
        """`fn(argument)` as a list of results: none if skipped, several from a generator.

        `random_key` is the `SampleIds.random_key` of the (first) sample, and the number of the result if the hook
        before gave several; `count` is the number of samples that a skip loses. What a generator yields before
        `SkipSample` is kept; what it yields before a failure is not.
        """
        if stage in self.seeded:
            self._seed(stage, random_key)
        results: list[Any] = []
        self.random_key, self.is_cut = random_key, False
        observer = self.observer
        if observer is not None:
            observer.begin(stage, random_key[0])
        try:
            result = fn(argument)
            if hasattr(result, "__next__"):
                if stage in _OF_SAMPLES and self.has_no_generators:  # a plain function that returns a generator
                    self.has_no_generators, self.batch_index = False, None
                for output in result:
                    if output is None:
                        raise TypeError(_RETURNED_NONE)
                    results.append(output)  # at once: what was yielded before SkipSample is kept
                if not results:
                    self.count_skip(stage, count, "it yielded nothing")
            elif result is None:
                raise TypeError(_RETURNED_NONE)
            else:
                results.append(result)
        except SkipSample as skip:
            if not results:
                self.count_skip(stage, count, str(skip))
        except ForgottenSampleError as error:
            self.count_skip(FORGOTTEN, count, str(error))
            return []
        except Exception as error:
            self._fail(stage, argument, error, count)
            return []
        finally:
            if observer is not None:
                observer.end()
        if self.failures:
            self.succeed(stage)
        if self.is_cut and results:
            self.skipped[TRUNCATED] += 1
        return results

    def succeed(self, stage: str) -> None:
        """Note that `stage` has not failed on the current sample."""
        self.failures.pop(stage, None)

    def count_skip(self, stage: str, count: int, reason: str) -> None:
        """Count samples that are skipped."""
        self.skipped[stage] += count
        self.last_skip = stage, reason

    def take_skipped(self) -> dict[str, int]:
        """The samples skipped since the last call, by hook."""
        skipped = dict(self.skipped)
        self.skipped.clear()
        return skipped

    def recorded(self, call: Callable[[], T]) -> tuple[T, HookNotes]:
        """What `call` returns, and what is noted of the hooks that it runs on one sample."""
        before, known, declared = self.skipped.copy(), self.has_no_generators, self.of_encoder.has_no_generators
        self.is_positional, self.has_no_generators = False, declared
        try:
            made = call()
        finally:
            found_generator = self.has_no_generators != declared
            self.has_no_generators = known and self.has_no_generators
        return made, HookNotes(dict(self.skipped - before), self.last_skip, self.is_positional, found_generator)

    def adopt(self, notes: HookNotes, passed: Iterable[str]) -> None:
        """Count what was noted of hooks that ran elsewhere as if they had run here; of these, `passed` did not fail."""
        self.skipped.update(notes.skipped)
        self.is_positional |= notes.is_positional
        if notes.skipped:
            self.last_skip = notes.last_skip
        if self.failures:
            for stage in passed:
                self.succeed(stage)

    def skip_summary(self) -> str:
        """How many samples were skipped by which hooks, and why the last was, for messages; empty if none were."""
        counts = [f"{count} in {stage}" for stage, count in self.skipped.items() if stage not in NO_STAGES]
        reason = self.last_skip[1] and f"; the last because {self.last_skip[1]}"
        return f"were left out ({', '.join(counts)}{reason})" if counts else ""

    def __enter__(self) -> Self:
        """Activate these hooks for the current thread, with their `current_sample_index` and `cache`. At the end the
        caller's random generators and torch's defaults are restored, since a lane may run inside the training process.
        """
        self._defaults = torch_defaults()
        self._token = active_hook.set(self)
        if self.observer is None:
            is_profiled = self._is_profiled = self._is_profiled or profiler()
            if is_profiled is not None and is_profiled():
                self.observer = StageTracer()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        active_hook.reset(self._token)
        self._token = None
        assert self._defaults is not None
        self._defaults.close()
        self._defaults = None
        if self._callers is not None:
            with observed(self.observer, "seed"):
                self._callers.restore()
            self._callers = None
        if isinstance(self.observer, StageTracer):
            self.observer = None

    def _seed(self, stage: str, random_key: tuple[int, ...]) -> None:
        with observed(self.observer, f"seed {stage}"):
            if self._callers is None and self._token is not None:
                self._callers = Generators()
            seed_generators(seed_of(self.worker_config.seed_offset, stage, *random_key))

    def _fail(self, stage: str, argument: Any, error: Exception, count: int) -> None:
        """Report a failure that loses `count` samples. Stop the run if it would hit other samples too, or if too many
        occurred in a row."""
        if self._raises:
            raise error
        where = f"rank {self.worker_config.rank}"
        error.add_note(f"in {stage} of {type(self.encoder).__name__}, sample {keys_of(argument)}, {where}")
        if isinstance(error, _FATAL):
            raise error
        if isinstance(error, OSError) and error.errno is not None:
            raise error  # from the system; Pillow raises OSError without a number for broken images
        self.count_skip(stage, count, f"{type(error).__name__}: {error}"[:200])
        self.skipped[FAILED] += count
        tolerance = self.of_encoder.tolerance_of(stage)
        self.failures[stage] += 1
        if tolerance == math.inf and self.failures[stage] == _MANY_FAILURES:
            logger.warning(
                "%s of %s failed %d times in a row; it continues, as its tolerance has no limit; last on sample %s, %s",
                stage,
                type(self.encoder).__name__,
                _MANY_FAILURES,
                keys_of(argument),
                where,
            )
        if self.failures[stage] > tolerance:
            raise FatalSampleError(
                f"{stage} of {type(self.encoder).__name__} failed {self.failures[stage]} times in a row "
                f"(tolerance {tolerance}), last on sample {keys_of(argument)}, {where}: "
                f"{type(error).__name__}: {error}. Fix the hook or the data; "
                f"@stateless(failure_tolerance=...) sets the tolerance, SkipSample skips a sample on purpose."
            ) from error
        self._handler(error, argument, sources_of(argument))


_NOTHING_TO_UNDO = contextlib.ExitStack()


def torch_defaults() -> contextlib.ExitStack:
    """Set torch as a worker has it: tensors are float32 and on the CPU, unless a hook says otherwise, with gradients,
    and no inference mode. Without this, a trainer that calls `torch.set_default_dtype` or `set_default_device` would
    get other batches from hooks that run in its own process. What is returned restores the caller's when it is closed.
    """
    if "torch" not in sys.modules:
        return _NOTHING_TO_UNDO
    itself = torch_itself()
    plain = itself.empty(0)  # shows three, in a fifth of the time that asking for them takes
    is_of_worker = plain.dtype is itself.float32 and plain.device.type == "cpu" and not plain.is_inference()
    if is_of_worker and itself.is_grad_enabled():
        return _NOTHING_TO_UNDO
    undo = contextlib.ExitStack()
    undo.enter_context(torch.device("cpu"))
    undo.enter_context(torch.inference_mode(mode=False))
    undo.enter_context(torch.enable_grad())
    undo.callback(torch.set_default_dtype, plain.dtype)
    torch.set_default_dtype(torch.float32)
    return undo


def keys_of(argument: Any) -> str:
    """The keys of a sample, a list of samples or a batch, for messages."""
    if isinstance(argument, Sequence) and not isinstance(argument, str):
        shown = ", ".join(keys_of(item) for item in argument[:3])
        return f"[{shown}{', ...' if len(argument) > 3 else ''}]"
    key = provenance_of(argument, "__key__")
    return "of unknown key" if key is None else str(key)


def sources_of(argument: Any) -> list[SourceInfo] | None:
    """The sources of a sample, of the samples of a list, or of a batch."""
    if isinstance(argument, Sequence) and not isinstance(argument, str):
        return [source for item in argument for source in sources_of(item) or ()] or None
    sources = provenance_of(argument, "__sources__")
    return list(sources) if sources else None
