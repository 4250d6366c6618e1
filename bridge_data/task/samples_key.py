"""Keys of what an encoder makes of samples: equal for runs of the same settings, whose user names the same version.

Reads an encoder, and the sources of its samples. Returns hex digits, the same in all processes and runs: a hash of this
package's version, the version that the user names, the names of the classes, and their settings: attributes that are
plain data (numbers, texts, containers of these, enums, dataclasses, decoders, inner encoders), the vocabulary and the
settings that a tokenizer or processor stores. Code is not read, and any other object counts by the name of its class
alone: what these do is what the named version stands for. Users of a key check it by making some samples again
(the memo, the cost index).

Caches (`functools.cached_property`) and what `__getstate__` leaves out do not count. `costs_key` is for the same
costs: of a `Packing`, only how it counts the length matters. `content_keys` are for the same content.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from importlib import metadata
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError
from bridge_data.samples import CrudeSample

if TYPE_CHECKING:
    from bridge_data.plan import Source

RULES = 2
"""Raised when our own encoders make something else of the same samples."""

_OF_PLACE = {"name_or_path", "_name_or_path", "_commit_hash", "transformers_version", "vocab_file", "tokenizer_file"}
"""Settings of transformers that change no sample."""


def costs_key(encoder: Any, source: Source | None = None) -> str:
    """See the module; `source` None: of the encoder alone."""
    told = ["costs", RULES, metadata.version("bridge_data"), _Teller(of_costs=True).told(encoder)]
    if source is not None:
        told.append([_of_source(encoder, one) for one in {source: 0, **dict.fromkeys(source.members)}])
    return _digest(json.dumps(told, sort_keys=True).encode(), 8)


def content_keys(encoder: Any, sources: Sequence[Source], version: str) -> list[str]:
    """For each source, see the module, under the `version` that the user names; it does not count which data a source
    has, but how samples are made of them."""
    teller = _Teller(of_costs=False)
    own = [RULES, metadata.version("bridge_data"), version, teller.told(encoder)]
    of_encoder, keys = _digest(json.dumps(own, sort_keys=True).encode()), []
    for source in sources:
        told: list[Any] = [of_encoder]
        for one in {source: 0, **dict.fromkeys(source.members)}:
            settings = [one.limits, one.parts, sorted(one.values), one.format, dict(one.subflavors), one.sample_loader]
            told.append([_of_source(encoder, one), teller.told(settings)])
        keys.append(_digest(json.dumps(told, sort_keys=True).encode()))
    return keys


def _of_source(encoder: Any, source: Source) -> list[Any]:
    """How samples are made of the data, as far as it is not in the data: fields, and which cookers take them."""
    is_crude = issubclass(source.sample_class, CrudeSample)
    cookers = [cooker.is_match(source.subflavors) for cooker in encoder.cookers] if is_crude else []
    fields = sorted((name, str(access)) for name, access in source.field_map.items())
    loader = None if source.sample_loader is None else _name(type(source.sample_loader))
    joiner = None if source.composition is None else _name(source.composition.joiner)
    return [_name(source.sample_class), fields, cookers, loader, joiner, sorted(source.aux)]


class _Teller:
    """Tells settings as plain data for JSON."""

    def __init__(self, *, of_costs: bool) -> None:
        self._of_costs = of_costs
        self._open: list[Any] = []

    def told(self, value: Any) -> Any:
        """`value` as plain data; of an object that is not, the name of its class."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return repr(value)
        if isinstance(value, (bytes, bytearray)):
            return _digest(value)
        if isinstance(value, PurePath):
            return ["a path", str(value)]
        if isinstance(value, re.Pattern):
            return [value.pattern, value.flags]
        if inspect.isclass(value) or inspect.isroutine(value):
            return _name(value)
        if any(value is one for one in self._open):
            return "above"
        self._open.append(value)
        try:
            kind = None if isinstance(value, (list, tuple)) else _name(type(value))
            return [kind, self._inner(value)]
        finally:
            self._open.pop()

    def _inner(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return [value.name, self.told(value.value)]
        if isinstance(value, (int, float, str)):
            return repr(value)
        if isinstance(value, Mapping):
            return sorted(([self.told(key), self.told(one)] for key, one in value.items()), key=json.dumps)
        if isinstance(value, Set):
            return sorted((self.told(one) for one in value), key=json.dumps)
        if isinstance(value, Sequence):
            return [self.told(one) for one in value]
        if isinstance(value, functools.partial):
            return [self.told(one) for one in (value.func, value.args, value.keywords)]
        if hasattr(value, "save_pretrained"):
            return self._pretrained(value)
        if _has_settings(value):
            return self._attributes(value)
        return None

    def _attributes(self, value: Any) -> Any:
        left_out = {field.name for field in getattr(value, "__dataclass_fields__", {}).values() if not field.compare}
        if self._of_costs:
            left_out.update(getattr(type(value), "NOT_COSTS", ()))
        return [
            [name, self.told(one)]
            for name, one in sorted(_state_of(value).items())
            if name not in left_out and not isinstance(getattr(type(value), name, None), functools.cached_property)
        ]

    def _pretrained(self, value: Any) -> Any:
        """What a tokenizer or processor of transformers stores of itself."""
        vocabulary = value.get_vocab() if hasattr(value, "get_vocab") else None
        words = None if vocabulary is None else _digest(json.dumps(vocabulary, sort_keys=True).encode())
        settings = value.to_dict() if vocabulary is None and hasattr(value, "to_dict") else {}
        settings = {name: one for name, one in settings.items() if name not in _OF_PLACE}
        parts = [getattr(value, name, None) for name in ("tokenizer", "image_processor", "feature_extractor")]
        return [words, getattr(value, "chat_template", None), self.told(settings), *map(self.told, parts)]


def _has_settings(value: Any) -> bool:
    """Whether the attributes of an object are settings: of dataclasses, task encoders and decoders."""
    return dataclasses.is_dataclass(value) or isinstance(value, SampleDecoder) or hasattr(type(value), "costs_version")


def _state_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, without its caches; of an encoder, also those of its class that are settings."""
    state = value.__getstate__()
    if isinstance(state, tuple):  # of a class with slots
        state = {**(state[0] or {}), **(state[1] or {})}
    found = dict(state) if isinstance(state, dict) else {}
    found |= {name: getattr(value, name) for name in getattr(value, "__dataclass_fields__", {})}
    own = ("decoder", "cookers", "costs_version") if hasattr(value, "costs_version") else ()
    return {**{name: getattr(value, name) for name in own}, **found}


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _digest(content: bytes | bytearray, size: int = 16) -> str:
    return hashlib.blake2b(content, digest_size=size).hexdigest()


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
