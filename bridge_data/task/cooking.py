"""Cookers: functions that turn crude samples into typed ones, chosen by the sub-flavors of the data set.

A cooker gets the crude sample and, by keyword, the file stores of the auxiliary data that the metadataset names; if
`@cooker` asks for them, also `primary`, its own data set, and `cache`, the loader's cache pool.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, overload

from bridge_data import current
from bridge_data.errors import ConfigError
from bridge_data.samples import CrudeSample, SourceInfo
from bridge_data.samples.collation import PROVENANCE
from bridge_data.task.stores import FileStore, PrimaryFileStore

T_sample = TypeVar("T_sample", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])

PRIMARY, CACHE = "primary", "cache"

_NEEDS = "__bridge_data_cooker__"


@overload
def cooker(fn: F) -> F: ...
@overload
def cooker(fn: None = None, *, need_cache: bool = False, need_primary: bool = False) -> Callable[[F], F]: ...
def cooker(
    fn: Callable[..., Any] | None = None, *, need_cache: bool = False, need_primary: bool = False
) -> Callable[..., Any]:
    """Declare what a cooker gets besides the sample and its auxiliary data.

    With `need_primary`, `primary` is a `PrimaryFileStore` of the sample's own data set; with `need_cache`, `cache` is
    the loader's `CachePool`.
    """
    needs = tuple(name for name, needed in ((PRIMARY, need_primary), (CACHE, need_cache)) if needed)

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, _NEEDS, needs)
        return function

    return declare if fn is None else declare(fn)


@dataclasses.dataclass(frozen=True, slots=True)
class Cooker(Generic[T_sample]):
    """`cook(crude_sample, ...) -> Sample`, for samples whose sub-flavors have all of `has_subflavors` (None: any)."""

    cook: Callable[..., T_sample]
    has_subflavors: dict[str, Any] | None = None

    @property
    def need_primary(self) -> bool:
        """Whether the function gets the sample's own data set."""
        return PRIMARY in getattr(self.cook, _NEEDS, ())

    @property
    def need_cache(self) -> bool:
        """Whether the function gets the cache pool."""
        return CACHE in getattr(self.cook, _NEEDS, ())

    @property
    def name(self) -> str:
        """The name of the function in messages."""
        return str(getattr(self.cook, "__qualname__", self.cook)).rpartition("<locals>.")[2]

    def is_match(self, subflavors: Mapping[str, Any]) -> bool:
        """Whether this cooker takes samples with these sub-flavors."""
        return not self._mismatches(subflavors)

    def is_stricter_than(self, other: "Cooker[Any]") -> bool:
        """Whether `other` takes all that this cooker takes, and more."""
        own, others = self.has_subflavors or {}, other.has_subflavors or {}
        return len(own) > len(others) and other.is_match(own)

    def mismatch(self, subflavors: Mapping[str, Any]) -> str:
        """Why this cooker does not take samples with these sub-flavors."""
        return " and ".join(
            f"{name}={value!r}, " + (f"not {subflavors[name]!r}" if name in subflavors else "which there is not")
            for name, value in self._mismatches(subflavors).items()
        )

    def _mismatches(self, subflavors: Mapping[str, Any]) -> dict[str, Any]:
        wanted = self.has_subflavors or {}
        return {name: value for name, value in wanted.items() if subflavors.get(name, _ABSENT) != value}


_ABSENT = object()


def choose_cooker(cookers: Sequence[Cooker[Any]], subflavors: Mapping[str, Any], what: str) -> Cooker[Any]:
    """The first cooker that takes samples with these sub-flavors; all others that do must be less strict.

    A ConfigError if none does, or if two do and neither is stricter. `what` names the samples in messages.
    """
    matching = [cooker for cooker in cookers if cooker.is_match(subflavors)]
    if not matching:
        tried = "".join(f"\n  {cooker.name} wants {cooker.mismatch(subflavors)}" for cooker in cookers) or " none"
        raise ConfigError(
            f"no cooker takes {what} with subflavors {dict(subflavors)}; tried:{tried}\n"
            "Add a Cooker to the task encoder's `cookers`, or give the data set the subflavors that one asks for."
        )
    first, *others = matching
    for other in others:
        if not first.is_stricter_than(other):
            raise ConfigError(
                f"two cookers take {what} with subflavors {dict(subflavors)}: {first.name} (has_subflavors="
                f"{first.has_subflavors}) and {other.name} (has_subflavors={other.has_subflavors}). Only one that asks "
                "for all that the other asks for, and more, may come before it; put the stricter one first, or let "
                "them ask for different subflavors."
            )
    return first


stores_at_hand: ContextVar[Mapping[str, FileStore[Any]] | None] = ContextVar("bridge_data_stores", default=None)
"""The file stores of the source whose sample is being cooked in this thread."""


def cook(
    cooker: Cooker[Any] | None,
    cookers: Sequence[Cooker[Any]],
    sample: CrudeSample,
    stores: Mapping[str, FileStore[Any]] | None,
) -> Any:
    """Cook a sample by `cooker` (None: the one of `cookers` that takes it) with `stores` (None: `stores_at_hand`)."""
    if cooker is None:
        what = f"crude sample {sample.get('__key__')}"
        cooker = choose_cooker(cookers, sample.get("__subflavors__") or {}, what)
    given: dict[str, Any] = dict((stores_at_hand.get() or {}) if stores is None else stores)
    primary = given.pop(PRIMARY, None)
    if cooker.need_primary:
        given[PRIMARY] = PrimaryFileStore(primary, sample["__key__"])
    if cooker.need_cache:
        given[CACHE] = current.current_cache()
    return cooker.cook(sample, **given)


def basic_sample_keys(crude_sample: CrudeSample, additional_source_info: tuple[SourceInfo, ...] = ()) -> dict[str, Any]:
    """The provenance of a crude sample, as keyword arguments of the cooked sample; with additional sources that the
    cooked sample uses."""
    keys = {name: crude_sample[name] for name in PROVENANCE if name in crude_sample}
    if additional_source_info:
        keys["__sources__"] = (*(crude_sample.get("__sources__") or ()), *additional_source_info)
    return keys
