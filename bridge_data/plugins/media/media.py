"""Preparing media: the metadata of all images and clips of a data set, or of a plain folder of files.

Reads a folder, and a rule that says which files are media: by extension, by their first bytes, or by patterns. Writes
the metadata to `.nv-meta/index.sqlite`, where `MediaIndex` finds them by key: for images from the header, for clips
from PyAV. Shards and files that were read by the same rule, and have not changed since, are not opened again. Memory is
bounded by a few shards; unreadable files are counted and named. Pixels are decoded only if the header lacks size or
mode; audio once.

Source: the three strategies, under these names, are those of Energon's `media_filters` table.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path

from bridge_data import storage
from bridge_data.data.index_file import BridgeIndex, split_name
from bridge_data.data.metadata import BRIDGE_INDEX, INDEX_SQLITE, INFO_JSON, INFO_YAML, META_FOLDER
from bridge_data.data.prepared import PreparedDataset
from bridge_data.data.tar_files import CompressedTar, FileTar, open_tar, walk
from bridge_data.decode.media_headers import extract
from bridge_data.decode.media_metadata import MediaMetadata
from bridge_data.errors import ConfigError, DatasetError, SampleError, bridge_command
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plugins.media.media_rule import MediaRule
from bridge_data.plugins.media.media_table import MediaTable, writing_media
from bridge_data.prepare.executors import Executor, LocalProcesses, Progress, no_progress
from bridge_data.prepare.sqlite_index import SeenFile

HEAD_BYTES = 512
"""Bytes at the start of a file by which its kind is recognised."""

FILES_AT_ONCE = 256
"""Files of a plain folder per task."""

READ_BYTES = 1 << 16
"""Bytes of a file per read."""

MAX_EXAMPLES = 10
"""Maximum messages kept on unreadable files."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MediaPreparation:
    """The result: files whose metadata are now stored, shards or files that were read, those that had not changed,
    media that could not be read, and the messages of the first of these."""

    num_stored: int
    num_seen: int
    num_unchanged: int
    num_unreadable: int
    examples: tuple[str, ...]


@dataclasses.dataclass(slots=True)
class _Look:
    """The media found in a shard, or in some files."""

    seen: Sequence[SeenFile]
    found: list[tuple[str, MediaMetadata]] = dataclasses.field(default_factory=list)
    num_unreadable: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)

    def add(self, rule: MediaRule, key: str, opened: io.RawIOBase) -> None:
        """Read the metadata of the file `key`."""
        with io.BufferedReader(opened, READ_BYTES) as file:
            kind = rule.kind(key, file.peek(HEAD_BYTES)[:HEAD_BYTES])
            if kind is None:
                return
            try:
                self.found.append((key, extract(kind, file, key, rule.orientation)))
            except SampleError as error:
                self.num_unreadable += 1
                if len(self.examples) < MAX_EXAMPLES:
                    self.examples.append(str(error))


def prepare_media(
    root: Path,
    rule: MediaRule,
    *,
    num_workers: int = 1,
    executor: Executor | None = None,
    limits: Limits = DEFAULT_LIMITS,
    on_progress: Progress = no_progress,
) -> MediaPreparation:
    """Store the metadata of the media in the prepared data set `root`, or in the plain folder `root`. `limits` apply to
    the data set's metadata. `executor` reads; None: `num_workers` processes do.

    Raises:
        ConfigError: if there are no media.
        DatasetError: naming the shard, if one is damaged.
    """
    executor = executor or LocalProcesses(num_workers)
    if not root.is_dir():
        raise ConfigError(
            f"{root}: expected the folder of a prepared data set, or a folder of files"
            + (": JSONL files and metadatasets hold no media themselves" if root.exists() else ", and there is none")
        )
    meta = root / META_FOLDER
    storage.close_files()  # a file that was replaced since this process read it must be reopened
    prepared = any((meta / name).is_file() for name in (INFO_JSON, INFO_YAML))
    if prepared and not (meta / INDEX_SQLITE).is_file():
        fix_command = bridge_command("prepare", root, "--tar-index-only")
        raise ConfigError(f"{root}: has no {INDEX_SQLITE}; run `{fix_command}` first")
    with writing_media(meta / INDEX_SQLITE, rule) as table:
        if prepared:
            dataset = PreparedDataset.open(root, limits)
            numbers = {name: number for number, name in enumerate(dataset.shard_counts)}
            index = meta / BRIDGE_INDEX
            mtime_ns = index.stat().st_mtime_ns if index.is_file() else 0
            look = functools.partial(_look_at_shard, root, rule, limits, mtime_ns)
            shards = [_as_it_is(root, name) for name in numbers]
            found = executor.map(look, _tasks(table, shards, 1), what="looked at media")
            done = _stored(found, table, lambda file: table.forget_shard(numbers[file.name]), on_progress, len(shards))
        else:
            files = (file for file in _walk_files(root) if rule.may_be_media(file.name))
            look = functools.partial(_look_at_files, root, rule)
            found = executor.map(look, _tasks(table, files, FILES_AT_ONCE), what="looked at media")
            done = _stored(found, table, lambda file: table.forget_file(file.name), on_progress, None)
            if not done.num_seen and not done.num_unchanged:
                raise _no_media(root, rule)
    return done


def _tasks(table: MediaTable, files: Iterable[SeenFile], size: int) -> Iterator[tuple[SeenFile, ...]]:
    """Those of the files that must be read, in lists of `size`."""
    fresh = (file for file in files if not table.is_known(file))
    while task := tuple(itertools.islice(fresh, size)):
        yield task


def _stored(
    looks: Generator[_Look, None, None],
    table: MediaTable,
    forget: Callable[[SeenFile], None],
    on_progress: Progress,
    num_files: int | None,
) -> MediaPreparation:
    """Write what was found, in place of what is there, and count it."""
    num_seen = num_unreadable = 0
    examples: list[str] = []
    with contextlib.closing(looks):
        for look in looks:
            for file in look.seen:
                forget(file)
            table.add(look.seen, look.found)
            num_seen += len(look.seen)
            num_unreadable += look.num_unreadable
            examples += look.examples[: MAX_EXAMPLES - len(examples)]
            on_progress(table.num_known + num_seen, num_files)
    if num_files is None:
        table.forget_absent()
    return MediaPreparation(
        num_stored=table.count(),
        num_seen=num_seen,
        num_unchanged=table.num_known,
        num_unreadable=num_unreadable,
        examples=tuple(examples),
    )


def _look_at_shard(
    root: Path, rule: MediaRule, limits: Limits, index_mtime_ns: int, shards: Sequence[SeenFile]
) -> _Look:
    look, (shard,) = _Look(shards), shards
    path = str(root / shard.name)
    tar = open_tar(path)
    read = tar.read_exactly if not isinstance(tar, FileTar) else functools.partial(storage.read, path)
    for key, offset, num_bytes in _members(_index(root, limits, index_mtime_ns), tar, path, shard):
        if rule.may_be_media(key):
            look.add(rule, key, storage.RangeFile(read, offset, num_bytes))
    return look


@functools.lru_cache(maxsize=2)
def _index(root: Path, limits: Limits, mtime_ns: int) -> BridgeIndex | None:
    """Our index as of `mtime_ns`, opened only once for all shards."""
    return PreparedDataset.open(root, limits).index


def _members(
    index: BridgeIndex | None, tar: FileTar | CompressedTar, path: str, shard: SeenFile
) -> Iterator[tuple[str, int, int]]:
    """(name, offset, size) of the parts of the samples in a shard: by our index, if the shard has not changed."""
    entry = None if index is None else index.entries[shard.name]
    if index is not None and entry is not None and (entry.num_bytes, entry.mtime_ns) == shard[1:]:
        segment = index.segment(shard.name)
        for number in range(len(segment)):
            key = segment.key(number)
            yield from ((f"{key}.{part}", offset, num_bytes) for part, offset, num_bytes in segment.parts(number))
        return
    for member in walk(tar, 0, tar.end, file=path):
        if member.is_file and split_name(member.name) is not None:
            yield member.name, member.content_offset, member.num_bytes


def _look_at_files(root: Path, rule: MediaRule, files: Sequence[SeenFile]) -> _Look:
    look = _Look(files)
    for file in files:
        path = str(root / file.name)
        read = functools.partial(storage.read, path)
        look.add(rule, file.name, storage.RangeFile(read, 0, storage.size_bytes(path)))
    return look


def _walk_files(root: Path) -> Iterator[SeenFile]:
    """The files below `root` except metadata, folder by folder and sorted."""
    for folder, folders, names in storage.walk(root):
        folders[:] = sorted(name for name in folders if name != META_FOLDER)
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file():
                yield _as_it_is(root, path.relative_to(root).as_posix())


def _as_it_is(root: Path, name: str) -> SeenFile:
    try:
        status = os.stat(root / name)
    except OSError as error:
        raise DatasetError(f"{root / name}: cannot be read: {error.strerror}") from error
    return SeenFile(name, status.st_size, status.st_mtime_ns)


def _no_media(root: Path, rule: MediaRule) -> ConfigError:
    """The error if a plain folder holds no media."""
    if next(root.rglob("*.tar"), None) is not None:
        return ConfigError(f"{root}: holds tars and is not prepared; run `{bridge_command('prepare', root)}` first")
    return ConfigError(f"{root}: no file is seen as media ({rule}); try another --media")
