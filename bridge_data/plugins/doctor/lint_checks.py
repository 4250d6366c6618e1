"""The kinds of faults of a data set, and the checks that find them: of `.nv-meta`, a shard, a sample, and of keys.

`check_metadata` reads the files in `.nv-meta`, and opens no shard. `ShardWalk` groups the members of a shard as
`prepare` does, and goes on where that refuses; only a damaged header ends it, as nothing can be found after it.
`SampleCheck` decodes the parts of a sample and compares them with the types that its class declares. `KeyLog` finds
repeated keys in bounded memory for any size of data set: 128-bit digests are sorted into files on disk by their first
bits, and each file, a few million keys, is then searched alone.
"""

import bisect
import collections
import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import sys
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bridge_data import storage
from bridge_data.counts import COUNTS
from bridge_data.data import Records
from bridge_data.data.index_file import BridgeIndex, Segment
from bridge_data.data.key_index import KeyIndex
from bridge_data.data.metadata import (
    BRIDGE_INDEX,
    INDEX_SQLITE,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    SPLIT_JSON,
    SPLIT_YAML,
    load_document,
    read_shard_counts,
    read_split,
    read_uuid,
    tar_index_path,
)
from bridge_data.data.prepared import tars_of
from bridge_data.data.records import count_samples, counts_of, names_of, place_of, stored_records
from bridge_data.data.sample_keys import fix_repeated_keys, keys_of
from bridge_data.data.sample_offsets import encode_offsets
from bridge_data.data.tar_files import CompressedTar, FileTar, open_tar, walk
from bridge_data.decode import SampleDecoder
from bridge_data.decode.av import AVDecoder
from bridge_data.decode.av.container import open_container, reading
from bridge_data.decode.image import IMAGE_WARNINGS, damage_of, num_frames
from bridge_data.decode.sample_decoder import decode_part
from bridge_data.decode.source_reader import FieldType, FieldTypeError, field_types, shown
from bridge_data.errors import BridgeDataError, ConfigError, DatasetError, SampleError
from bridge_data.limits import DEFAULT_LIMITS, Limits, allow_pixels
from bridge_data.plan import Source
from bridge_data.plan.source import FieldAccess, other_names, renamed
from bridge_data.prepare.tar_scan import MAX_ZERO_BYTES, NO_SAMPLES, ZEROS, TarSamples
from bridge_data.prepare.tars import find_shards

_WRITE_AGAIN = "write or copy the shard again, then run `bridge-data prepare`"

_PREPARE = "run `bridge-data prepare` on the data set"

_SPLIT_AGAIN = "fix its .split.yaml, or write another by `bridge-data prepare --split-ratio ...`"

_EXCLUDE = (
    "fix the data; or leave the samples out by `bridge-data forget`, which checkpoints survive, or as shard/key under "
    "`exclude` in split.yaml"
)


class FaultKind(NamedTuple):
    """What a kind of fault is, and how to fix it. A note is not a fault: it may be intended.
    Members without a part name are a fault, although `prepare` skips them with a note: they are in no sample."""

    what: str
    fix: str
    is_note: bool = False


KINDS: dict[str, FaultKind] = {
    "config": FaultKind(
        "a data set or metadataset that cannot be opened", "fix the named file, or do what the message says"
    ),
    "metadata-damaged": FaultKind("metadata that cannot be understood", _PREPARE),
    "metadata-disagree": FaultKind("metadata files that contradict each other", _PREPARE),
    "missing-shard": FaultKind("prepared shards that no longer exist", "restore them, or " + _PREPARE),
    "unprepared": FaultKind(
        "folders or tars that are not prepared: indexes and fields are not checked", _PREPARE, is_note=True
    ),
    "unprepared-shard": FaultKind("tars that are not in the prepared data set", _PREPARE + ", or move them away"),
    "unused-shard": FaultKind("shards in no split part", "add them to a part in split.yaml, or to its `exclude`"),
    "split-unknown-shard": FaultKind("split parts with shards that do not exist", "fix split.yaml, or " + _PREPARE),
    "split-repeated-shard": FaultKind("shards twice in one split part", "name them once in split.yaml"),
    "exclude-unknown": FaultKind("exclusions of samples that do not exist", "fix `exclude` in split.yaml"),
    "unused-lines": FaultKind("samples of a JSONL file in no split part", _SPLIT_AGAIN),
    "shared-lines": FaultKind("samples of a JSONL file in several split parts", _SPLIT_AGAIN),
    "index-missing": FaultKind("shards without an index", "run `bridge-data prepare --tar-index-only`"),
    "index-outdated": FaultKind("indexes that do not match the shards", "run `bridge-data prepare --tar-index-only`"),
    "tar-damaged": FaultKind("shards that are truncated or damaged", _WRITE_AGAIN),
    "tar-unfinished": FaultKind("shards without the end mark of a tar", _WRITE_AGAIN),
    "zero-tail": FaultKind(
        "shards that end in a long run of zeros",
        "check that they are complete: a copy may have been cut off",
        is_note=True,
    ),
    "linked-member": FaultKind(
        "parts that are links, without their own content",
        "write the shard again: tar --dereference --hard-dereference",
    ),
    "special-member": FaultKind("devices, FIFOs and the like, which hold no data", "leave them out", is_note=True),
    "name-not-utf8": FaultKind(
        "member names that are not UTF-8: keys have surrogates in place of those bytes",
        "rename them, unless nothing reads keys as text",
        is_note=True,
    ),
    "empty-shard": FaultKind("shards without samples", "nothing, or remove them, then " + _PREPARE, is_note=True),
    "wrong-count": FaultKind("shards whose number of samples differs from the metadata", _PREPARE),
    "nameless-member": FaultKind(
        "files in shards whose names have no dot, so they are no parts", "rename them, as in 0001.jpg"
    ),
    "duplicate-part": FaultKind("samples with a part twice", "write the shard again with each name once"),
    "scattered-sample": FaultKind(
        "samples whose parts are not next to each other", "write the shard again, sorted by name"
    ),
    "duplicate-key": FaultKind(
        "keys shared by several samples of a shard, or rows of a file",
        "write the shard or file again with different keys",
    ),
    "shared-key": FaultKind(
        "keys shared by samples of several shards: SHARD/KEY distinguishes them",
        "nothing, unless samples are joined by key: then run `bridge-data prepare --fix-duplicates`",
        is_note=True,
    ),
    "missing-part": FaultKind("samples without a part that the field map needs", _EXCLUDE),
    "missing-field": FaultKind("samples without a value that the field map needs", _EXCLUDE),
    "wrong-type": FaultKind(
        "samples with a value of another type than their field", _EXCLUDE + ", or fix the field map"
    ),
    "not-utf8": FaultKind("texts that are not UTF-8", _EXCLUDE),
    "image-too-large": FaultKind(
        "images with more pixels than PIL.Image.MAX_IMAGE_PIXELS", _EXCLUDE + ", or raise the limit"
    ),
    "damaged-image": FaultKind(
        "JPEGs with damaged content: decoders guess the rest of their pixels", _EXCLUDE + ", or restore the pictures"
    ),
    "several-frames": FaultKind(
        "images of several frames or pages: only the first is taken",
        'nothing, or SampleDecoder(frames="all"), which makes a list of all',
        is_note=True,
    ),
    "undecodable": FaultKind("parts that cannot be decoded", _EXCLUDE),
    "no-decoder": FaultKind("parts of a format that cannot be decoded here", "do what the message says"),
    "unbuildable": FaultKind(
        "samples that cannot be made of their parts", _EXCLUDE + ", or fix the code that makes them"
    ),
    "changed-content": FaultKind(
        "parts whose content changed since `prepare --digest` read it",
        "restore the shard, or run `bridge-data prepare` with --tar-index-only --digest --rescan",
    ),
    "unreadable": FaultKind("samples that cannot be read", _EXCLUDE),
}
"""The kinds by code, from the whole to its parts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, the cause and, if known, the data set, shard, key and part."""

    code: str
    cause: str
    dataset: str = ""
    shard: str = ""
    key: str = ""
    part: str = ""

    def where(self) -> str:
        """The location, in short: `shard/key.part`."""
        name = "/".join(filter(None, (self.shard, self.key)))
        return f"{name}.{self.part}" if self.part else name


class FaultTally:
    """Counts by code, and the first `max_kept` faults of each kind."""

    def __init__(self, max_kept: int) -> None:
        self.max_kept = max_kept
        self.counts: collections.Counter[str] = collections.Counter()
        self.kept: dict[str, list[Fault]] = collections.defaultdict(list)

    def add(self, fault: Fault) -> None:
        """Count a fault."""
        self.counts[fault.code] += 1
        if len(self.kept[fault.code]) < self.max_kept:
            self.kept[fault.code].append(fault)

    def add_all(self, faults: Iterable[Fault]) -> None:
        """Count some faults."""
        for fault in faults:
            self.add(fault)

    def merge(self, other: "FaultTally") -> None:
        """Add the counts of another tally."""
        self.counts.update(other.counts)
        for code, faults in other.kept.items():
            self.kept[code] += faults[: self.max_kept - len(self.kept[code])]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """The result of a check: exact `counts` by code, and the first faults of each kind."""

    path: str
    num_datasets: int
    num_shards: int
    num_samples: int
    is_complete: bool
    """Whether everything was checked."""
    counts: dict[str, int]
    kept: dict[str, list[Fault]]

    @property
    def num_faults(self) -> int:
        """Faults of all kinds, without notes."""
        return sum(count for code, count in self.counts.items() if not KINDS[code].is_note)

    @property
    def num_notes(self) -> int:
        """Notes of all kinds."""
        return sum(self.counts.values()) - self.num_faults

    def to_dict(self) -> dict[str, Any]:
        """A plain document, as `--json` shows it."""
        found = [
            {
                "code": code,
                "is_note": kind.is_note,
                "what": kind.what,
                "fix": kind.fix,
                "count": self.counts[code],
                "shown": [dataclasses.asdict(fault) for fault in self.kept.get(code, ())],
            }
            for code, kind in KINDS.items()
            if self.counts.get(code)
        ]
        return {
            "version": 1,
            "path": self.path,
            "data_sets": self.num_datasets,
            "shards": self.num_shards,
            "samples": self.num_samples,
            "complete": self.is_complete,
            "num_faults": self.num_faults,
            "num_notes": self.num_notes,
            "faults": [entry for entry in found if not entry["is_note"]],
            "notes": [entry for entry in found if entry["is_note"]],
        }


KEYS_A_FILE = 1 << 22
MAX_FILES = 256

KEY_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("shard", "<u4"), ("offset", "<u8")])
"""A key: its digest, the number of its shard, and the offset of its sample in the shard."""


def check_metadata(root: Path) -> Iterator[Fault]:
    """Faults in the metadata of the data set in the folder `root`."""
    dataset, meta = str(root), root / META_FOLDER
    try:
        counts = read_shard_counts(meta)
    except BridgeDataError as error:
        yield Fault("metadata-damaged", str(error), dataset)
        return
    yield from _check_twins(meta, dataset)
    for name in counts:
        if not (root / name).is_file():
            yield Fault(
                "missing-shard", f"{INFO_JSON} has {counts[name]} samples in it, but the file is missing", dataset, name
            )
    for name in _tars(root):
        if name not in counts:
            yield Fault("unprepared-shard", f"{INFO_JSON} does not list it", dataset, name)
    try:
        split = read_split(meta)
        exclude = split.excluded()
    except BridgeDataError as error:
        yield Fault("metadata-damaged", str(error), dataset)
    else:
        parts = {}
        for part in split.split_parts:
            try:
                parts[part] = split.shards(part)
            except BridgeDataError as error:
                yield Fault("metadata-damaged", str(error), dataset)
        yield from _check_split(parts, exclude, counts, dataset)
    index = BridgeIndex.open(meta / BRIDGE_INDEX)
    if index is None:
        if (meta / BRIDGE_INDEX).is_file():
            yield Fault("index-outdated", f"{BRIDGE_INDEX} is damaged, or of another version", dataset)
    elif not index.describes(counts, read_uuid(meta)):
        yield Fault("index-outdated", f"{BRIDGE_INDEX} is of another preparation than {INFO_JSON}", dataset)


def _check_twins(meta: Path, dataset: str) -> Iterator[Fault]:
    """Compare files that exist in two formats."""
    for first, second in ((INFO_JSON, INFO_YAML), (SPLIT_YAML, SPLIT_JSON)):
        if not ((meta / first).is_file() and (meta / second).is_file()):
            continue
        try:
            same = load_document(meta / first) == load_document(meta / second)
        except BridgeDataError as error:
            yield Fault("metadata-damaged", str(error), dataset)
            continue
        if not same:
            yield Fault("metadata-disagree", f"{first} and {second} differ; {first} is used", dataset)


def _check_split(
    parts: dict[str, list[str]], exclude: list[str], counts: dict[str, int], dataset: str
) -> Iterator[Fault]:
    used = set(exclude)
    for part, names in parts.items():
        for name, times in Counter(names).items():
            if name not in counts:
                yield Fault("split-unknown-shard", f"split part {part!r} lists it, {INFO_JSON} does not", dataset, name)
            elif times > 1:
                yield Fault("split-repeated-shard", f"{times} times in split part {part!r}", dataset, name)
        used.update(names)
    for name in counts:
        if name not in used:
            yield Fault("unused-shard", f"in none of {', '.join(parts) or 'no parts at all'}", dataset, name)
    for entry in exclude:
        shards = {entry[:at] for at, character in enumerate(entry) if character == "/"}
        if entry not in counts and shards.isdisjoint(counts):
            yield Fault("exclude-unknown", f"`exclude` names {entry!r}, but there is no such shard", dataset)


def _tars(root: Path) -> list[str]:
    try:
        return find_shards(root)
    except BridgeDataError:
        return []


def digests(dataset: int, shard: int, keys: Sequence[str], offsets: Sequence[int]) -> NDArray[np.void]:
    """The rows of the samples of a shard; keys of different data sets are different keys."""
    table = np.zeros(len(keys), KEY_DTYPE)
    salt = dataset.to_bytes(8, "little")
    text = b"".join(
        hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=16, salt=salt).digest() for key in keys
    )
    table["high"], table["low"] = np.frombuffer(text, "<u8").reshape(-1, 2).T
    table["shard"], table["offset"] = shard, offsets[: len(keys)]
    return table


class KeyLog:
    """The keys of data sets with about `num_keys` samples in all, on disk; a context manager that removes them."""

    def __init__(self, num_keys: int) -> None:
        self._bits = min(MAX_FILES.bit_length() - 1, max(0, (num_keys // KEYS_A_FILE).bit_length()))
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "KeyLog":
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bridge-data-lint-")))
        self._files: list[BinaryIO] = []
        for number in range(1 << self._bits):
            self._files.append(self._stack.enter_context(open(folder / str(number), "w+b")))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, rows: NDArray[np.void]) -> None:
        """Record the keys of a shard."""
        if not self._bits:
            self._files[0].write(rows.tobytes())
            return
        file_of = rows["high"] >> np.uint64(64 - self._bits)
        for number in np.unique(file_of).tolist():
            self._files[number].write(rows[file_of == number].tobytes())

    def repeated(self) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """((shard, offset) of the first sample with a key, (shard, offset) of a later one in another shard)."""
        for file in self._files:
            file.seek(0)
            rows = np.frombuffer(file.read(), KEY_DTYPE)
            rows = rows[np.lexsort((rows["offset"], rows["shard"], rows["low"], rows["high"]))]
            same = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
            first = 0
            for number in (np.flatnonzero(same) + 1).tolist():
                if number < 2 or not same[number - 2]:
                    first = number - 1
                if rows["shard"][number] != rows["shard"][first]:
                    yield _position(rows[first]), _position(rows[number])


def _position(row: np.void) -> tuple[int, int]:
    return int(row["shard"]), int(row["offset"])


_UNKNOWN = object()


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
        allow_pixels(limits)
        self._decoder = SampleDecoder(image_decode="torchrgb8", limits=limits)

    def check(self, key: str, parts: Mapping[str, bytes], recipes: Iterable[Recipe]) -> Iterator[Fault]:
        """Faults of the sample `key`, whose parts these are, and which `recipes` make; without data set and shard."""
        decoded: dict[str, Any] = {"__key__": key}
        for part, content in parts.items():
            decoded[part] = _UNKNOWN
            if self._decode:
                counted = ImageNotes()
                try:
                    decoded[part] = self._decoded(part, content, key)
                except BridgeDataError as error:
                    yield Fault(code_of(error), _cause(error), key=key, part=part)
                for code, cause in counted.faults(content):
                    yield Fault(code, cause, key=key, part=part)
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
        others = other_names(part for access in recipe.field_map.values() for part in access.parts)
        try:
            decoded = renamed(decoded, others, key)
        except SampleError as error:
            yield Fault("missing-part", str(error), key=key)
            return
        declared = field_types(sample_class)
        for field, access in recipe.field_map.items():
            options = (access, *access.alternatives)
            there = [option for option in options if option.part in decoded]
            if not there:
                wanted = " or ".join(repr(option.part) for option in options)
                present = ", ".join(part for part in decoded if part != "__key__")
                cause = f"field {field!r} needs part {wanted}; there is {present or 'nothing'}"
                yield Fault("missing-part", cause, key=key, part=access.part)
            elif all(decoded[option.part] is not _UNKNOWN for option in there):
                yield from self._value(field, access, declared.get(field), decoded)

    def _value(
        self, field: str, access: FieldAccess, declared: FieldType | None, decoded: Mapping[str, Any]
    ) -> Iterator[Fault]:
        key = decoded["__key__"]
        try:
            value = access.get(decoded)
        except SampleError as error:
            yield Fault("missing-field", f"field {field!r}: {error}", key=key, part=access.part)
            return
        if declared is not None and not declared.fits(value):
            cause = f"field {field!r} takes {declared}, but {access} is {shown(value)}"
            yield Fault("wrong-type", cause, key=key, part=access.part)


class ImageNotes:
    """What decoders count of the images that they decode from now on."""

    def __init__(self) -> None:
        self._before = self._counted()

    def faults(self, content: bytes | None = None) -> Iterator[tuple[str, str]]:
        """The code and the cause of what was counted; `content` is the image, if it was one."""
        damaged, first = (now - then for now, then in zip(self._counted(), self._before, strict=True))
        if damaged or first:
            IMAGE_WARNINGS.clear()  # the report has it
        if damaged:
            yield "damaged-image", (damage_of(content) if content else None) or f"of {damaged} images"
        if first:
            yield "several-frames", f"{num_frames(content):,} of them" if content else f"{first} images"

    @staticmethod
    def _counted() -> tuple[int, int]:
        return COUNTS.damaged_images, COUNTS.first_frames


def code_of(error: Exception) -> str:
    """The kind of fault for an error in reading, decoding or making a sample."""
    if isinstance(error, FieldTypeError):
        return "wrong-type"
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


Report = Callable[[Fault], None]


class ShardWalk:
    """The samples of the shard `name` of the data set `root`; `report` gets faults as they are found.

    `found` are those so far; after a whole iteration they end where the last sample does.
    """

    def __init__(self, root: Path, name: str, report: Report) -> None:
        self._dataset, self._name, self._report = str(root), name, report
        self._path = str(root / name)
        self.found = TarSamples(self._fault)
        self.digests: dict[tuple[int, str], int] = {}
        """The CRC-32 of the contents that were read, by sample number and part."""
        self.is_whole = False
        """Whether the end of the shard was reached."""
        self._tar: FileTar | CompressedTar | None = None

    def samples(self) -> Iterator[int]:
        """The numbers of the samples, in order, each when all of its members are there."""
        try:
            yield from self._walked()
        except DatasetError as error:
            self._fault("tar-damaged", str(error))
        except ConfigError as error:
            self._fault("no-decoder", str(error))

    def read(self, number: int) -> dict[str, bytes]:
        """The parts of a sample.

        Raises:
            DatasetError: if they cannot be read.
        """
        contents = {}
        for part, offset, num_bytes in self.found.parts_of(number):
            if self._tar is None or isinstance(self._tar, FileTar):
                contents[part] = storage.read(self._path, offset, num_bytes)
            else:
                contents[part] = self._tar.read_exactly(offset, num_bytes)
        self.digests |= {(number, part): zlib.crc32(content) for part, content in contents.items()}
        return contents

    def _walked(self) -> Iterator[int]:
        self._tar, found, number, end = open_tar(self._path), self.found, 0, 0
        for member in walk(self._tar, 0, self._tar.end, file=self._path):
            found.extend((member,))
            end = member.next_offset
            if len(found.keys) > number + 1:
                yield number
                number += 1
        if found.keys:
            yield number
        else:
            self._fault(NO_SAMPLES, "it holds no samples")
        self.is_whole = True
        found.offsets.append(end)
        size = self._tar.end  # of a compressed tar, known only now
        if end >= size:
            self._fault("tar-unfinished", f"it ends at byte {end}, after its last member, and was perhaps cut off")
        elif size - end > MAX_ZERO_BYTES and size < sys.maxsize:
            self._fault(ZEROS, f"from byte {end} on there are {size - end:,} zeros")

    def _fault(self, code: str, cause: str, key: str = "", part: str = "") -> None:
        self._report(Fault(code, cause, self._dataset, self._name, key, part))


def check_indexes(root: Path, name: str, number: int, walk: ShardWalk) -> Iterator[Fault]:
    """Faults of the indexes of the shard `name`, which has this number in the metadata, after a whole walk."""
    contents = walk.found

    def outdated(file: str, cause: str) -> Fault:
        return Fault("index-outdated", f"{file} {cause}", str(root), name)

    path = tar_index_path(root / name)
    if not path.is_file():
        yield Fault("index-missing", f"there is no {path.name}", str(root), name)
    elif storage.read_all(path) != encode_offsets(contents.offsets):
        yield outdated(path.name, "has other offsets than the samples")
    index = _bridge_index(root / META_FOLDER / BRIDGE_INDEX)
    if index is not None and name in index.entries:
        try:
            segment = index.segment(name)
            differs = _compared(segment, contents)
            changed = list(_changed_contents(root, name, segment, walk)) if differs is None else []
        except DatasetError as error:
            differs, changed = f"cannot be used: {error}", []
        if differs is not None:
            yield outdated(BRIDGE_INDEX, differs)
        yield from changed
    cause = _compared_by_key(root, number, contents)
    if cause is not None:
        yield outdated(INDEX_SQLITE, cause)


def _compared(segment: Segment, contents: TarSamples) -> str | None:
    """How the samples differ from our index of the shard."""
    if segment.keys() != contents.keys:
        return "has other keys than the shard"
    if segment.offsets() != contents.offsets:
        return "has other offsets than the samples"
    if [part for _, *part in segment.rows()] != [[*part] for part in contents.parts]:
        return "has other parts than the samples, or at other offsets"
    return None


def _changed_contents(root: Path, name: str, segment: Segment, walk: ShardWalk) -> Iterator[Fault]:
    if segment.has_digests:
        for (number, part), digest in walk.digests.items():
            if segment.digests(number)[part] != digest:
                yield Fault("changed-content", "it has another digest", str(root), name, walk.found.keys[number], part)


def _bridge_index(path: Path) -> BridgeIndex | None:
    """Our index, if there is one."""
    return _opened(path, path.stat().st_mtime_ns) if path.is_file() else None


@functools.lru_cache(maxsize=4)
def _opened(path: Path, mtime_ns: int) -> BridgeIndex | None:
    """Our index, opened once for all shards, as long as the file does not change."""
    return BridgeIndex.open(path)


def _compared_by_key(root: Path, number: int, contents: TarSamples) -> str | None:
    """How the samples differ from Energon's index of the shard."""
    index = KeyIndex.find(root)
    if index is None:
        return None
    spans = zip(contents.keys, contents.offsets, itertools.islice(contents.offsets, 1, None), strict=False)
    try:
        with contextlib.closing(index.spans(number)) as indexed:
            for row, span in itertools.zip_longest(indexed, spans):
                if row is None or span is None or row != span:
                    return f"has {row!r} where the shard has {span!r} (key, first byte, end)"
    except DatasetError as error:
        if "no such" in str(error.__cause__):  # made by an older Energon, or only for media
            return None
        return f"cannot be read: {error.__cause__}"
    return None


KEYS_AT_ONCE = 1 << 14


def repeated_table_keys(sources: Iterable[Source]) -> Iterator[Fault]:
    """The keys that rows of the same data set share; each data set is checked once."""
    seen = set()
    for source in sources:
        records = stored_records(source.records)
        if fix_repeated_keys(records) and tars_of(records) is None:
            data = f"{records.root} {records.identity()}"
            if data not in seen:
                seen.add(data)
                yield from _repeated(records, source.path)


def _repeated(records: Records, path: str) -> Iterator[Fault]:
    reader, names, ends = records.reader(), names_of(records), [*itertools.accumulate(counts_of(records))]
    with KeyLog(count_samples(records)) as log:
        try:
            numbered = enumerate(keys_of(records, range(count_samples(records))))
            while run := list(itertools.islice(numbered, KEYS_AT_ONCE)):
                numbers, keys = zip(*run, strict=True)
                found = digests(0, 0, keys, numbers)
                found["shard"] = found["offset"]  # each row alone: keys repeated in the same file count, too
                log.add(found)
        except DatasetError:
            return  # is reported where samples are read
        for (first, _), (number, _) in log.repeated():
            one, other = reader.read(number, ()), names[bisect.bisect_right(ends, first)]
            if one.shard_name == other:
                rows = [place_of(records, at).removeprefix(f"{other}/") for at in (first, number)]
                yield Fault("duplicate-key", f"rows {rows[0]} and {rows[1]} have it", path, other, one.key)
            else:
                yield Fault("shared-key", f"{other} has it too", path, one.shard_name, one.key)
