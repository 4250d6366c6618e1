"""A data set that is being written, by one process or by several ranks: its folder, settings, locks and completion.

Reads the folder and the settings. Writes shards under their names, and, when the last rank has finished, `.nv-meta`. A
file has the name of a shard only if it is whole. Unfinished work is in the hidden folder `.writing`: settings, on which
all ranks must agree, and a folder for each rank, which locks it, with the shards that it is writing. The last rank to
finish prepares the folder and removes `.writing`; until then there is no new `.nv-meta`.

In an object store it is the same, with a folder on this machine for the shard that is being written: it is uploaded
when it is whole. There are no locks, so one process writes; a second one takes over, which the first notices before it
uploads the next shard.
"""

import contextlib
import dataclasses
import fnmatch
import hashlib
import itertools
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.options import check_integer
from bridge_data.prepare.commit import preparing_alone
from bridge_data.prepare.sample_definitions import definition_of
from bridge_data.prepare.shard_files import scan_shard
from bridge_data.prepare.splits import split_by_shares
from bridge_data.prepare.tar_indexes import PrepareConfig
from bridge_data.prepare.tars import prepare
from bridge_data.shards.index_file import BridgeIndex, Segment
from bridge_data.shards.metadata import (
    BRIDGE_INDEX,
    DATASET_YAML,
    META_FOLDER,
    WRITER_YAML,
    WRITING,
    is_unfinished,
    parse_document,
    tar_index_path,
)
from bridge_data.storage import Location, RemotePath, remote
from bridge_data.storage.atomic import sync_folder, temporary_name, writing

logger = logging.getLogger("bridge_data")

_SETTINGS, _DONE = "settings.json", "done"

_REMOVING = "removing"
"""The file in `.writing` that says that all is being removed."""

_WRITER = "writer"
"""The file in the folder of a rank, in a store, with a token of the process that writes."""

ITEMS_SUFFIX = ".items.json"
"""The end of the name, after that of a shard, of the file in `.writing` that lists the items of its samples."""

_LAST = "last_writer"
"""The entry of `writer.yaml` with the settings of the last writer that finished."""

MERGE_PATIENCE_S = 3600.0
"""How long a rank that has finished waits for the one that prepares the folder."""

_UNSPLIT = "data"
"""Name before the hyphen of shards that are assigned to split parts after all have been written."""

_PART = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SHARD = re.compile(r"(?P<part>[A-Za-z][A-Za-z0-9_]*)-(?:(?P<rank>\d{5})-)?(?P<number>\d{6,})\.tar")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WriterConfig:
    """Settings of a writer; `ShardWriter` explains them."""

    split: Mapping[str, float] | None = None
    split_by: Literal["key", "shard"] = "key"
    max_bytes: int = 1_000_000_000
    max_samples: int = 10_000
    sample_type: str | type[Any] | None = None
    field_map: Mapping[str, str] | None = None
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        for name, least in (("max_bytes", 1), ("max_samples", 1), ("world_size", 1), ("rank", 0)):
            check_integer(name, getattr(self, name), least)
        if self.rank >= self.world_size:
            raise ConfigError(f"rank={self.rank}: expected less than world_size={self.world_size}")
        if self.split_by not in ("key", "shard"):
            raise ConfigError(f"split_by={self.split_by!r}: expected 'key' or 'shard'")
        self.shares()

    def shares(self) -> dict[str, Fraction]:
        """The share of each split part; they sum to 1."""
        split = {"train": 1} if self.split is None else self.split
        try:
            shares = {part: Fraction(str(share)) for part, share in split.items()}
            total = sum(shares.values(), Fraction())
            if min(shares.values()) < 0 or not total or not all(map(_PART.fullmatch, shares)):
                raise ValueError
        except (ValueError, TypeError, AttributeError, ZeroDivisionError):
            raise ConfigError(
                f'split={self.split!r}: expected the share of each part, such as {{"train": 0.98, "val": 0.02}}'
            ) from None
        return {part: share / total for part, share in shares.items()}

    def shares_of_keys(self) -> dict[str, Fraction]:
        """The share of the samples that goes to the shards of each name: those of the split parts, or one for all."""
        return self.shares() if self.split_by == "key" else {_UNSPLIT: Fraction(1)}

    def plain(self) -> dict[str, Any]:
        """What all ranks must agree on, as JSON values."""
        return {
            "split": {part: str(share) for part, share in self.shares().items()},
            "max_bytes": self.max_bytes,
            "max_samples": self.max_samples,
            "dataset.yaml": definition_of(self.sample_type, self.field_map),
            "world_size": self.world_size,
            **({} if self.split_by == "key" else {"split_by": self.split_by}),
        }


class MadeOf(NamedTuple):
    """What samples are made from: the number of items, and their digest; None if unknown."""

    num_items: int | None = None
    origin: str | None = None


class HashSplit:
    """Assigns keys to split parts by their hash: a key is in the same part whatever else is written, and when."""

    def __init__(self, shares: Mapping[str, Fraction]) -> None:
        ends = itertools.accumulate(shares.values())
        self._bounds = [(int(end * 2**64), part) for end, part in zip(ends, shares, strict=True) if shares[part]]

    def part_of(self, key: str) -> str:
        """The part of the sample with this key."""
        if len(self._bounds) == 1:
            return self._bounds[0][1]
        number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
        return next(part for bound, part in self._bounds if number < bound)


class WritingSession:
    """The share of one rank in writing the data set in the folder `root`. See `writing_session`."""

    workspace: Path
    """The folder on this machine for unfinished files."""

    def __init__(self, root: Location, config: WriterConfig, made_of: MadeOf) -> None:
        self.root, self.config = root, config
        self.site = root / WRITING
        self.share = self.site / f"{config.rank:05d}"
        """The folder for what a later process must know of the unfinished work of this rank."""
        self._token = os.urandom(16).hex().encode()
        self._settings = config.plain() | {"num_items": made_of.num_items}
        if made_of.origin is not None:
            self._settings["origin"] = made_of.origin

    def shard_name(self, part: str, number: int) -> str:
        """The name of shard `number` of this rank in a part of the split."""
        rank = f"{self.config.rank:05d}-" if self.config.world_size > 1 else ""
        return f"{part}-{rank}{number:06d}.tar"

    def own_shards(self) -> list[tuple[str, str, int]]:
        """(name, part, number) of each whole shard of this rank."""
        rank = f"{self.config.rank:05d}" if self.config.world_size > 1 else None
        matches = [(name, _SHARD.fullmatch(name)) for name in self._tars()]
        return [(name, m["part"], int(m["number"])) for name, m in matches if m is not None and m["rank"] == rank]

    def stored_keys(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Each whole shard that is prepared, or of this rank, with its keys."""
        index = BridgeIndex.open(self.root / META_FOLDER / BRIDGE_INDEX)
        known = {} if index is None else index.entries
        for name in sorted({*known, *(name for name, _, _ in self.own_shards())}):
            data = index.segment_bytes(name) if index and name in known else scan_shard(self.root, name).segment
            yield name, Segment.of(data).keys()

    def _tars(self) -> list[str]:
        return sorted(_names(self.root, "*.tar"))

    def begin(self, lock: contextlib.ExitStack) -> bool:
        """Start or resume the share of this rank, and hold its lock until `lock` is closed; False if the caller must
        try again."""
        if isinstance(self.share, RemotePath):
            self._begin_in_store(lock)
            return True
        assert isinstance(self.site, Path)
        self.site.mkdir(parents=True, exist_ok=True)
        with preparing_alone(self.site, patience_s=MERGE_PATIENCE_S, doing="merging"):
            if not self.site.is_dir():
                return False
            self._check_settings()
            self.workspace = self.share
            self.workspace.mkdir(exist_ok=True)
            remove_temporary = lock.enter_context(preparing_alone(self.workspace, doing="writing"))
            remove_temporary([self.workspace])
            (self.workspace / _DONE).unlink(missing_ok=True)
            return True

    def _begin_in_store(self, lock: contextlib.ExitStack) -> None:
        import tempfile  # imported here: slow, and not needed on a disk

        if self.config.world_size > 1:
            raise ConfigError(
                f"{self.root}: world_size={self.config.world_size}: ranks write to a disk, whose locks say which is "
                "the last. Copy the result to the store; or write by one process, with several workers"
            )
        if self._begun_settings() is None:
            storage.delete_below(self.site)  # of a writer that was interrupted after all was done
        self._check_settings()
        storage.write(self.share / _WRITER, self._token)
        self.workspace = Path(lock.enter_context(tempfile.TemporaryDirectory(prefix="bridge_data.")))

    def publish(self, file: Path, name: str) -> None:
        """Give a finished file of the workspace its name in the data set; see `_check_alone`."""
        if isinstance(self.root, Path):
            os.replace(file, self.root / name)
            sync_folder(self.root)
            return
        self._check_alone()
        remote.write(str(self.root / name), file)
        file.unlink()

    def _check_alone(self) -> None:
        """Ensure that no other process has begun to write to the store; on a disk, a lock does.

        Raises:
            DatasetError: if one has, which continues what is here.
        """
        if isinstance(self.share, RemotePath) and storage.read_if_there(self.share / _WRITER) != self._token:
            raise DatasetError(f"{self.root}: another process is writing it now: wait until that has finished")

    def remove(self, name: str) -> None:
        """Remove a file of the data set, if it is there."""
        path = self.root / name
        if isinstance(path, Path):
            path.unlink(missing_ok=True)
        else:
            remote.delete(str(path))

    def _check_settings(self) -> None:
        """Ensure that the settings equal those of ranks that have started or, for the first, of the data set."""
        there = self._begun_settings()
        if there is not None:
            for name, value in sorted(self._settings.items(), key=lambda one: one[0] != "origin"):
                if name == "origin" and there.get(name) != value:
                    raise ConfigError(
                        f"{self.root}: was started with other samples, by a conversion that did not finish. Run it "
                        f"again, or remove {self.site} and the tars that are not in .nv-meta"
                    )
                if there.get(name) != value:
                    raise ConfigError(
                        f"{self.root}: is being written with {name}={there.get(name)}, here it is {value}. Give the "
                        f"same settings to continue, or remove {self.site} and the tars that are not in .nv-meta"
                    )
        else:
            self._check_folder()
            storage.write(self.site / _SETTINGS, json.dumps(self._settings).encode())

    def _check_folder(self) -> None:
        written = self._written()
        if written is None:
            return
        split = written["split"]
        if "shard" in (self.config.split_by, written.get(_LAST, {}).get("split_by")):
            raise ConfigError(
                f"{self.root}: its shards are split by their order, so adding some would move others to another part. "
                "Write all samples to another folder"
            )
        if split != self._settings["split"]:
            raise ConfigError(
                f"{self.root}: was written with the split {split}, here it is {self._settings['split']}; samples would "
                "change their parts. Give the same split, or write all samples to another folder"
            )

    def _written(self) -> dict[str, Any] | None:
        """What the last writer of the folder noted; None if there is no data set.

        Raises:
            ConfigError: if there are shards that no writer has made.
        """
        meta = self.root / META_FOLDER
        foreign = [name for name in self._tars() if not _SHARD.fullmatch(name)]
        if foreign:
            raise ConfigError(f"{self.root}: holds tars of others, such as {foreign[0]}; give another folder")
        if not meta.is_dir():
            return None
        data = storage.read_if_there(meta / WRITER_YAML)
        if data is None:
            raise ConfigError(
                f"{self.root}: was prepared, but not by a ShardWriter, so its split is not by key; give another folder"
            )
        written: dict[str, Any] = parse_document(data, meta / WRITER_YAML)
        return written

    def make_way(self, *, overwrite: bool) -> int | None:
        """See `ShardWriter.make_way`."""
        was_removing = (self.site / _REMOVING).is_file()
        if was_removing or (overwrite and self._begun_settings() != self._settings):
            self._remove_all()
        num_removed = self._remove_other_conversion()
        self._check_foreign_tars()
        if (self.root / META_FOLDER).is_dir() and not is_unfinished(self.root):
            raise ConfigError(
                f"{self.root}: holds a data set already, which another conversion made, or this one before the source "
                "changed; give another folder, or --force-overwrite to replace it"
            )
        return num_removed

    def _begun_settings(self) -> dict[str, Any] | None:
        """The settings of writers that are running, or were interrupted; None if there are none."""
        data = storage.read_if_there(self.site / _SETTINGS)
        return None if data is None else json.loads(data)

    def _check_foreign_tars(self) -> None:
        """Ensure that there are no tars that are not prepared, if no writer has begun, so that none can have made
        them."""
        if self.site.is_dir():
            return
        index = BridgeIndex.open(self.root / META_FOLDER / BRIDGE_INDEX)
        foreign = [name for name in self._tars() if index is None or name not in index.entries]
        if foreign:
            raise ConfigError(f"{self.root}: holds tars of others, such as {foreign[0]}; give another folder")

    def _remove_all(self) -> None:
        """Remove what writers left in the folder, a whole data set or a part of one."""
        if not self.root.is_dir():
            return
        with writing(self.root), preparing_alone(self.root), contextlib.ExitStack() as locks:
            self._written()
            self._check_foreign_tars()
            storage.make_folder(self.site)
            storage.write(self.site / _REMOVING, b"")  # until all is gone, the folder is not whole
            self._lock_unfinished(locks)
            storage.delete_below(self.root / META_FOLDER)  # before the shards: without it they are no data set
            self._remove_tars(self._tars())
            storage.delete_below(self.site)

    def _remove_other_conversion(self) -> int | None:
        """Remove what an unfinished conversion with other settings, or of other items, has left: `.writing`, and its
        shards that are not prepared. The number of these; None if there is no such conversion."""
        begun = self._begun_settings()
        if begun is None or begun == self._settings or "origin" not in begun:
            return None
        with writing(self.root), contextlib.ExitStack() as locks:
            self._lock_unfinished(locks)
            index = BridgeIndex.open(self.root / META_FOLDER / BRIDGE_INDEX)
            lists = _names(self.site, f"*/*{ITEMS_SUFFIX}")
            made = {os.path.basename(name).removesuffix(ITEMS_SUFFIX) for name in lists} & set(self._tars())
            left = sorted(made.difference(() if index is None else index.entries))
            self._remove_tars(left)
            storage.delete_below(self.site)
        return len(left)

    def _lock_unfinished(self, locks: contextlib.ExitStack) -> None:
        """Keep all writers on a disk away, until `locks` is closed."""
        if isinstance(self.site, Path):
            locks.enter_context(preparing_alone(self.site, doing="merging"))
            for path in self.site.iterdir():
                if path.is_dir():
                    locks.enter_context(preparing_alone(path, doing="writing"))

    def _remove_tars(self, names: Sequence[str]) -> None:
        for name in names:
            self.remove(name)
            self.remove(os.fspath(tar_index_path(name)))

    def num_finished(self) -> int | None:
        """The number of samples of this rank, if the last writer of the folder had the same settings and number of
        items, and finished; else None."""
        if self._settings["num_items"] is None or (self.site / _SETTINGS).is_file():
            return None
        data = storage.read_if_there(self.root / META_FOLDER / WRITER_YAML)
        index = BridgeIndex.open(self.root / META_FOLDER / BRIDGE_INDEX)
        if data is None or index is None or parse_document(data, self.root / WRITER_YAML).get(_LAST) != self._settings:
            return None
        if isinstance(self.site, RemotePath):
            storage.delete_below(self.site)  # of a writer that was interrupted after all was done
        return sum(index.entries[name].count for name, _, _ in self.own_shards() if name in index.entries)

    def finish(self) -> None:
        """Mark this rank as done. If it is the last, prepare the folder.

        Raises:
            DatasetError: if ranks wrote the same key, or nothing was written.
        """
        self._check_alone()
        storage.write(self.share / _DONE, b"")
        with preparing_alone(self.site, patience_s=MERGE_PATIENCE_S, doing="merging"):
            ranks = range(self.config.world_size)
            if not all((self.site / f"{rank:05d}" / _DONE).is_file() for rank in ranks):
                return  # others are running, or one of them has prepared the folder
            self._prepare()
            finished = self.site
            if isinstance(finished, Path):
                finished = finished.rename(finished.with_name(temporary_name(WRITING)))
            else:
                remote.delete(str(finished / _SETTINGS))  # without them, the rest is of a writer that has finished
            storage.delete_below(finished)

    def _prepare(self) -> None:
        index = BridgeIndex.open(self.root / META_FOLDER / BRIDGE_INDEX)
        names = sorted({*self._tars(), *(index.entries if index else ())})
        if not names:
            raise DatasetError(f"{self.root}: no sample was written, so there is no data set")
        definitions = {WRITER_YAML: {"split": self._settings["split"], _LAST: self._settings}}
        if self.config.sample_type is not None or not (self.root / META_FOLDER / DATASET_YAML).is_file():
            definitions[DATASET_YAML] = self._settings["dataset.yaml"]
        try:
            config = PrepareConfig(unique_keys=True)
            done = prepare(self.root, self._split, config, names=names, definitions=definitions)
        except DatasetError as error:
            error.add_note(
                f"The shards are whole, and stay. Remove what is wrong, and run the writer of {self.root} again."
            )
            raise
        empty = [part for part, shards in self._split(names).items() if not shards]
        for note in [*done.notes, *(f"there is no sample in split part {part!r}" for part in empty)]:
            logger.warning("%s: %s", self.root, note)

    def _split(self, names: Sequence[str]) -> dict[str, list[str]]:
        """The shards of each part: by their names, or in their order by its share of them."""
        if self.config.split_by == "shard":
            return split_by_shares(names, [*self.config.shares().items()])
        return {part: [name for name in names if name.startswith(f"{part}-")] for part in self._settings["split"]}


def _names(folder: Location, pattern: str) -> list[str]:
    """The files below `folder` whose relative paths match a pattern; a star stands for a part of a name."""
    if isinstance(folder, Path):
        return [path.relative_to(folder).as_posix() for path in folder.glob(pattern)]
    names = storage.list_sizes(str(folder))
    return [name for name in names if fnmatch.fnmatchcase(name, pattern) and name.count("/") == pattern.count("/")]


@contextlib.contextmanager
def writing_session(root: Location, config: WriterConfig, made_of: MadeOf | None = None) -> Iterator[WritingSession]:
    """Hold the share of a rank in writing the data set in the folder `root`, which is created if missing.

    Raises:
        ConfigError: if others write it with other settings, or it holds other data. DatasetError: if another process
        writes the share of this rank.
    """
    session = WritingSession(root, config, made_of or MadeOf())
    with contextlib.ExitStack() as lock:
        with writing(root):
            while not session.begin(lock):
                pass  # the others finished and removed the folder while this rank waited for its lock
        yield session
