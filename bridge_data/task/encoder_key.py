"""The key of a task encoder's costs: equal for encoders that make the same number of tokens of every sample.

Reads an encoder, and the source of its samples. Returns 16 hex digits, the same in all processes, runs and on all
machines: a hash of the classes' names, the code of those outside this package and installed ones, and the attributes:
settings, the tokenizer as it is stored, processors as their `to_dict`. Paths, caches (`functools.cached_property`) and
what `__getstate__` leaves out do not count. Raises `ConfigError` for an attribute that cannot be told that way.

With `costs_version` in its class, an encoder says by itself when its costs change: that text counts instead of its
code, and attributes of unknown kinds do not count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import inspect
import json
import re
import sysconfig
import textwrap
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge_data.errors import ConfigError
from bridge_data.samples import CrudeSample

if TYPE_CHECKING:
    from bridge_data.plan import Source

COST_RULES = 1
"""Raised when our own encoders count differently."""

_OF_PLACE = {"name_or_path", "_name_or_path", "_commit_hash", "transformers_version", "vocab_file", "tokenizer_file"}
_PER_CALL = ("truncation", "padding")
"""Settings that a call of a tokenizer leaves in it."""

_INSTALLED = tuple(
    path for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_paths().get(name))
)


def costs_key(encoder: Any, source: Source | None = None) -> str:
    """See the module; `source` None: of the encoder alone."""
    told = [COST_RULES, _Teller(encoder).told(encoder, type(encoder).__qualname__)]
    if source is not None:
        told.append([_of_source(encoder, one) for one in {source: 0, **dict.fromkeys(source.members)}])
    return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=8).hexdigest()


def _of_source(encoder: Any, source: Source) -> list[Any]:
    """How samples are made of the data, as far as it is not in the data: fields, and which cookers take them."""
    is_crude = issubclass(source.sample_class, CrudeSample)
    cookers = [cooker.is_match(source.subflavors) for cooker in encoder.cookers] if is_crude else []
    fields = sorted((name, str(access)) for name, access in source.field_map.items())
    maker = None if source.maker is None else type(source.maker).__qualname__
    joiner = None if source.joined is None else getattr(source.joined.joiner, "__qualname__", "")
    return [source.sample_class.__qualname__, fields, cookers, maker, joiner, sorted(source.aux)]


class _Teller:
    """Tells objects as plain data."""

    def __init__(self, encoder: Any) -> None:
        self._version: str | None = getattr(encoder, "costs_version", None)
        self._users = {cls.__module__.partition(".")[0] for cls in type(encoder).__mro__} - {"bridge_data"}
        self._open: list[Any] = []

    def told(self, value: Any, where: str) -> Any:
        """`value` as plain data; `where` it is, for messages."""
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return repr(value)
        if isinstance(value, (bytes, bytearray)):
            return _digest(value)
        if isinstance(value, enum.Enum):
            return [type(value).__qualname__, value.name]
        if isinstance(value, Path):
            return ["a path", value.name]
        if isinstance(value, re.Pattern):
            return [value.pattern, value.flags]
        if any(value is one for one in self._open):
            return "above"
        self._open.append(value)
        try:
            return self._inner(value, where)
        finally:
            self._open.pop()

    def _inner(self, value: Any, where: str) -> Any:
        if isinstance(value, Mapping):
            items = ((self.told(key, where), self.told(one, f"{where}[{key!r}]")) for key, one in value.items())
            return [type(value).__qualname__, *sorted(items, key=_sortable)]
        if isinstance(value, Set):
            return sorted((self.told(one, where) for one in value), key=_sortable)
        if isinstance(value, Sequence):
            return [self.told(one, f"{where}[{number}]") for number, one in enumerate(value)]
        if isinstance(value, functools.partial):
            return [self.told(one, where) for one in (value.func, value.args, value.keywords)]
        if inspect.isclass(value):
            return self._class(value)
        if inspect.ismethod(value):
            return [value.__name__, self.told(value.__self__, f"{where}.__self__")]
        if inspect.isroutine(value):
            return self._named(value, where)
        known = _known(value)
        if known is not None:
            return [type(value).__qualname__, self.told(known, where)]
        return self._object(value, where)

    def _object(self, value: Any, where: str) -> Any:
        if dataclasses.is_dataclass(value):
            state: Any = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        else:
            state = value.__getstate__() if hasattr(value, "__dict__") else None
        if not isinstance(state, dict):
            if self._version is not None:
                return type(value).__qualname__
            raise ConfigError(
                f"{where}: an encoder with a {type(value).__name__} cannot be told from another one, whose samples may "
                "have other costs. Set `costs_version = '1'` in its class, and change it with the code"
            )
        if hasattr(type(value), "costs_key"):  # an encoder: its class may hold these, too
            state = {"decoder": value.decoder, "cookers": value.cookers, **state}
        own = {
            name: self.told(one, f"{where}.{name}")
            for name, one in sorted(state.items())
            if name not in getattr(type(value), "NOT_COSTS", ())
            and not isinstance(getattr(type(value), name, None), functools.cached_property)
        }
        return [self._class(type(value)), own]

    def _class(self, cls: type) -> Any:
        """Its name, and the code of all its classes that may change."""
        return [cls.__qualname__, *(self._named(one, cls.__qualname__) for one in cls.__mro__ if self._is_own(one))]

    def _named(self, value: Any, where: str) -> Any:
        """The name of a class or a function, and its code if it may change."""
        if not self._is_own(value):
            return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value)}"
        if self._version is not None:
            return [value.__qualname__, self._version]
        try:
            told = [value.__qualname__, textwrap.dedent(inspect.getsource(inspect.unwrap(value)))]
        except (OSError, TypeError) as error:
            raise ConfigError(
                f"{where}: the code of {value.__qualname__} cannot be read, so it is unknown when costs change: set "
                "`costs_version = '1'` in the encoder's class, and change it with the code"
            ) from error
        function = inspect.unwrap(value)
        held = [getattr(function, name, None) for name in ("__defaults__", "__kwdefaults__")]
        for cell in getattr(function, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # it is still empty
                if not inspect.isclass(cell.cell_contents):  # as that of `super`
                    held.append(cell.cell_contents)
        if held != [None, None]:
            told.append(self.told(held, f"{where} (its closure)"))
        return told

    def _is_own(self, value: Any) -> bool:
        """Whether a class or function is the user's, who may change it."""
        module = getattr(value, "__module__", None) or "builtins"
        package = module.partition(".")[0]
        if package in ("bridge_data", "builtins"):
            return False
        if package in self._users and package not in ("typing", "abc"):
            return True
        try:
            return not inspect.getfile(value).startswith(_INSTALLED)
        except TypeError:
            return False


def _known(value: Any) -> Any:
    """What tells an object of transformers, torch or numpy; None for others."""
    if hasattr(value, "get_vocab") and hasattr(value, "__len__"):
        told = (getattr(value, name, None) for name in ("special_tokens_map", "chat_template", "model_max_length"))
        return [_of_vocabulary(value), *told]
    if hasattr(value, "serialized_model_proto"):
        return value.serialized_model_proto()
    parts = (inspect.getattr_static(value, name, None) for name in ("tokenizer", "image_processor", "to_dict"))
    if None not in parts:  # a processor, not an encoder that opens its own when it is asked for it
        held = [getattr(value, name) for name in getattr(value, "attributes", ("tokenizer", "image_processor"))]
        return [*held, getattr(value, "chat_template", None), _without_places(value.to_dict())]
    if callable(getattr(value, "to_dict", None)):
        return _without_places(value.to_dict())
    if callable(getattr(value, "numpy", None)) and hasattr(value, "detach"):
        value = value.detach().cpu().contiguous()
        return [str(value.dtype), list(value.shape), value.flatten().view(-1).numpy().tobytes()]
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return [str(value.dtype), list(value.shape), value.tobytes()]
    return None


_vocabularies: weakref.WeakKeyDictionary[Any, tuple[int, str]] = weakref.WeakKeyDictionary()
"""Of tokenizers, their size and digest: a blend asks for each of its data sets, and a large one takes 0.5 s."""


def _of_vocabulary(tokenizer: Any) -> str:
    """A digest of what a tokenizer makes of texts."""
    size, digest = _vocabularies.get(tokenizer, (0, ""))
    if size != len(tokenizer):
        told: Any = [tokenizer.get_vocab(), [*map(list, getattr(tokenizer, "bpe_ranks", ()))]]
        if hasattr(tokenizer, "backend_tokenizer"):
            told = json.loads(tokenizer.backend_tokenizer.to_str())
            told = {name: one for name, one in told.items() if name not in _PER_CALL}
        digest = _digest(json.dumps(told, sort_keys=True).encode())
        _vocabularies[tokenizer] = len(tokenizer), digest
    return digest


def _without_places(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _OF_PLACE}


def _sortable(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _digest(content: bytes | bytearray) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def count_tokens(sample: Any, length: Callable[[Any], int] | None) -> int:
    """The tokens of an encoded sample: its `length` for packing, or else of its `tokens` or `input_ids`.

    Raises:
        ConfigError: if it has none of these.
    """
    if length is not None:
        return length(sample)
    for name in ("tokens", "input_ids"):
        tokens = sample.get(name) if isinstance(sample, Mapping) else getattr(sample, name, None)
        if tokens is not None:
            return int(tokens.shape[-1]) if hasattr(tokens, "shape") else len(tokens)
    raise ConfigError(
        f"a {type(sample).__name__} has no `tokens` or `input_ids` to count: override `costs` in the task encoder, a "
        "method that returns numbers of an encoded sample, such as {'tokens': 120, 'images': 1}"
    )
