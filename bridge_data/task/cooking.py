"""Cookers, which make typed samples from crude ones.

A cooker is chosen by the sub-flavors of the data set. It gets the crude sample and, by keyword, the file stores of the
auxiliary data that the metadataset names; if `@cooker` asks for them, also `primary`, its own data set, and `cache`,
the loader's cache pool. Wrong cookers and auxiliary data of a source that is known to be crude are a `ConfigError`
before the first sample is read.
"""

import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, overload

from bridge_data.data.metadata import is_jsonl
from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError
from bridge_data.plan import Source
from bridge_data.running_hook import current_cache
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

    >>> @cooker(need_primary=True)
    ... def cook_page(sample, primary):
    ...     return {**basic_sample_keys(sample), "image": primary.get(".jpg", sample)}
    >>> Cooker(cook_page).need_primary
    True
    """
    needs = tuple(name for name, needed in ((PRIMARY, need_primary), (CACHE, need_cache)) if needed)

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, _NEEDS, needs)
        return function

    return declare if fn is None else declare(fn)


@dataclasses.dataclass(frozen=True, slots=True)
class Cooker(Generic[T_sample]):
    """`cook(crude_sample, ...) -> Sample`, for samples whose sub-flavors have all of `has_subflavors` (None: any).

    >>> from bridge_data import DefaultTaskEncoder, TextSample
    >>> def cook_text(sample):
    ...     return TextSample(**basic_sample_keys(sample), text=sample["json"]["text"])
    >>> class Encoder(DefaultTaskEncoder):
    ...     cookers = [Cooker(cook_text, has_subflavors={"kind": "text"})]
    >>> Encoder.cookers[0].is_match({"kind": "text", "language": "en"})
    True
    """

    cook: Callable[..., T_sample]
    has_subflavors: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not callable(self.cook):
            raise ConfigError(f"Cooker(cook={self.cook!r}): expected a function of a crude sample")
        if not isinstance(self.has_subflavors, Mapping | None):
            raise ConfigError(f"Cooker(has_subflavors={self.has_subflavors!r}): expected a dict, or None for any")

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
        function = getattr(self.cook, "func", self.cook)  # of a partial
        return str(getattr(function, "__qualname__", function)).rpartition("<locals>.")[2]

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
            f"{name}={value!r}, " + (f"not {subflavors[name]!r}" if name in subflavors else "which is missing")
            for name, value in self._mismatches(subflavors).items()
        )

    def _mismatches(self, subflavors: Mapping[str, Any]) -> dict[str, Any]:
        wanted = self.has_subflavors or {}
        return {name: value for name, value in wanted.items() if subflavors.get(name, _ABSENT) != value}


_ABSENT = object()


def first_parts(source: Source) -> dict[str, Any]:
    """The parts of the first sample, with JSON decoded; none if there is no sample."""
    if not source.num_samples:
        return {}
    parts: dict[str, Any] = dict(source.records.reader().read(0).parts)
    for name in parts:
        if name.rpartition(".")[2] == "json":
            with contextlib.suppress(TypeError, ValueError):  # of samples in memory, it is decoded
                parts[name] = json.loads(parts[name])
    return parts


def fields_in_words(sample: Mapping[str, Any]) -> str:
    """The parts of a crude sample, and what is in the JSON objects among them, for messages."""
    parts = []
    for name, value in sample.items():
        if not name.startswith("__"):
            is_object = isinstance(value, Mapping)
            inside = [f"{field}: {type(entry).__name__}" for field, entry in value.items()] if is_object else []
            parts.append(f"{name} {{{', '.join(inside)}}}" if is_object else f"{name} ({type(value).__name__})")
    return ", ".join(parts)[:500] or "none"


def choose_cooker(
    cookers: Sequence[Cooker[Any]],
    subflavors: Mapping[str, Any],
    what: str,
    first: Callable[[], Mapping[str, Any]],
    *,
    has_columns: bool = False,
) -> Cooker[Any]:
    """The first cooker that takes samples with these sub-flavors; all others that do must be less strict.

    A ConfigError if none does, or if two do and neither is stricter. `what` names the samples in messages, `first`
    returns the parts of one. With columns, a field map would do instead.
    """
    matching = [cooker for cooker in cookers if cooker.is_match(subflavors)]
    if not matching:
        tried = "".join(f"\n  {cooker.name} wants {cooker.mismatch(subflavors)}" for cooker in cookers) or " none"
        or_fields = ", or give sample_type, and field_map, which says which column gives each field"
        raise ConfigError(
            f"no cooker takes {what} with subflavors {dict(subflavors)}; tried:{tried}\n"
            f"Add a Cooker to the task encoder's `cookers` (for chats: bridge_data.encoders.cook_conversation), or set "
            f"the subflavors that one of them wants{or_fields if has_columns else ''}.\n"
            f"The fields of a sample: {fields_in_words(first())}"
        )
    found, *others = matching
    for other in others:
        if not found.is_stricter_than(other):
            raise ConfigError(
                f"two cookers take {what} with subflavors {dict(subflavors)}: {found.name} (has_subflavors="
                f"{found.has_subflavors}) and {other.name} (has_subflavors={other.has_subflavors}). Only one that asks "
                "for all that the other asks for, and more, may come before it; put the stricter one first, or let "
                "them ask for different subflavors."
            )
    return found


current_stores: ContextVar[Mapping[str, FileStore[Any]] | None] = ContextVar("bridge_data_stores", default=None)
"""The file stores of the source whose sample is being cooked in this thread."""


def cook(
    cooker: Cooker[Any] | None,
    cookers: Sequence[Cooker[Any]],
    sample: CrudeSample,
    stores: Mapping[str, FileStore[Any]] | None,
) -> Any:
    """Cook a sample by `cooker` (None: the one of `cookers` that takes it) with `stores` (None: `current_stores`)."""
    if cooker is None:
        what = f"crude sample {sample.get('__key__')}"
        subflavors = sample.get("__subflavors__") or {}
        cooker = choose_cooker(cookers, subflavors, what, lambda: sample)
    given: dict[str, Any] = dict((current_stores.get() or {}) if stores is None else stores)
    primary = given.pop(PRIMARY, None)
    if cooker.need_primary:
        given[PRIMARY] = PrimaryFileStore(primary, _key_of(sample))
    if cooker.need_cache:
        given[CACHE] = current_cache()
    return cooker.cook(sample, **given)


def _key_of(sample: CrudeSample) -> str:
    """The key of a sample with its shard, also where `__key__` is bare; lines of JSONL have none."""
    key, shard = str(sample["__key__"]), sample.get("__shard__")
    return key if shard is None or is_jsonl(shard) or key.startswith(f"{shard}/") else f"{shard}/{key}"


def basic_sample_keys(crude_sample: CrudeSample, additional_source_info: tuple[SourceInfo, ...] = ()) -> dict[str, Any]:
    """The provenance of a crude sample, as keyword arguments of the cooked sample; with additional sources that the
    cooked sample uses.

    >>> basic_sample_keys(CrudeSample({"__key__": "0.tar/7", "__subflavors__": {}, "txt": "a"}))
    {'__key__': '0.tar/7', '__subflavors__': {}}
    """
    keys = {name: crude_sample[name] for name in PROVENANCE if name in crude_sample}
    if additional_source_info:
        keys["__sources__"] = (*(crude_sample.get("__sources__") or ()), *additional_source_info)
    return keys


class SourceCook:
    """Cooks the crude samples of `source` by `hook`, the encoder's `cook_crude_sample`. It gets the sample and, if it
    takes them, the cooker and its file stores, whose content `decoder` decodes.
    """

    def __init__(
        self, source: Source, hook: Callable[..., Any], cookers: Sequence[Cooker[Any]], decoder: SampleDecoder | None
    ) -> None:
        self._source, self._hook, self._cookers, self._decoder = source, hook, cookers, decoder
        self._takes_cooker = _obstacle(hook, None, None, None) is None
        self._cooker, self._stores = self._chosen()

    def __call__(self, sample: CrudeSample) -> Any:
        token = current_stores.set(self._stores)
        try:
            return self._hook(sample, self._cooker, self._stores) if self._takes_cooker else self._hook(sample)
        finally:
            current_stores.reset(token)

    def _chosen(self) -> tuple[Cooker[Any] | None, Mapping[str, FileStore[Any]]]:
        """The cooker (None: the hook cooks by itself), and the file stores."""
        from bridge_data.task.stores import open_aux  # here: typed samples need no store

        source = self._source
        stores = open_aux(source, self._decoder)
        if not self._takes_cooker:
            if any(cooker.need_primary for cooker in self._cookers):  # the hook may call any of them
                stores |= self._primary(stores)
            if any(cooker.need_cache for cooker in self._cookers):
                self._refuse(CACHE, stores)
            return None, stores
        what = f"samples of {source.path} [{source.split_part}]"
        if source.format == "tars":
            what += ", tars of which `bridge-data prepare` would learn what they hold,"
        cooker = choose_cooker(
            self._cookers,
            source.subflavors,
            what,
            functools.partial(first_parts, source),
            has_columns=bool(source.values),
        )
        if cooker.need_primary:
            stores |= self._primary(stores)
        if cooker.need_cache:
            self._refuse(CACHE, stores)
        names = [*stores, *([CACHE] if cooker.need_cache else [])]
        obstacle = _obstacle(cooker.cook, None, **dict.fromkeys(names))
        if obstacle is not None:
            call = ", ".join(["sample", *(f"{name}=..." for name in names)])
            raise ConfigError(
                f"cooker {cooker.name}: {obstacle}, when it is called as {cooker.name}({call}) for samples of "
                f"{source.path} [{source.split_part}]. Its parameters are the sample and, by keyword, all that the "
                "metadataset names in `aux`; `primary` and `cache` if @cooker(need_primary=True, need_cache=True) asks"
            )
        return cooker, stores

    def _primary(self, stores: Mapping[str, FileStore[Any]]) -> dict[str, FileStore[Any]]:
        from bridge_data.task.stores import open_primary

        self._refuse(PRIMARY, stores)
        return {PRIMARY: open_primary(self._source, self._decoder)}

    def _refuse(self, name: str, stores: Mapping[str, FileStore[Any]]) -> None:
        if name in stores:
            raise ConfigError(
                f"auxiliary data of {self._source.path} are called {name!r}, but a cooker needs that name for "
                "something else; rename them"
            )


def _obstacle(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> str | None:
    """Why a function cannot be called with these arguments; None if it can, or has no signature."""
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except TypeError as error:
        return str(error)
    except ValueError:
        return None
    return None
