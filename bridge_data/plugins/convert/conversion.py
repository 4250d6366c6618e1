"""A conversion: the records of a source become a data set.

Reads a source by a layout, and writes the folder that a `ShardWriter` leaves, by the loop of `parallel_writing`. The
files are the same for any number of processes, and after any number of interruptions. A report lists all broken
records, those that make no sample. Unless they are to be skipped, nothing is written from the first of them on, so that
after the source is corrected the result is the same as if it had been correct from the start.
"""

import dataclasses
import hashlib
import json
import random
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from bridge_data import storage
from bridge_data.decode.image import Orientation
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.options import check_choice
from bridge_data.plan.source import FieldAccess, alike
from bridge_data.plugins.convert.clearing import make_way
from bridge_data.plugins.convert.column_guess import Definition
from bridge_data.plugins.convert.media_files import check_part, upright_image, without_byte_order_mark
from bridge_data.plugins.convert.record_layout import RecordLayout
from bridge_data.prepare.executors import Executor, LocalProcesses, Progress, no_progress
from bridge_data.prepare.parallel_writing import Made, in_tasks, write_made
from bridge_data.prepare.part_encoding import EncodedSample, encode_sample
from bridge_data.prepare.record_source import BrokenRecord, RecordSource, SourceRecord
from bridge_data.prepare.sample_definitions import definition_of, read_definition
from bridge_data.prepare.shard_writer import ItemSet, MadeOf, ShardWriter
from bridge_data.storage import Location

REPORT = "broken.jsonl"
"""The file, in the folder of the data set, that lists broken records."""

MAX_SHOWN = 10
"""Maximum kinds of broken records that a message shows, by one of each."""

_NAMED = re.compile(r"'[^']*'|\d+")
"""What equal reasons differ in: names and numbers."""

RECORDS_OF_TASK = 8
"""Records sent to a process at once, if the source can be read in any order."""

_VERSION = 1
"""Version of how samples are made: a conversion that another version started is not resumed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConvertConfig:
    """Settings of a conversion. `executor` makes the samples, and this process writes them. `shuffle` is the seed of a
    random order, or None; `keys` are those of the samples to keep, or None. Samples without all `require_parts` are
    skipped; they do not count as broken. With `checked`, contents are checked; with `orientation="apply"`, images are
    turned as their EXIF data say, and encoded anew; with `overwrite`, a data set that another conversion made is
    replaced."""

    split: Mapping[str, Any] | None = None
    split_by: Literal["key", "shard"] = "key"
    max_bytes: int = 1_000_000_000
    max_samples: int = 10_000
    executor: Executor = dataclasses.field(default_factory=partial(LocalProcesses, 1))
    shuffle: int | None = None
    keys: frozenset[str] | None = None
    require_parts: frozenset[str] = frozenset()
    skip_broken: bool = False
    checked: bool = True
    orientation: Orientation = "ignore"
    overwrite: bool = False
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        check_choice(self, "orientation", Orientation)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """What was converted: samples stored, records left out by choice, and broken records."""

    num_samples: int
    num_filtered: int = 0
    num_broken: int = 0
    was_done: bool = False
    """Whether the same conversion had finished before, so there was nothing to do."""
    num_discarded: int | None = None
    """Shards of another conversion that did not finish, which were removed; None if there was none."""


def convert(
    source: RecordSource,
    layout: RecordLayout,
    definition: Definition,
    target: Location,
    config: ConvertConfig | None = None,
    *,
    on_progress: Progress = no_progress,
) -> Conversion:
    """Write the samples that `layout` makes from the records of `source` to the data set at `target`.

    If it is interrupted, the same call resumes it. Another call for `target`, with other settings or after the source
    was corrected, starts anew: it removes what the interrupted one has left, and no other file.

    Raises:
        ConfigError: for wrong settings, or if `target` holds other data.
        DatasetError: naming the broken records, unless they are to be skipped; if the source changes meanwhile, or
            nothing can be written.
    """
    config = config or ConvertConfig()
    fingerprint = source.fingerprint()
    writer = ShardWriter(
        target,
        split=config.split,
        split_by=config.split_by,
        max_bytes=config.max_bytes,
        max_samples=config.max_samples,
        sample_type=definition.sample_type,
        field_map=definition.field_map or None,
    )
    writer.made_of = MadeOf(len(source), _origin(fingerprint, layout, config))
    num_finished = writer.num_finished()
    if num_finished is not None:
        return Conversion(num_samples=num_finished, was_done=True)
    num_discarded = make_way(writer.not_begun(), overwrite=config.overwrite)
    make = _SampleMaker(source, layout, definition, config).make_all
    with writer:
        num_left = len(source) - len(writer.finished_items)
        on_progress(0, num_left)
        # clips are large, and a few tasks of each process wait to be written
        size = 1 if any(column.kind == "clip" for column in layout.columns) else RECORDS_OF_TASK
        tasks = _tasks(source, config, writer.finished_items, size)
        with _Report(writer, config.skip_broken) as report:

            def accept(made: Made) -> Sequence[EncodedSample]:
                samples = report.accept(made)
                on_progress(report.num_seen, num_left)
                return samples

            write_made(writer, make, tasks, config.executor, accept)
        if report.num_broken and not config.skip_broken:
            raise DatasetError(report.complaint(source.title))
        if source.fingerprint() != fingerprint:
            raise DatasetError(
                f"{source.title}: files of the source have changed since the conversion started. Convert again to "
                f"{writer.path}, which starts anew"
            )
        if not writer.num_samples:
            raise DatasetError(f"{source.title}: none of {len(source)} records gave a sample, so there is no data set")
    return Conversion(
        num_samples=writer.num_samples,
        num_filtered=report.num_filtered,
        num_broken=report.num_broken,
        num_discarded=num_discarded,
    )


def _origin(fingerprint: str, layout: RecordLayout, config: ConvertConfig) -> str:
    """A digest of what the samples are made of and how, without settings that only concern broken records."""
    made_by = {
        "version": _VERSION,
        "source": fingerprint,
        "columns": [dataclasses.astuple(column) for column in layout.columns],
        "key": layout.key,
        "dropped": sorted(layout.dropped),
        "as_lists": sorted(layout.as_lists),
        "media_root": None if layout.media_root is None else str(layout.media_root.folder.resolve()),
        "shuffle": config.shuffle,
        "keys": None if config.keys is None else sorted(config.keys),
        "require_parts": sorted(config.require_parts),
        **({} if config.checked else {"checked": False}),
        **({} if config.orientation == "ignore" else {"orientation": config.orientation}),
    }
    return hashlib.blake2b(json.dumps(made_by).encode(errors="surrogateescape"), digest_size=16).hexdigest()


def _tasks(source: RecordSource, config: ConvertConfig, finished: ItemSet, size: int) -> Iterator[list[int]]:
    """The numbers of records to read together, in the order in which their samples are written."""
    if not source.is_scattered:
        blocks: list[range] | Iterator[range] = source.blocks()
        if config.shuffle is not None:
            blocks = list(blocks)
            random.Random(config.shuffle).shuffle(blocks)
        for block in blocks:
            numbers = list(block)
            if config.shuffle is not None:
                random.Random(f"{config.shuffle}/{block.start}").shuffle(numbers)
            waiting = [number for number in numbers if number not in finished]
            if waiting:
                yield waiting
        return
    order: Sequence[int] = range(len(source))
    if config.shuffle is not None:
        order = list(order)
        random.Random(config.shuffle).shuffle(order)
    yield from in_tasks((number for number in order if number not in finished), size)


class _SampleMaker:
    """Makes samples of records, in any process."""

    def __init__(
        self, source: RecordSource, layout: RecordLayout, definition: Definition, config: ConvertConfig
    ) -> None:
        self._source, self._layout = source, layout
        self._keys, self._require_parts = config.keys, config.require_parts
        self._limits = config.limits if config.checked else None
        self._turns_images = config.orientation == "apply"
        content = definition_of(definition.sample_type, definition.field_map or None)
        self._fields: Mapping[str, FieldAccess] = read_definition(content).field_map
        self._lock = threading.Lock()  # for executors with threads: sources keep files open

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def make_all(self, numbers: list[int]) -> list[Made]:
        """Convert some records."""
        try:
            with self._lock:
                records = list(self._source.read(numbers))
        except OSError as error:  # a file of the source is gone
            reason = f"cannot be read: {error}"
            return [Made(number, self._source.title, reason=reason) for number in numbers]
        return [self._make(record) for record in records]

    def _make(self, record: SourceRecord | BrokenRecord) -> Made:
        if isinstance(record, BrokenRecord):
            return Made(record.number, record.where, reason=record.reason)
        try:
            sample = self._encoded(record)
        except (SampleError, ConfigError, OSError) as error:
            return Made(record.number, record.where, reason=str(error))
        samples = [sample] if self._is_wanted(sample) else []
        return Made(record.number, record.where, samples, self._complaint(sample) if samples else "")

    def _encoded(self, record: SourceRecord) -> EncodedSample:
        sample = encode_sample(self._layout.sample_of(record))
        if self._turns_images:
            sample = EncodedSample(sample.key, [(name, upright_image(name, data)) for name, data in sample.parts])
        if self._limits is None:
            return sample
        return EncodedSample(sample.key, [(name, without_byte_order_mark(name, data)) for name, data in sample.parts])

    def _is_wanted(self, sample: EncodedSample) -> bool:
        if self._keys is not None and sample.key not in self._keys:
            return False
        return self._require_parts <= {name for name, _ in sample.parts}

    def _complaint(self, sample: EncodedSample) -> str:
        """Why a loader could not use a sample; empty if it could."""
        names = {"__key__", *(name for name, _ in sample.parts)}
        for field, access in self._fields.items():
            if names.isdisjoint(access.names):
                return (
                    f"has no part {' or '.join(sorted(access.parts))} for the field {field!r}, but "
                    f"{', '.join(sorted(names - {'__key__'}))}"
                )
        pair = None if self._limits is None else first_pair(name for name, _ in sample.parts)
        if pair is not None:
            return f"has the parts {pair[0]!r} and {pair[1]!r}, which mean the same: rename or remove the one not meant"
        for name, data in sample.parts:
            reason = None if self._limits is None else check_part(name, data, self._limits)
            if reason is not None:
                return reason
        return ""


class _Report:
    """Counts what was made, decides what is written, and lists what is broken."""

    def __init__(self, writer: ShardWriter, skip_broken: bool) -> None:
        self._writer, self._skip_broken = writer, skip_broken
        self._kinds: dict[str, list[Any]] = {}
        self.num_seen = self.num_filtered = self.num_broken = 0

    def __enter__(self) -> "_Report":
        self._temporary = self._writer.session.workspace / REPORT
        self._file = open(self._temporary, "w", encoding="utf-8", errors="backslashreplace")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if kind is None and self.num_broken:
            self._writer.session.publish(self._temporary, REPORT)
        elif kind is None:
            storage.delete(self._writer.session.root / REPORT)

    def accept(self, made: Made) -> Sequence[EncodedSample]:
        """The samples to write of what was made."""
        self.num_seen += 1
        repeated = [sample.key for sample in made.samples if sample.key in self._writer]
        reason = made.reason or (f"its key {repeated[0]!r} is that of another sample" if repeated else "")
        if reason:
            self.num_broken += 1
            self._file.write(json.dumps({"number": made.number, "where": made.where, "reason": reason}) + "\n")
            kind = _NAMED.sub("", reason)
            if kind in self._kinds or len(self._kinds) < MAX_SHOWN:
                self._kinds.setdefault(kind, [f"\n  {made.where}: {reason}", 0])[1] += 1
            return ()
        self.num_filtered += not made.samples
        if not self.num_broken or self._skip_broken:
            return made.samples
        for sample in made.samples:
            self._writer.note_key(sample.key)  # nothing is written any more, but all is checked
        return ()

    def complaint(self, title: str) -> str:
        """The message on broken records."""
        shown = [line + (f" (and {count - 1:,} like it)" if count > 1 else "") for line, count in self._kinds.values()]
        counted = f"{self.num_broken} record{' is' if self.num_broken == 1 else 's are'} broken"
        more = self.num_broken - sum(count for _, count in self._kinds.values())
        return (
            f"{title}: {counted}:{''.join(shown)}"
            + (f"\n  and {more:,} more" if more else "")
            + f"\nAll are listed in {self._writer.path / REPORT}. Correct them and run the same command again; or give "
            "--skip-broken to leave them out."
        )


def first_pair(parts: Iterable[str]) -> tuple[str, str] | None:
    """The first two of these names, of parts of one sample, that mean the same; None if there are none."""
    seen: list[str] = []
    for part in parts:
        names = alike(part)
        other = next((name for name in seen if name in names), None)
        if other is not None:
            return other, part
        seen.append(part)
    return None
