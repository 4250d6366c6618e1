"""A prepared data set as a read-only folder of files, without unpacking it; by FUSE.

Reads the folder of a data set, and a mount point; `mount` returns when the mount point is unmounted.
`View` is the tree of folders and files, in three layouts: `members`, all parts under their names in the shards;
`samples`, a folder for each sample, with a file for each part; `shards`, a folder for each shard, with its members.
Slashes in keys are folders in all of them. Names are looked up in `index.sqlite`, and only the requested ranges of a
file are read from its shard; little is kept in memory.
"""

import bisect
import dataclasses
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bridge_data.data.index_file import split_name
from bridge_data.data.key_index import SharedKeys, StoredPart
from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.extensions import needed_package
from bridge_data.task.stores.part_reader import PartReader

Layout: TypeAlias = Literal["members", "samples", "shards"]

MAX_LISTED = 8
"""Shards whose keys are kept in memory while their folders are listed."""

_LAST = "\U0010ffff"

_DEVICE = Path("/dev/fuse")


@dataclasses.dataclass(frozen=True, slots=True)
class ShardPath:
    """A path below its shard (None: below all), without leading slash."""

    shard: int | None
    rest: str


class View:
    """The data set in the folder `root` in a `layout`.

    Raises:
        ConfigError: if it is not prepared, or has keys in several shards and no folders for them.
    """

    def __init__(self, root: Path, layout: Layout = "members") -> None:
        self.catalog = Catalog(root)
        self._by_sample = layout == "samples"
        shared = None if layout == "shards" else SharedKeys.find(self.catalog.reader.index.database)
        if shared is not None:
            raise ConfigError(
                f"{root}: {shared.in_words(self.catalog.shards)}, so their parts would have the same names: show a "
                'folder for each shard (--shard-folders, layout="shards")'
            )
        shards = self.catalog.shards if layout == "shards" else []
        self._shards = {name: number for number, name in enumerate(shards)}
        self._sorted_shards = sorted(shards)

    def file(self, path: str) -> StoredPart | None:
        """The part for the file `path`, such as `/a/0001.jpg`; None if there is no such file."""
        found = self._locate(path)
        if found is None:
            return None
        if self._by_sample:
            key, _, name = found.rest.rpartition("/")
        else:
            pieces = split_name(found.rest)
            if pieces is None:
                return None
            key, name = pieces
        return next((part for part in self.catalog.parts(key, found.shard) if part.part == name), None)

    def is_folder(self, path: str) -> bool:
        """Whether `path` is a folder."""
        found = self._locate(path)
        if found is None:
            return path == "/" or next(self._shard_names(path[1:] + "/"), None) is not None
        if not found.rest or self.catalog.has_below(found.rest + "/", found.shard):
            return True
        return self._by_sample and bool(self.catalog.parts(found.rest, found.shard))

    def names(self, path: str) -> Iterator[str]:
        """The names in the folder `path`."""
        found = self._locate(path)
        if found is None:
            yield from self._shard_names(path[1:] + "/" if path != "/" else "")
            return
        prefix = found.rest + "/" if found.rest else ""
        if self._by_sample:
            if found.rest:
                yield from (part.part for part in self.catalog.parts(found.rest, found.shard))
            yield from _without_repetition(self.catalog.names_below(prefix, found.shard))
            return
        for name, is_key in self.catalog.names_below(prefix, found.shard):
            if is_key:
                yield from (f"{name}.{part.part}" for part in self.catalog.parts(prefix + name, found.shard))
            else:
                yield name

    def _locate(self, path: str) -> ShardPath | None:
        """The location of `path` in its shard; None above the shards."""
        rest = path[1:]
        if not self._shards:
            return ShardPath(None, rest)
        end = len(rest)
        while end > 0:
            number = self._shards.get(rest[:end])
            if number is not None:
                return ShardPath(number, rest[end + 1 :])
            end = rest.rfind("/", 0, end)
        return None

    def _shard_names(self, prefix: str) -> Iterator[str]:
        """The next pieces of the shards' names that begin with `prefix`."""
        last = ""
        for number in range(bisect.bisect_left(self._sorted_shards, prefix), len(self._sorted_shards)):
            if not self._sorted_shards[number].startswith(prefix):
                return
            piece = self._sorted_shards[number][len(prefix) :].partition("/")[0]
            if piece != last:
                last = piece
                yield piece


def _without_repetition(names: Iterator[tuple[str, bool]]) -> Iterator[str]:
    """Each name once, if one is both a key and a folder of other keys; these are adjacent except for a few in
    between."""
    keys: set[str] = set()
    for name, is_key in names:
        if is_key:
            keys.add(name)
            yield name
        elif name not in keys:
            yield name


class Catalog:
    """The samples of the data set in the folder `root`, by prefix of their keys. Any thread may use it.

    Raises:
        ConfigError: if it is not prepared, or without an index of keys.
        DatasetError: if that cannot be read.
    """

    def __init__(self, root: Path) -> None:
        self.reader = PartReader(root)
        self._index = self.reader.index
        self.shards = self._index.shard_names
        self.path = self._index.database.file
        self._index.knows_parts  # noqa: B018 - reports a damaged index at once
        self._lock = threading.Lock()
        self._keys: dict[int, list[str]] = {}

    def parts(self, key: str, shard: int | None = None) -> list[StoredPart]:
        """The parts of the sample `key` (in `shard`, if that is given); none if there is no such sample."""
        return [
            part
            for part in self._index.parts(key)
            if shard in (None, part.shard) and not self.reader.is_forgotten(part.shard, key)
        ]

    def has_below(self, prefix: str, shard: int | None = None) -> bool:
        """Whether a key begins with `prefix`."""
        return next(self._keys_from(prefix, prefix, shard), None) is not None

    def names_below(self, prefix: str, shard: int | None = None) -> Iterator[tuple[str, bool]]:
        """(next piece of the keys that begin with `prefix`, whether it is a whole key), sorted; a piece may be both."""
        start = prefix
        while True:
            for key in self._keys_from(start, prefix, shard):
                piece, slash, _ = key[len(prefix) :].partition("/")
                yield piece, not slash
                if slash:  # skip all other keys below that piece
                    start = f"{prefix}{piece}/{_LAST}"
                    break
            else:
                return

    def _keys_from(self, start: str, prefix: str, shard: int | None) -> Iterator[str]:
        """The keys that begin with `prefix`, sorted, from `start` on, but those of forgotten samples; for one shard,
        from a list of all its keys."""
        if shard is not None:
            keys = self._keys_of(shard)
            for number in range(bisect.bisect_left(keys, start), len(keys)):
                if not keys[number].startswith(prefix):
                    return
                yield keys[number]
            return
        limit = 1
        while keys := self._index.sorted_keys(start, prefix + _LAST, limit):
            yield from (key for key in keys if not self.reader.forgets or self.parts(key))
            start, limit = keys[-1] + "\0", min(1000, 2 * limit)

    def _keys_of(self, shard: int) -> list[str]:
        with self._lock:
            keys = self._keys.get(shard)
            if keys is None:
                kept = (key for key in self._index.keys(shard) if not self.reader.is_forgotten(shard, key))
                keys = self._keys[shard] = sorted(kept)
                while len(self._keys) > MAX_LISTED:
                    self._keys.pop(next(iter(self._keys)))
            return keys


class ViewOperations:
    """The operations that mfusepy calls, in its form: paths with a leading slash; failures are `OSError`s.

    `mount` adds the missing attributes of `mfusepy.Operations`. `on_start` is called when it is mounted.
    """

    use_ns = True

    def __init__(self, view: View, on_start: Callable[[], None] = lambda: None) -> None:
        self._view, self._on_start = view, on_start
        self._mtime_ns = os.stat(view.catalog.path).st_mtime_ns
        self._open: dict[int, StoredPart] = {}
        self._next = 0
        self._size: tuple[int, int] | None = None

    def init(self, path: str) -> None:
        """It is mounted."""
        self._on_start()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """The attributes of `path`: kind, permissions, size and times."""
        part = self._open.get(fh) if fh is not None else None
        part = part or self._checked(self._view.file, path)
        if part is not None:
            mode, num_bytes, links = stat.S_IFREG | 0o444, part.num_bytes, 1
        elif self._checked(self._view.is_folder, path):
            mode, num_bytes, links = stat.S_IFDIR | 0o555, 0, 2
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), self._mtime_ns)
        return {
            "st_mode": mode,
            "st_nlink": links,
            "st_size": num_bytes,
            "st_uid": os.getuid(),
            "st_gid": os.getgid(),
        } | times

    def readdir(self, path: str, fh: int) -> Iterator[str]:
        """The names in the folder `path`."""
        yield from (".", "..")
        yield from self._checked(self._view.names, path)

    def open(self, path: str, flags: int) -> int:
        """A handle on the file `path`."""
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        part = self._checked(self._view.file, path)
        if part is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._next += 1
        self._open[self._next] = part
        return self._next

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """`size` bytes of an open file from `offset` on, fewer at its end."""
        try:
            return self._view.catalog.reader.read_range(self._open[fh], offset, size)
        except BridgeDataError as error:
            raise OSError(errno.EIO, str(error), path) from error

    def release(self, path: str, fh: int) -> int:
        """Release a handle."""
        self._open.pop(fh, None)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        """The total size, for `df`."""
        if self._size is None:
            self._size = self._view.catalog.reader.index.size()
        num_bytes, num_samples = self._size
        return {"f_bsize": 512, "f_blocks": num_bytes // 512, "f_files": num_samples, "f_namemax": 1024}

    @staticmethod
    def _checked(ask: Any, path: str) -> Any:
        try:
            return ask(path)
        except BridgeDataError as error:
            raise OSError(errno.EIO, str(error), path) from error


def mount(view: View, mountpoint: Path, *, detach: bool = False, on_start: Callable[[], None] = lambda: None) -> None:
    """Show `view` at the folder `mountpoint` until it is unmounted; with `detach`, from a process in the background.
    `on_start` is called when it is mounted.

    Raises:
        ConfigError: if there is no FUSE here, or the folder cannot be used.
    """
    library = import_fuse()
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        raise ConfigError(
            f"{_DEVICE}: {'may not be used by this user' if _DEVICE.exists() else 'no such device'}: this machine, or "
            "container, cannot mount by FUSE (docker run --device /dev/fuse --cap-add SYS_ADMIN)"
        )
    try:
        mountpoint.mkdir(parents=True, exist_ok=True)
        if next(mountpoint.iterdir(), None) is not None:
            raise ConfigError(f"{mountpoint}: is not empty, and its content would be hidden; give another folder")
    except OSError as error:
        raise ConfigError(f"{mountpoint}: cannot be mounted on: {error.strerror}") from error

    def show(on_start: Callable[[], None]) -> None:
        operations = type("Operations", (ViewOperations, library.Operations), {})(view, on_start)
        try:
            library.FUSE(operations, str(mountpoint), foreground=True, nothreads=True, ro=True, fsname="bridge-data")
        except RuntimeError as error:
            raise ConfigError(
                f"{mountpoint}: FUSE could not mount on it (code {error}): see its message above. May this user mount?"
            ) from error

    if detach:
        _in_background(show, on_start)
    else:
        show(on_start)


def _in_background(show: Callable[[Callable[[], None]], None], on_start: Callable[[], None]) -> None:
    """Call `show` in a process of its own, which outlives this one; return when it says that it has begun.

    Raises:
        ConfigError: what it raised.
    """
    result, results = os.pipe()
    if child := os.fork():
        os.close(results)
        with open(result, "rb") as file:
            failure = file.read().decode()
        if failure:
            os.waitpid(child, 0)
            raise ConfigError(failure)
        on_start()
        return
    os.setsid()

    def begun() -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2, results):  # the last of these closes the pipe
            os.dup2(nothing, stream)

    try:
        show(begun)
    except BaseException as error:
        os.write(results, (str(error) or repr(error)).encode())
    finally:
        os._exit(0)


def import_fuse() -> Any:
    """The module mfusepy."""
    try:
        return needed_package("mfusepy", "mounting")
    except OSError as error:
        raise ConfigError(f"mounting needs libfuse ({error}): apt install fuse3, or its like") from error
