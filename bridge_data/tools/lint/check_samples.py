"""Checking one sample: that its parts can be decoded, and make a sample of the intended class.

Enters: the bytes of the parts, and recipes, which say how to make samples from them. Leaves: faults. A value fits any
annotation that cannot be checked (`Any`, a protocol).
"""

import collections
import dataclasses
import io
import types
import typing
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from PIL import Image

from bridge_data.decode import SampleDecoder
from bridge_data.decode.av import AVDecoder
from bridge_data.decode.av.container import open_container, reading
from bridge_data.decode.sample_decoder import decode_part
from bridge_data.errors import BridgeDataError, ConfigError, SampleError
from bridge_data.limits import DEFAULT_LIMITS, Limits, allow_pixels
from bridge_data.plan.source import FieldAccess
from bridge_data.tools.lint.faults import Fault

_UNKNOWN = object()

_FIRST_ITEMS = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """How samples are made of parts: a class, and the parts of its fields. `parts` may be read; None: all."""

    sample_class: type[Any]
    field_map: Mapping[str, FieldAccess]
    parts: Container[str] | None


class SampleCheck:
    """Checks samples; without `decode`, only whether the parts that the recipes need exist."""

    def __init__(self, *, decode: bool, limits: Limits = DEFAULT_LIMITS) -> None:
        self._decode = decode
        self._hints: dict[type[Any], Mapping[str, Any]] = {}
        allow_pixels(limits)
        self._decoder = SampleDecoder(image_decode="torchrgb8", limits=limits)

    def check(self, key: str, parts: Mapping[str, bytes], recipes: Iterable[Recipe]) -> Iterator[Fault]:
        """Faults of the sample `key`, whose parts these are, and which `recipes` make; without data set and shard."""
        decoded: dict[str, Any] = {"__key__": key}
        for part, content in parts.items():
            decoded[part] = _UNKNOWN
            if self._decode:
                try:
                    decoded[part] = self._decoded(part, content, key)
                except BridgeDataError as error:
                    yield Fault(code_of(error), _cause(error), key=key, part=part)
        seen: set[tuple[str, str]] = set()
        for recipe in recipes:
            for fault in self._fields(recipe, decoded):
                if (fault.code, fault.cause) not in seen:
                    seen.add((fault.code, fault.cause))
                    yield fault

    def _decoded(self, part: str, content: bytes, key: str) -> Any:
        handler = self._decoder.handler(part)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # refused, and reported as a fault
            value = content if handler is None else decode_part(handler, content, key, part)
        if isinstance(value, AVDecoder):
            decode_part(_play, content, key, part)
        return value

    def _fields(self, recipe: Recipe, decoded: Mapping[str, Any]) -> Iterator[Fault]:
        key, sample_class = decoded["__key__"], recipe.sample_class
        hints = self._hints.get(sample_class)
        if hints is None:
            hints = self._hints[sample_class] = _hints(sample_class)
        for field, access in recipe.field_map.items():
            options = (access, *access.alternatives)
            there = [option for option in options if option.part in decoded]
            if not there:
                wanted = " or ".join(repr(option.part) for option in options)
                present = ", ".join(part for part in decoded if part != "__key__")
                cause = f"field {field!r} needs part {wanted}; there is {present or 'nothing'}"
                yield Fault("missing-part", cause, key=key, part=access.part)
            elif all(decoded[option.part] is not _UNKNOWN for option in there):
                yield from self._value(field, access, hints.get(field, Any), decoded)

    def _value(self, field: str, access: FieldAccess, hint: Any, decoded: Mapping[str, Any]) -> Iterator[Fault]:
        key = decoded["__key__"]
        try:
            value = access.get(decoded)
        except SampleError as error:
            yield Fault("missing-field", f"field {field!r}: {error}", key=key, part=access.part)
            return
        if not is_of_type(value, hint):
            shown = hint.__name__ if isinstance(hint, type) else str(hint)
            cause = f"field {field!r} is a {type(value).__name__}, expected {shown}"
            yield Fault("wrong-type", cause, key=key, part=access.part)


def code_of(error: Exception) -> str:
    """The kind of fault for an error in reading, decoding or making a sample."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UnicodeDecodeError):
            return "not-utf8"
        if isinstance(cause, Image.DecompressionBombError):
            return "image-too-large"
        cause = cause.__cause__
    if isinstance(error, ConfigError):
        return "no-decoder"
    return "unbuildable" if error.__cause__ is None else "undecodable"


def _cause(error: Exception) -> str:
    """The cause, without the sample's name, which the fault already has."""
    return str(error) if error.__cause__ is None else f"{type(error.__cause__).__name__}: {error.__cause__}"


def _play(content: bytes) -> None:
    """Decode every frame of a medium, one by one.

    Raises:
        SampleError: if that fails, or if it is shorter than its header says.
    """
    with open_container(io.BytesIO(content)) as container, reading("the medium"):
        streams = [stream for stream in container.streams if stream.type in ("video", "audio")]
        num_packets = collections.Counter[int]()
        for packet in container.demux(streams):
            num_packets[packet.stream_index] += packet.size > 0
            packet.decode()
        for stream in streams:
            if num_packets[stream.index] < stream.frames:
                raise SampleError(
                    f"the medium is truncated: its {stream.type} has {num_packets[stream.index]} packets of "
                    f"{stream.frames}"
                )


def _hints(sample_class: type[Any]) -> Mapping[str, Any]:
    """The types of the fields; none for a class whose annotations cannot be resolved."""
    try:
        return typing.get_type_hints(sample_class)
    except NameError:
        return {}


def is_of_type(value: Any, hint: Any) -> bool:
    """Whether `value` fits `hint`; of long lists and dicts, only the first hundred items are checked."""
    if hint is Any:
        return True
    if hint is None:
        return value is None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(is_of_type(value, option) for option in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return is_of_type(value, arguments[0])
    if isinstance(origin, type):
        return _is_container(value, origin, arguments)
    if not isinstance(hint, type):
        return True
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    try:
        return isinstance(value, hint)
    except TypeError:  # a protocol that cannot be checked
        return True


def _is_container(value: Any, origin: type, arguments: tuple[Any, ...]) -> bool:
    if origin is tuple and isinstance(value, list):  # as JSON has it
        value = tuple(value)
    if not isinstance(value, origin):
        return False
    if isinstance(value, dict) and len(arguments) == 2:
        items = list(value.items())[:_FIRST_ITEMS]
        return all(is_of_type(key, arguments[0]) and is_of_type(item, arguments[1]) for key, item in items)
    if isinstance(value, tuple) and Ellipsis not in arguments:
        return len(value) == len(arguments) and all(map(is_of_type, value, arguments))
    if isinstance(value, (list, tuple)) and arguments:
        return all(is_of_type(item, arguments[0]) for item in value[:_FIRST_ITEMS])
    return True
