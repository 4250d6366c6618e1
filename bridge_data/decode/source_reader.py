"""Readers of sources: read and decode sample i of a source.

Reads the index of a sample. Returns a `Sample` with the fields of the field map; a `CrudeSample` with all parts; or
what the source's own sample loader returns. Only parts that are needed are read and decoded. A sample depends on the
data and the index alone. Raises a `SampleError` that names the sample, the part and the field.

Values are stored as decoded: a JSON list stays a list. Each must have the type that the sample class declares for its
field (`FieldType`), unless the user decodes its part.

`read`, then `build`, work for each sample. `take_plain` makes the same of many that are text, out of their blocks; it
knows id and epoch of each, and sets `__restore_key__`.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import operator
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bridge_data import storage
from bridge_data.data import ByteRange, RawSample, RecordReader
from bridge_data.data.blocks import BlockBudget, BlockCache, BlockRule
from bridge_data.decode.image import IMAGE_WARNINGS, log_image_warnings
from bridge_data.decode.sample_decoder import Handler, SampleDecoder, is_plain, raise_undecodable
from bridge_data.errors import DatasetError, FatalSampleError, SampleError
from bridge_data.later import numpy
from bridge_data.plan import Source
from bridge_data.plan.source import Parts, other_names, renamed
from bridge_data.samples import CrudeSample, Sample, SourceInfo


class SourceReader(abc.ABC):
    """Reads and builds the samples of one source, in one process. Files are opened on first use."""

    is_plain = False
    """Whether samples have only text, numbers, JSON and bytes, decoded by built-in handlers."""
    is_builtin_only = False
    """Whether built-in code alone makes samples, from whole parts: no code of the user has seen the decoded data."""

    def __init__(self, source: Source) -> None:
        self._source, self.is_remote = source, source.is_remote
        self._blocks: BlockCache | None = None

    @functools.cached_property
    def _reader(self) -> RecordReader:
        return self._source.records.reader()

    def read(self, index: int) -> RawSample:
        """The stored parts of sample `index`, not decoded. A `DatasetError` if it cannot be read."""
        blocks = self._blocks
        return self.read_singly(index) if blocks is None else blocks.read(index)

    def read_singly(self, index: int) -> RawSample:
        """The stored parts of sample `index`, read without the block that it is in."""
        return self._reader.read(index, self._source.parts)

    def release(self, index: int) -> None:
        """Free what is held of sample `index`, or was announced: it will not be read."""
        with contextlib.suppress(DatasetError):  # a read would say what is wrong
            if self._blocks is not None:
                self._blocks.release(index)
            elif self.is_remote:
                storage.release(self.byte_ranges(index))

    @abc.abstractmethod
    def build(self, raw: RawSample, index: int) -> Sample | CrudeSample:
        """Decode what `read(index)` returned. This is what a sample is; `take_plain` of `SingleSourceReader` writes it
        out for simple ones, so a change here is one there.

        Raises:
            SampleError: if it cannot be decoded, or a field is missing or has a value of another type than declared.
            FatalSampleError: if the user's sample loader or joiner returns no sample.
        """

    def take_plain(
        self, indices: Sequence[int], name: str, epochs: Sequence[int], before_read: Callable[[int], None]
    ) -> list[Any | None]:
        """Samples that need no decoding except of text, out of their blocks. None for all others, and for those that
        cannot be built: `build` raises the reason. Empty if no sample ever is one. `name` of the source and `epochs`
        are for their keys; `before_read` is called with the position of a sample whose block is read now.

        Raises:
            DatasetError: if a remote block cannot be read.
        """
        return []

    def byte_ranges(self, index: int) -> Sequence[ByteRange]:
        """The byte ranges that `read(index)` will read."""
        return self._reader.byte_ranges(range(index, index + 1), self._source.parts)

    def read_in_blocks(self, rule: BlockRule | None, budget: BlockBudget) -> None:
        """From now on, read whole blocks of neighbouring samples, as `rule` says, within `budget`; None: one by one."""
        self._blocks = None
        if rule is not None and self._reader.has_blocks:
            self._blocks = BlockCache(self._source.records.shards, self._reader, rule, self._source.parts, budget)

    def block(self, index: int) -> range | None:
        """The indices of the block that sample `index` is in; None if samples are read one by one."""
        return None if self._blocks is None else self._blocks.block(index)

    def block_bytes(self, block: range) -> ByteRange | None:
        """The byte range read for the first sample of `block`; None if its samples are read one by one."""
        return None if self._blocks is None else self._blocks.block_bytes(block)


def open_source_reader(source: Source, decoder: SampleDecoder | None, *, bare_keys: bool = False) -> SourceReader:
    """The reader of `source`. Without a decoder parts stay bytes, except JSONL lines, which are always decoded. With
    `bare_keys`, the `__key__` of a sample is without its shard, as in Energon, and unique only in the shard."""
    if source.composition is None:
        return SingleSourceReader(source, decoder, bare_keys=bare_keys)
    found: SourceReader = source.composition.reader(source, decoder, bare_keys=bare_keys)
    return found


class SingleSourceReader(SourceReader):
    """Reads the samples of a source that is made of no others.

    Raises:
        ConfigError: if a part that the field map needs has a format whose package is not installed.
    """

    def __init__(self, source: Source, decoder: SampleDecoder | None, *, bare_keys: bool = False) -> None:
        super().__init__(source)
        self._bare_keys = bare_keys
        self._key: Callable[[RawSample], str] = operator.attrgetter("key" if bare_keys else "full_key")
        decoder = SampleDecoder() if source.always_decoded else decoder
        self._decoder = None if decoder is None else decoder.within(source.limits)
        self._class: Callable[..., Sample | CrudeSample] = source.sample_class
        self._crude = issubclass(source.sample_class, CrudeSample)
        self._fields = self._checked_fields()
        self._subflavors = dict(source.subflavors)
        self._handlers: dict[str, Handler | None] = {}
        self._other_names: Mapping[str, str] = {}
        self._whole_parts: tuple[tuple[str, str, Handler], ...] = ()
        self._make: Callable[[dict[str, Any]], Any] | None = None
        if source.sample_loader is not None:
            self._make = source.sample_loader.load_function(self._decoder, self._subflavors)
        elif not self._crude:
            for access in source.field_map.values():
                for part in access.parts:
                    self._handlers[part] = self._handler(part)
            self._other_names = other_names(self._handlers)
            self._whole_parts = self._fields_of_whole_parts()
            self.is_plain = all(map(is_plain, self._handlers.values()))
            self.is_builtin_only = bool(self._whole_parts) and (decoder is None or decoder.is_builtin_only)

    def take_plain(
        self, indices: Sequence[int], name: str, epochs: Sequence[int], before_read: Callable[[int], None]
    ) -> list[Any | None]:
        # `build`, written out for many without a `RawSample`: of small samples, objects and calls take most time.
        if self._blocks is None or not self.is_plain or not self._whole_parts:
            return []
        reader, cache, held = self._reader, self._blocks, self._blocks.held
        if reader.sample_class is not RawSample:
            return []
        path = reader.dataset_path
        whole, make, subflavors, bare = self._whole_parts, self._class, self._subflavors, self._bare_keys
        (field, _, decode), num_whole, new = whole[0], len(whole), object.__new__
        taken: list[Any | None] = []
        for index, epoch in zip(indices, epochs, strict=True):
            block = held.get(index)
            if block is None:
                before_read(len(taken))
                cache.open(index)
                if (block := held.get(index)) is None:
                    taken.append(None)
                    continue
            number, shard = index - block.first, block.shard_name
            key, content = block.keys[number], block.contents[number]
            try:
                if block.name is not None:
                    fields = {field: decode(content)}
                    files: tuple[str, ...] = (f"{key}.{block.name}",)
                else:
                    fields = {target: decode_one(content[one]) for target, one, decode_one in whole}
                    files = tuple([f"{key}.{one}" for one in content])
                source = new(SourceInfo)  # not by its constructor, which takes three times as long
                source.dataset_path, source.index = path, block.numbers[number]
                source.shard_name, source.file_names = shard, files
                sample = make(
                    __key__=key if bare else f"{shard}/{key}",
                    __restore_key__=(name, epoch, index, 0),
                    __subflavors__=subflavors,
                    __sources__=(source,),
                    **fields,
                )
            except Exception:
                sample = None
            if sample is None or len(files) != num_whole:
                taken.append(None)  # it stays in the block, to be built by itself
                continue
            del held[index]
            block.keys[number] = block.contents[number] = None
            taken.append(sample)
        return taken

    def build(self, raw: RawSample, index: int) -> Sample | CrudeSample:
        if self._make is not None:
            return self._made(self._make, raw)
        key, sources = self._key(raw), (raw.source_info(),)
        parts: dict[str, Any] = {"__key__": key}
        stored = raw.parts
        if not self._other_names.keys().isdisjoint(stored):
            stored = renamed(stored, self._other_names, key)
        for part, content in stored.items():
            try:
                handler = self._handlers[part]
            except KeyError:
                handler = self._handlers[part] = self._handler(part)
            try:
                parts[part] = content if handler is None else handler(content)
            except Exception as error:
                raise_undecodable(error, content, raw.origin, part)
        if IMAGE_WARNINGS:
            log_image_warnings(raw.full_key)
        if self._crude:
            parts.update(__shard__=raw.shard_name, __subflavors__=self._subflavors, __sources__=sources)
            return self._class(parts)
        fields: dict[str, Any] = {}
        try:
            for name, get, declared in self._fields:
                value = fields[name] = get(parts)
                if declared is not None and type(value) not in declared.known and not declared.fits(value):
                    raise self._wrong_type(key, name, value, declared)
        except FieldTypeError:
            raise
        except (KeyError, SampleError):
            raise self._missing_field(index, parts) from None
        return self._class(__key__=key, __subflavors__=self._subflavors, __sources__=sources, **fields)

    def _made(self, make: Callable[[dict[str, Any]], Any], raw: RawSample) -> Sample | CrudeSample:
        """The sample that the source's own sample loader returns."""
        provenance = {"__key__": self._key(raw), "__shard__": raw.shard_name, "__restore_key__": ()}
        try:
            sample = make({**provenance, "__sources__": (raw.source_info(),), **raw.parts})
        except Exception as error:
            error.add_note(f"in the sample loader of {self._source.config_file}, sample {raw.full_key}")
            raise
        if not isinstance(sample, (Sample, CrudeSample)):
            raise FatalSampleError(
                f"{self._source.config_file}: load_sample returned {sample!r} for sample {raw.full_key}: expected a "
                "Sample; raise SkipSample to leave one out"
            )
        return sample

    def _missing_field(self, index: int, parts: dict[str, Any]) -> SampleError:
        """The error for a sample that lacks a field; it lists all parts of the sample, not only those read."""
        present = dict.fromkeys(self._reader.read(index).parts) | parts
        for access in self._source.field_map.values():
            try:
                access.get(present)
            except SampleError as error:
                return SampleError(f"{error}. Fix the data, or the field map in {self._source.config_file}.")
        raise AssertionError("the field map failed without a reason")

    def _wrong_type(self, key: str, field: str, value: Any, declared: FieldType) -> FieldTypeError:
        access, of = self._source.field_map[field], self._class.__name__
        fix = "fix the data, the field map, or the annotation of the field"
        if isinstance(value, bytes):
            ending = access.part.rpartition(".")[2]
            fix += f", or decode it: SampleDecoder(handlers={{{ending!r}: ...}})"
        return FieldTypeError(
            f"sample {key!r}: {access} is {shown(value)}; field {field!r} of {of} takes {declared} "
            f"({self._source.config_file}): {fix}"
        )

    def _handler(self, part: str) -> Handler | None:
        if self._decoder is None or part in self._source.values:
            return None
        return self._decoder.handler(part)

    def _checked_fields(self) -> tuple[tuple[str, Callable[[Parts], Any], FieldType | None], ...]:
        """Each field, what gets its value from decoded parts, and its type; None for one whose values are not checked:
        those that the user decodes, or leaves undecoded. For a part that is absent, it raises a `KeyError`, or a
        `SampleError`."""
        accesses = self._source.field_map.items()
        declared = field_types(self._source.sample_class) if accesses else {}
        checked = {name for name, access in accesses if all(map(self._is_builtin, access.parts))}
        fields: list[tuple[str, Callable[[Parts], Any], FieldType | None]] = []
        for name, access in accesses:
            get = operator.itemgetter(access.part) if access.is_whole_part else access.get
            fields.append((name, get, declared.get(name) if name in checked else None))
        return tuple(fields)

    def _is_builtin(self, part: str) -> bool:
        """Whether it is known what a part becomes: a value, or what the built-in handlers make of it."""
        if part in self._source.values or self._decoder is None:
            return part in self._source.values
        return not self._decoder.is_users(part)

    def _fields_of_whole_parts(self) -> tuple[tuple[str, str, Handler], ...]:
        """(field, part, handler) if every field is one whole part and no part is used twice; else empty. The handler
        checks what it returns, unless that is always of the declared type."""
        accesses = self._source.field_map
        pairs = [(field, access.part) for field, access in accesses.items() if access.is_whole_part]
        if len({part for _, part in pairs}) < len(accesses):
            return ()
        declared = {field: kind for field, _, kind in self._fields}
        return tuple(
            [(field, part, _typed(self._handlers[part] or _unchanged, declared[field])) for field, part in pairs]
        )


def _typed(handler: Handler, declared: FieldType | None) -> Handler:
    """`handler`, which fails if its result is not as declared."""
    made = _ALWAYS.get(handler)
    if declared is None or (made is not None and declared.fits(made)):
        return handler
    return functools.partial(_of_type, handler, declared)


_ALWAYS: Mapping[Handler, Any] = {bytes.decode: "", int: 0}
"""A result of the handlers whose results are all of one type."""


def _of_type(handler: Handler, declared: FieldType, content: bytes) -> Any:
    value = handler(content)
    if type(value) not in declared.known and not declared.fits(value):
        raise FieldTypeError(f"got {shown(value)}, expected {declared}")  # `build` says where
    return value


def _unchanged(content: bytes) -> bytes:
    return content


_FIRST_ITEMS = 100
_MAX_SHOWN = 60

_PLAIN = (type(None), bool, int, float, str, dict)
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})


class FieldTypeError(SampleError):
    """A field of a sample has a value of another type than its class declares."""


@dataclasses.dataclass(slots=True, eq=False)
class FieldType:
    """The declared type of a field: its annotation.

    A field for text takes only text, one for a number only a number (an integer is a float, a bool is neither), one for
    a list no text. None fits where the annotation says so. A field for another class, such as `torch.Tensor`, takes
    what decoders make: arrays, images and clips in any form, bytes that were not decoded, and lists of these or of
    numbers; but no text, number, bool, object or None. A value fits what cannot be checked: `Any`, a protocol, a name
    that cannot be resolved. Of long lists and dicts, the first hundred items are checked.
    """

    hint: Any
    known: set[type] = dataclasses.field(default_factory=set)
    """The types whose values all fit, as far as they were seen."""

    def fits(self, value: Any) -> bool:
        """Whether `value` fits."""
        kind = type(value)
        if kind in self.known:
            return True
        if not is_of_type(value, self.hint):
            return False
        if kind not in _CONTAINERS and not _has_literals(self.hint):
            self.known.add(kind)
        return True

    def __str__(self) -> str:
        return self.hint.__name__ if isinstance(self.hint, type) else str(self.hint)


def field_types(sample_class: type[Any]) -> Mapping[str, FieldType]:
    """The types of the fields of a class, by name, without those that take any value."""
    known = _TYPES.get(sample_class)
    if known is None:
        hints = _hints(sample_class)
        known = {name: FieldType(hint) for name, hint in hints.items() if hint not in (Any, object)}
        _TYPES[sample_class] = known
    return known


_TYPES: weakref.WeakKeyDictionary[type[Any], Mapping[str, FieldType]] = weakref.WeakKeyDictionary()


def shown(value: Any) -> str:
    """A value of the wrong type, for messages: `null`, `the int 5`, `the list ['a', 'b']`."""
    if value is None:
        return "null"
    text = repr(value) if isinstance(value, (*_PLAIN, list)) else ""
    return f"the {type(value).__name__} {text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '...'}".rstrip()


def _hints(sample_class: type[Any]) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(sample_class)
    except Exception:  # a name that only a type checker imports; others can still be resolved
        hints: dict[str, Any] = {}
        for one in reversed(sample_class.__mro__):
            for name, annotation in vars(one).get("__annotations__", {}).items():
                alone = type(one.__name__, (), {"__annotations__": {name: annotation}})
                try:
                    hints |= typing.get_type_hints(alone, vars(sys.modules[one.__module__]))
                except Exception:
                    hints[name] = Any
        return hints


def _has_literals(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal or any(map(_has_literals, typing.get_args(hint)))


def is_of_type(value: Any, hint: Any) -> bool:
    """Whether `value` fits the annotation `hint`."""
    if hint is Any or hint is object:
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
    return not isinstance(hint, type) or _is_of_class(value, hint)


def _is_of_class(value: Any, hint: type) -> bool:
    if hint is float:
        return isinstance(value, (int, float, numpy.number)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, (int, numpy.integer)) and not isinstance(value, bool)
    if hint is bool:
        return isinstance(value, (bool, numpy.bool_))
    if hint.__module__ == "builtins":
        return _is_container(value, hint, ()) if hint in _CONTAINERS else isinstance(value, hint)
    try:
        if isinstance(value, hint):
            return isinstance(value, (str, bytes)) <= (not issubclass(hint, Iterable) or issubclass(hint, (str, bytes)))
    except TypeError:  # a protocol that cannot be checked
        return True
    if isinstance(value, (list, tuple)):
        return all(_is_number(item) or _is_of_class(item, hint) for item in value[:_FIRST_ITEMS])
    return not isinstance(value, _PLAIN)


def _is_number(value: Any) -> bool:
    return _is_of_class(value, float)


def _is_container(value: Any, origin: type, arguments: tuple[Any, ...]) -> bool:
    if isinstance(value, (str, bytes)):  # a sequence of its characters
        return False
    if isinstance(value, numpy.ndarray):
        value = value.tolist()
    if issubclass(origin, tuple) and isinstance(value, list):  # as JSON has it
        value = tuple(value)
    if not isinstance(value, origin):
        return False
    if isinstance(value, dict) and len(arguments) == 2:
        items = list(value.items())[:_FIRST_ITEMS]
        return all(is_of_type(key, arguments[0]) and is_of_type(item, arguments[1]) for key, item in items)
    if isinstance(value, tuple) and arguments and Ellipsis not in arguments:
        return len(value) == len(arguments) and all(map(is_of_type, value, arguments))
    if isinstance(value, (list, tuple)) and arguments:
        return all(is_of_type(item, arguments[0]) for item in value[:_FIRST_ITEMS])
    return True
