"""What is known about the shards of a data set: from its last preparation, and from results of scans kept in files.

Reads the folder of a data set and names of shards. Returns the segment of each shard, after those that are not known
have been scanned; see `shard_work`. The results are in the folder `.scanned`, in the format of our index; the
`.tar.idx` of a scanned shard is written next to it, and for a compressed one `.gzidx`. A result is used only for the
shard that it was made from, by size and time of change, in a store by the ETag; memory does not depend on the number of
samples.
"""

import array
import dataclasses
import functools
import re
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from bridge_data import storage
from bridge_data.data.index_file import BridgeIndex, Segment, ShardEntry
from bridge_data.data.metadata import tar_index_path
from bridge_data.data.paged_file import DamagedIndexError
from bridge_data.data.sample_offsets import encode_offsets
from bridge_data.data.tar_files import FileTar, is_gzip, seek_index_path
from bridge_data.errors import ConfigError, DatasetError, listed
from bridge_data.options import check_integer
from bridge_data.prepare.executors import Executor, Progress
from bridge_data.prepare.index_writing import BridgeIndexWriter
from bridge_data.prepare.shard_work import ShardFiles, ShardWork
from bridge_data.prepare.tar_scan import ScanNotes, ShardScan, raise_faults, scan_tar
from bridge_data.storage import Location
from bridge_data.storage.atomic import replacing, writing

SCANNED = ".scanned"
"""The folder, in the data set's, for results that are in no index yet; removed when they are."""

_SUFFIX = ".bridge"
_DONE = re.compile(r"task-(\d+)-of-(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class ScanTask:
    """Share number `index`, from 0 on, of `num_tasks` equal ones."""

    index: int
    num_tasks: int

    def __post_init__(self) -> None:
        check_integer("num_tasks", self.num_tasks, 1)
        check_integer("task_index", self.index, 0)
        if self.index >= self.num_tasks:
            raise ConfigError(f"task_index={self.index}: expected less than num_tasks={self.num_tasks}")

    @classmethod
    def parse(cls, text: str) -> "ScanTask":
        """The share that `3/16` stands for.

        Raises:
            ConfigError: for anything else.
        """
        index, _, number = text.partition("/")
        if not (index.isdecimal() and number.isdecimal() and int(index) < int(number)):
            raise ConfigError(f"--task {text}: expected I/N, share I, from 0 on, of N equal ones, such as 0/16")
        return cls(int(index), int(number))

    def share(self, names: Sequence[str]) -> list[str]:
        """The shards of this task: every `num_tasks`-th, so that all tasks get large and small ones."""
        return list(names[self.index :: self.num_tasks])

    @property
    def file_name(self) -> str:
        """The name of the file that marks the task as done."""
        return f"task-{self.index:05d}-of-{self.num_tasks:05d}"


class ScanResults:
    """What is known about the shards `names` of the data set at `root`. Results in `.scanned` take precedence over
    segments of `old`, the index of the last preparation. With `digest`, only results with digests count; with `rescan`,
    none. For a `task`, only its own results are read."""

    def __init__(
        self,
        root: Location,
        names: Sequence[str],
        old: BridgeIndex | None,
        *,
        digest: bool,
        rescan: bool = False,
        task: ScanTask | None = None,
    ) -> None:
        self.root, self.names = root, names
        self.folder = root / SCANNED
        self._begin = "" if task is None else f"{task.file_name}."
        """What the names of its results start with."""
        self._files = ShardFiles(root)
        self.errors: list[str] = []
        """Errors of shards that cannot be used."""
        self._old, self._digest = old, digest
        self._sources: dict[str, BridgeIndex] = {}
        kept = [] if rescan else [*self._kept(), *([] if old is None else [old])]
        for name in names if kept else ():
            source = _source(root, name, self._files, kept, digest=digest)
            if source is not None:
                self._sources[name] = source

    def _kept(self) -> Iterator[BridgeIndex]:
        """The results in the folder."""
        for name in _names_in(self.folder):
            if name.endswith(_SUFFIX) and name.startswith(self._begin):
                index = BridgeIndex.open(self.folder / name)
                if index is not None:
                    yield index

    @property
    def missing(self) -> list[str]:
        """The shards that must be scanned."""
        return [name for name in self.names if name not in self._sources]

    def entry(self, name: str) -> ShardEntry:
        """The entry of a shard as of its scan."""
        return self._sources[name].entries[name]

    def segment(self, name: str) -> Segment:
        """The segment of a shard, whose pages are read on demand."""
        return self._sources[name].segment(name)

    def segment_bytes(self, name: str) -> bytes:
        """The bytes of the segment of a shard."""
        return self._sources[name].segment_bytes(name)

    def notes(self, name: str) -> ScanNotes:
        """Remarks on a shard that was scanned since the last preparation."""
        return ScanNotes(self._sources[name].notes.get(name))

    def fresh(self) -> list[int]:
        """The numbers of the shards that are new or changed since the last preparation."""
        known = self._sources
        return [n for n, name in enumerate(self.names) if name not in known or known[name] is not self._old]

    def size_bytes(self, name: str) -> int:
        """The size of a shard; 0 if it is gone."""
        return self.entry(name).num_bytes if name in self._sources else self._files.size_bytes(name) or 0

    def scan(self, executor: Executor, on_progress: Progress) -> int:
        """Scan what is missing, and keep the results. Return the number of shards scanned."""
        num_missing = len(self.missing)
        deque(self.scan_in_order(executor, on_progress), maxlen=0)
        return num_missing

    def scan_in_order(self, executor: Executor, on_progress: Progress) -> Generator[str, None, None]:
        """The same; yields the names in order, each as soon as its shard is known, up to the first that cannot be
        used. All are scanned, nevertheless."""
        missing, names = self.missing, deque(self.names)
        work = ShardWork(
            root=self.root,
            folder=self.folder,
            what="scanned shards",
            do=functools.partial(_scan_some, self.root, self._digest),
            open=BridgeIndex.open,
            suffix=_SUFFIX,
            prefix=self._begin,
        )
        done = len(self.names) - len(missing)
        yield from self._known_first(names)
        for index, run, errors in work.results(missing, executor):
            self._sources.update(dict.fromkeys(index.entries, index))
            self.errors += errors
            for _ in run:
                done += 1
                on_progress(done, len(self.names))
            yield from self._known_first(names)

    def _known_first(self, names: deque[str]) -> Iterator[str]:
        """Take the first of these names, as long as their shards are known."""
        while names and names[0] in self._sources:
            yield names.popleft()

    def check_complete(self) -> None:
        """Ensure that nothing is missing.

        Raises:
            DatasetError: naming the tasks that are not done.
        """
        missing = self.missing
        if missing:
            raise DatasetError(
                f"{self.root}: {len(missing):,} of {len(self.names):,} shards are not scanned, such as {missing[0]}: "
                f"{self._unfinished()}. Run what is missing, or prepare without --task, which scans the rest"
            )

    def _unfinished(self) -> str:
        """Which tasks have not finished."""
        by_total: dict[int, set[int]] = {}
        for name in _names_in(self.folder):
            match = _DONE.fullmatch(name)
            if match is not None:
                by_total.setdefault(int(match[2]), set()).add(int(match[1]))
        if not by_total:
            return "no task has finished"
        total = max(by_total, key=lambda number: len(by_total[number]))
        missing = [str(number) for number in range(total) if number not in by_total[total]]
        if not missing:
            return f"they are new, or have changed since all {total} tasks were done"
        what = "task" if len(missing) == 1 else "tasks"
        return f"{what} {listed(missing)} of {total} (counted from 0) have not finished"

    def note_done(self, task: ScanTask) -> None:
        """Note that all shards of `task` are scanned."""
        with writing(self.root):
            storage.make_folder(self.folder)
            storage.write(self.folder / task.file_name, b"")

    def check_usable(self, expected: Mapping[str, int] | None = None) -> None:
        """Ensure that every shard can be used, and has as many samples as `expected`, if that is given.

        Raises:
            DatasetError: naming the faults of all shards.
        """
        known = [name for name in self.names if name in self._sources]
        counts = [] if expected is None else [(name, self.entry(name).count, expected[name]) for name in known]
        changed = [
            f"{name}: has {count} samples, but .nv-meta says {before}: prepare the data set again, with its split"
            for name, count, before in counts
            if count != before
        ]
        raise_faults([*self.errors, *changed], len(self.names))


def forget_results(root: Location) -> None:
    """Remove the results of scans of the data set at `root`."""
    storage.delete_below(root / SCANNED)


def _names_in(folder: Location) -> list[str]:
    """The names of the files in `folder`, sorted; none if it is not there."""
    if isinstance(folder, storage.RemotePath):
        return list(storage.list_sizes(str(folder)))
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _source(
    root: Location, name: str, files: ShardFiles, kept: Sequence[BridgeIndex], *, digest: bool
) -> BridgeIndex | None:
    """The first index with an intact segment of the current version of shard `name`; with `digest`, one with digests.
    A missing `.tar.idx` is rewritten."""
    path, version = root / name, None
    for index in kept:
        entry = index.entries.get(name)
        if entry is None:
            continue
        try:
            version = version or files.version(name)
        except FileNotFoundError:
            raise DatasetError(
                f"{path}: was prepared, and is gone. Restore it, or prepare the data set without it, with "
                "--force-overwrite and the same split and field map."
            ) from None
        except OSError:  # the scan will report it
            return None
        if (version.num_bytes, version.stamp) != (entry.num_bytes, entry.mtime_ns) or not has_seek_index(path):
            continue
        try:
            segment = Segment.of(index.segment_bytes(name))
        except DamagedIndexError:
            continue
        if digest and not segment.has_digests:
            continue
        if files.size_bytes(str(tar_index_path(name))) != 8 * (len(segment) + 1):
            if not len(segment):  # an empty segment does not say where the shard ends
                continue
            with writing(path.parent):
                write_tar_index(path, segment.offsets())
        return index
    return None


def _scan_some(root: Location, digest: bool, output: BinaryIO, names: list[str]) -> list[str]:
    """Scan some shards, and write the results to `output`. Returns the errors of unusable shards."""
    errors: list[str] = []
    notes: dict[str, Mapping[str, Any]] = {}
    index = BridgeIndexWriter(output)
    for name in names:
        try:
            scan = scan_shard(root, name, digest=digest)
        except DatasetError as error:
            errors.append(str(error))
            continue
        index.add(name, scan.num_bytes, scan.mtime_ns, scan.segment, scan.head)
        plain = scan.notes.plain()
        if plain:
            notes[name] = plain
    index.finish(index.content_uuid(), notes)
    return errors


def scan_shard(root: Location, name: str, *, digest: bool = False) -> ShardScan:
    """Scan shard `name` of the data set at `root`, and write its `.tar.idx`; with `digest`, also read every part.

    Raises:
        DatasetError: if it cannot be read, is damaged, or its members do not make samples.
    """
    scan = scan_tar(root, name, digest=digest)
    path = root / name
    with writing(path.parent):
        write_tar_index(path, scan.offsets)
        if not isinstance(scan.tar, FileTar):
            with replacing(seek_index_path(str(path)), durable=False) as temporary:
                scan.tar.export_index(temporary)
    return scan


def write_tar_index(shard: Location, offsets: "array.array[int]") -> None:
    """Write the `.tar.idx` of `shard`, unless it is up to date. If a crash of the machine truncates it, its size shows
    it."""
    path, data = tar_index_path(shard), encode_offsets(offsets)
    if storage.read_if_there(path) != data:  # replacing a file can take a thousand times as long as reading it
        storage.write(path, data, durable=False)


def has_seek_index(shard: Location) -> bool:
    """Whether `shard` is not compressed, or has the points from which it can be decompressed."""
    return not is_gzip(str(shard)) or seek_index_path(str(shard)).is_file()
