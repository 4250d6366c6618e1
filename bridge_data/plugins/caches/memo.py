"""The memo of encoded samples: what one process has made, the others of this machine read.

`memoized` puts it around what makes the samples of a data set. Reads references of samples. Returns outcomes of the
work on them (`SampleOutcome`), from files of a folder that all jobs of a user share, each under a key: the data by
their fingerprint and the index, settings and the version that the user names for what hooks do
(`samples_key.content_keys`), which hooks run, and, only if one of these draws random numbers, seed, source and epoch.
That the version is true is checked: the first sample that a lane finds, and of all that it finds later one of
`CHECKED_OF`, are made again here. If two processes want the same sample, one makes it, and the other meanwhile the next
ones of its lane, or waits; the kernel says when the first one dies. Not kept are failures, samples whose hooks asked
where in the job they are, those of data in memory, and what pickle cannot store by reference. Raises `ConfigError` if
the folder is not this user's alone, as its files are pickles; `FatalSampleError` if a sample is another one than was
kept.

A file is a header (magic, CRC-32 of all that follows, number of parts), the length of each part, and the parts, each at
a multiple of 64 bytes: a pickle, and the buffers of its tensors and arrays. A damaged file is a miss. Large files are
mapped, private and writable, so that a hit copies nothing.
"""

import contextlib
import functools
import hashlib
import mmap
import os
import struct
import sys
import time
import weakref
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bridge_data.counts import COUNTS
from bridge_data.data.records import stored_records
from bridge_data.data.withheld import digest_of_keys
from bridge_data.errors import FatalSampleError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import EncodingMaker, Made, Maker
from bridge_data.lanes.maker_wrappers import AheadMaker, LaneView, SampleOutcome
from bridge_data.order import ALL_OUTPUTS, SampleRef
from bridge_data.plan import Source
from bridge_data.plan.in_memory import MemoryRecords
from bridge_data.plugins.caches.cache_folder import Buffer, CacheFolder
from bridge_data.run_options import Memo
from bridge_data.samples.differences import first_difference
from bridge_data.samples.pickling import ByName, ReferencePickler, from_pieces, pieces_of, writable_content
from bridge_data.task.hooks import FAILED, FORGOTTEN
from bridge_data.task.samples_key import content_keys

NUM_AHEAD = 8
"""How many of the next samples of its lane a process may make while another makes the one that it needs."""

MAX_UNKEPT = 32
"""After so many samples in a row that could not be kept, a lane does without the memo."""

MAX_WAIT_S = 20.0
"""After this time a sample is made here, although the process that has claimed it lives: it may be stopped."""

CHECKED_OF = 256
"""One of so many samples is made again when it is found, the same ones in all processes."""

_FORMAT = 3
_MAGIC = b"bdmemo\0\3"
_HEADER = struct.Struct("<8sQQ")
_ALIGNMENT = 64
_MAX_COUNT = 10_000_000


class SampleKeys(NamedTuple):
    """Of one source: what its outcomes depend on, and, if hooks draw random numbers, on what else."""

    content: str
    draws: str | None


class SampleMemo:
    """The memo `settings` for these `sources`, each with its keys (None: not kept). Each process opens the folders on
    first use."""

    def __init__(self, settings: Memo, sources: Sequence[Source], keys: Sequence[SampleKeys | None]) -> None:
        self.settings, self.sources, self.keys = settings, sources, keys
        self._files: MemoFiles | None = None

    @property
    def files(self) -> "MemoFiles":
        """The files, as this process uses them.

        Raises:
            ConfigError: if a folder cannot be used, or not by this user alone.
        """
        if self._files is None or not self._files.is_own:
            self._files = MemoFiles(self.settings)
        return self._files

    def name(self, ref: SampleRef) -> str | None:
        """The name of the file of a sample; None if it is not kept."""
        key = self.keys[ref.source]
        if key is None:
            return None
        text = f"{key.content} {ref.index} {'' if key.draws is None else f'{key.draws} {ref.epoch}'}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def has_sample(self, ref: SampleRef) -> bool:
        """Whether a sample is kept now, and will be read from here: not a part of one."""
        name = self.name(ref)
        return name is not None and ref.output == ALL_OUTPUTS and self.files.has(name)

    def __call__(self, inner: Maker, lane: LaneView) -> "LaneMemo":
        """A maker for a lane, or an `AheadMaker`: a `MakerWrapper`."""
        return LaneMemo(self, inner, lane)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_files": None}


def memoized(dataset: LaneDataset, memo: Memo) -> LaneDataset:
    """The same data set, whose lanes keep encoded samples in `memo`, and look for them there first.

    Raises:
        ConfigError: if a folder cannot be used.
    """
    sources = dataset.plan.sources
    keys = keys_of(dataset.batcher().bare_maker, sources, str(memo.version), bare_keys=dataset.bare_keys)
    of_samples = SampleMemo(memo, sources, keys)
    _ = of_samples.files  # opened here, rather than in a worker
    return dataset.changed(wrappers=(of_samples, *dataset.wrappers))


def keys_of(
    maker: EncodingMaker, sources: Sequence[Source], version: str, *, bare_keys: bool
) -> list[SampleKeys | None]:
    """The keys of all samples of each source, as `maker` makes them by the `version` that the user names; None for data
    in memory, whose content is unknown."""
    seed = maker.hooks.worker_config.seed_offset if maker.is_seeded else None
    keys: list[SampleKeys | None] = []
    encodings = content_keys(maker.hooks.encoder, sources, version)
    for source, source_key, encoding in zip(sources, maker.ids.source_keys, encodings, strict=True):
        if any(isinstance(stored_records(one.records), MemoryRecords) for one in source.members):
            keys.append(None)
            continue
        content = repr((_FORMAT, encoding, bare_keys, maker.settings, _of_data(source)))
        keys.append(SampleKeys(content, None if seed is None else f"{seed} {source_key}"))
    return keys


def _of_data(source: Source) -> list[Any]:
    """What tells the data of a source, and what cookers read besides."""
    aux = [[name, one.path, one.kind, sorted(one.forgotten)] for name, one in sorted(source.aux.items())]
    forgotten = digest_of_keys(source.withheld.keys)
    paths = [[one.path, str(one.records.root), one.contents] for one in (source, *source.members)]
    return [source.fingerprint, source.split_part, paths, aux, forgotten]


class MemoFiles:
    """The folders of a memo, as this process uses them: memory first, then the disk."""

    def __init__(self, settings: Memo) -> None:
        name = f"bridge_data_memo_{os.getuid()}"
        self._memory = CacheFolder(
            os.path.join(settings.folder, name), max_bytes=settings.max_bytes, max_count=_MAX_COUNT
        )
        self._folders = [self._memory]
        if settings.disk is not None:
            path = os.path.join(settings.disk, name)
            disk = CacheFolder(path, max_bytes=settings.max_disk_bytes, max_count=_MAX_COUNT, lasting=True)
            self._folders.append(disk)
        for folder in self._folders:
            folder.enter()
            weakref.finalize(self, _leave, folder, settings.folder)
        self.classes = _script_classes()

    @property
    def is_own(self) -> bool:
        """Whether this process has opened them, not the one that it was forked from."""
        return self._memory.is_own

    def read(self, name: str) -> tuple[SampleOutcome, int] | None:
        """The outcome in the file `name`, and the size of that; None if there is none, or it is damaged."""
        for folder in self._folders:
            descriptor = folder.open(name)
            if descriptor is None:
                continue
            try:
                content = writable_content(descriptor)
            finally:
                os.close(descriptor)
            with contextlib.suppress(Exception):  # damaged, or of a class that is not here
                return SampleOutcome(*from_pieces(_parts_in(content))), len(content)
            folder.discard(name)
        return None

    def has(self, name: str) -> bool:
        """Whether there is a file `name`."""
        return any(folder.has(name) for folder in self._folders)

    def claim(self, name: str) -> int | None:
        """The right to make the sample `name`; None if another has it, or has made it."""
        return self._memory.claim(name, wait=False)

    def wait_for(self, name: str, timeout_s: float) -> None:
        """Wait until nobody makes the sample `name`, at most so long."""
        self._memory.wait_for(name, timeout_s)

    def store_and_release(self, name: str, claim: int, parts: Sequence[Buffer] | None) -> None:
        """Store a claimed sample, where it fits, unless `parts` is None; release the claim."""
        if self._memory.store_and_release(name, claim, parts) or parts is None:
            return
        for disk in self._folders[1:]:
            if (own := disk.claim(name, wait=False)) is not None:
                disk.store_and_release(name, own, parts)

    def warn(self, error: Exception) -> None:
        """Log, once, that the memo does not work."""
        self._memory.warn(error)


def _leave(folder: CacheFolder, parent: str | os.PathLike[str]) -> None:
    if folder.is_own:
        folder.leave()
        with contextlib.suppress(OSError):  # it is not empty
            os.rmdir(parent)


class LaneMemo:
    """The memo as one lane asks it, before `inner`. While another process makes the sample that it needs, it makes the
    next ones of the lane; for an `AheadMaker`, it waits."""

    def __init__(self, memo: SampleMemo, inner: Maker, lane: LaneView) -> None:
        self._memo, self._name, self._files = memo, memo.name, memo.files
        self._inner, self._lane = inner, lane
        self._upcoming = None if lane.new_upcoming is None else lane.new_upcoming()
        self._claim: tuple[str, int] | None = None
        self._has_checked = False
        self._expected: SampleOutcome | None = None
        """The outcome that was kept of a sample which is made again, to check it."""
        self._num_unkept = 0
        """How many samples in a row could not be kept."""
        self._made: dict[SampleRef, SampleOutcome | None] = {}
        """Of samples made ahead that the lane has not reached, the outcome; None if it is to make them itself."""

    def make(self, refs: Sequence[SampleRef]) -> Iterable[Made]:
        """See `Maker`."""
        if not any(map(self._lane.may_come_from_others, refs)):
            return self._inner.make(refs)
        return map(self._one, refs)

    def _one(self, ref: SampleRef) -> Made:
        if self._lane.may_come_from_others(ref):
            if self._lane.watch is not None:
                self._lane.watch(ref)
            if (found := self._find(ref)) is not None:
                return self._lane.adopted(ref, found)
            made = None
            try:
                made = self._lane.recorded(self._inner, ref)
            finally:
                self._keep(ref, made)
            return made.made
        (one,) = self._inner.make((ref,))
        return one

    @functools.cached_property
    def _ahead(self) -> AheadMaker | None:
        """What makes samples ahead, which raises failures, as the lane will meet them in its order."""
        return None if self._lane.new_ahead_maker is None else self._lane.new_ahead_maker(self._lane.inside)

    def _find(self, ref: SampleRef) -> SampleOutcome | None:
        """The outcome, from the memo, after the process that makes it; None: make it here, then call `_keep`, be it to
        check the one in the memo."""
        if (made := self._made.pop(ref, None)) is not None:
            COUNTS.others["memo_misses"] += 1
            return made
        name = self._name(ref)
        if name is None or self._num_unkept >= MAX_UNKEPT:
            return None
        try:
            found = self._awaited(ref, name)
        except OSError as error:
            self._files.warn(error)
            return None
        if found is None:
            COUNTS.others["memo_misses"] += 1
            return None
        outcome, num_bytes = found
        COUNTS.others["memo_hits"] += 1
        COUNTS.others["memo_bytes"] += num_bytes
        if not self._is_checked(name):
            return outcome
        self._has_checked, self._expected = True, outcome
        return None

    def _is_checked(self, name: str) -> bool:
        """Whether the sample of this name is made again though it is there."""
        return not self._has_checked or int(name[:8], 16) % CHECKED_OF == 0

    def _awaited(self, ref: SampleRef, name: str) -> tuple[SampleOutcome, int] | None:
        """As `MemoFiles.read`, when no other process makes the sample any more; if it is None, it is claimed here."""
        waited_s = 0.0
        while (found := self._files.read(name)) is None and waited_s < MAX_WAIT_S:
            if (claim := self._files.claim(name)) is not None:
                self._claim = name, claim
                break
            if not self._make_ahead(ref):
                began_s = time.monotonic()
                self._files.wait_for(name, MAX_WAIT_S - waited_s)
                waited_s += time.monotonic() - began_s
        return found

    def _make_ahead(self, needed: SampleRef) -> bool:
        """Make one of the next samples that no process has made or makes; False if there is none."""
        ahead, watch = self._ahead, self._lane.watch
        if self._upcoming is None or ahead is None:
            return False
        for ref in self._upcoming.peek(NUM_AHEAD):
            name = self._name(ref)
            if name is None or ref in self._made:
                continue
            if self._files.has(name) or (claim := self._files.claim(name)) is None:
                continue
            if watch is not None:
                watch(ref)
            outcome = None
            try:
                outcome = ahead.made(ref)
            finally:
                is_kept = self._settle(name, claim, outcome)
            if len(self._made) >= 2 * NUM_AHEAD:
                self._made.clear()  # of samples that the lane has passed over
            self._made[ref] = outcome if is_kept else None
            if watch is not None:
                watch(needed)
            return True
        return False

    def _keep(self, ref: SampleRef, outcome: SampleOutcome | None) -> None:
        """Store the outcome that `_find` did not find, or compare it with the one that it did; None if the work has
        failed.

        Raises:
            FatalSampleError: if another outcome was kept.
        """
        expected, self._expected = self._expected, None
        if expected is not None and outcome is not None and not {FAILED, FORGOTTEN} & outcome.notes.skipped.keys():
            self._compare(ref, expected, outcome)
        if self._claim is not None:
            (name, claim), self._claim = self._claim, None
            self._settle(name, claim, outcome)

    def _compare(self, ref: SampleRef, expected: SampleOutcome, made: SampleOutcome) -> None:
        found = first_difference(expected.notes.skipped, made.notes.skipped, "skipped")
        found = found or first_difference(dict(expected.outputs), dict(made.outputs), "outputs")
        if found is not None:
            source, settings = self._memo.sources[ref.source], self._memo.settings
            raise FatalSampleError(
                f"memo: sample {source.key_or_place(ref.index)} of {source.name}: the hooks make another one than is "
                f"kept in {settings.folder} under version {str(settings.version)!r}: {found}. If hooks, or what they "
                "read, have changed, name another version; if they make another one each time, as by random numbers "
                "of their own, do without a memo"
            )

    def _settle(self, name: str, claim: int, outcome: SampleOutcome | None) -> bool:
        """Release a claim, after storing the outcome, if it may be kept; returns whether it may."""
        parts: Sequence[Buffer] | None = None
        notes = None if outcome is None else outcome.notes
        may_keep = notes is not None and not (
            notes.is_positional or notes.found_generator or {FAILED, FORGOTTEN} & notes.skipped.keys()
        )
        try:
            if outcome is not None and may_keep:
                parts = _packed(outcome, self._files.classes)
        except Exception as error:
            self._files.warn(error)
        self._num_unkept = 0 if parts is not None else self._num_unkept + 1
        try:
            self._files.store_and_release(name, claim, parts)
        except OSError as error:
            self._files.warn(error)
        return may_keep


def _packed(outcome: SampleOutcome, classes: ByName) -> list[Buffer]:
    """An outcome as the parts of a file."""
    values = [piece.raw() for piece in pieces_of(tuple(outcome), ReferencePickler, classes)]
    lengths = struct.pack(f"={len(values)}Q", *(value.nbytes for value in values))
    body: list[Buffer] = [lengths]
    offset = _HEADER.size + len(lengths)
    for value in values:
        body += [bytes(-offset % _ALIGNMENT), value]
        offset += -offset % _ALIGNMENT + value.nbytes
    return [_HEADER.pack(_MAGIC, _checksum(body), len(values)), *body]


def _checksum(parts: Sequence[Buffer]) -> int:
    total = 0
    for part in parts:
        total = zlib.crc32(part, total)
    return total


def _parts_in(content: mmap.mmap | bytearray) -> list[memoryview]:
    """The parts in a file.

    Raises:
        ValueError: if it is damaged.
    """
    view = memoryview(content)
    magic, checksum, count = _HEADER.unpack_from(view)
    if magic != _MAGIC or _checksum([view[_HEADER.size :]]) != checksum:
        raise ValueError("damaged")
    offset, parts = _HEADER.size + 8 * count, []
    for length in struct.unpack_from(f"={count}Q", view, _HEADER.size):
        offset += -offset % _ALIGNMENT
        parts.append(view[offset : offset + length])
        offset += length
    return parts


_SCRIPT = ("__main__", "__mp_main__")


def _script_classes() -> ByName:
    """The classes of the user's script in this process, by their names in it: workers have copies of them."""
    return {cls: (_script_class, (cls.__qualname__,)) for cls in _classes_of_script()}


def _classes_of_script() -> list[type]:
    from cloudpickle.cloudpickle import _DYNAMIC_CLASS_TRACKER_BY_CLASS  # here: it is slow to import

    named = [one for name in _SCRIPT if name in sys.modules for one in vars(sys.modules[name]).values()]
    found = [one for one in (*_DYNAMIC_CLASS_TRACKER_BY_CLASS, *named) if isinstance(one, type)]
    return [cls for cls in found if cls.__module__ in _SCRIPT]


def _script_class(name: str) -> type:
    return next(cls for cls in _classes_of_script() if cls.__qualname__ == name)
