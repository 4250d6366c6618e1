"""Writing a data set from Python: samples become tar shards, split by their keys, and `.nv-meta`.

Reads samples as dicts. Writes the folder of a data set, as `bridge-data prepare` leaves it, on a disk or in an object
store. A shard appears under its name when it is whole; `.nv-meta` appears or changes when all has been written. If a
writer is killed, whole shards stay, and a writer that gets the remaining samples in the same order writes the same
files as the first one would have.

Several ranks may write. Unfinished work is in the hidden folder `.writing`: settings, on which all ranks must agree,
and a folder for each rank, which locks it, with the shards that it is writing. The last rank to finish prepares the
folder and removes `.writing`.

In an object store it is the same, with a folder on this machine for the shard that is being written: it is uploaded
when it is whole. There are no locks, so one process writes; a second one takes over, which the first notices before it
uploads the next shard.
"""

import collections
import contextlib
import dataclasses
import fnmatch
import hashlib
import itertools
import json
import logging
import os
import re
import sqlite3
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from bridge_data import storage
from bridge_data.data.index_file import BridgeIndex, Segment, ShardEntry
from bridge_data.data.key_index import as_text
from bridge_data.data.metadata import (
    BRIDGE_INDEX,
    DATASET_YAML,
    META_FOLDER,
    WRITER_YAML,
    WRITING,
    parse_document,
)
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.options import check_integer
from bridge_data.prepare.commit import Claim, preparing_alone
from bridge_data.prepare.part_encoding import BLOCK_BYTES, EncodedSample, encode_sample, members_of
from bridge_data.prepare.sample_definitions import definition_of, read_definition
from bridge_data.prepare.scan_results import scan_shard
from bridge_data.prepare.splits import split_by_shares
from bridge_data.prepare.tars import PrepareConfig, prepare
from bridge_data.storage import Location, RemotePath, output
from bridge_data.storage.atomic import sync_folder, temporary_name, writing

logger = logging.getLogger("bridge_data")

_SETTINGS, _DONE = "settings.json", "done"

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
    """The share of one rank in writing the data set in the folder `root`."""

    workspace: Path
    """The folder on this machine for unfinished files."""

    def __init__(self, root: Location, config: WriterConfig, made_of: MadeOf) -> None:
        self.root, self.config = root, config
        self.site = root / WRITING
        self.share = self.site / f"{config.rank:05d}"
        """The folder for what a later process must know of the unfinished work of this rank."""
        self._claim = Claim(self.share / _WRITER) if isinstance(self.share, RemotePath) else None
        self.settings = config.plain() | {"num_items": made_of.num_items}
        if made_of.origin is not None:
            self.settings["origin"] = made_of.origin

    def shard_name(self, part: str, number: int) -> str:
        """The name of shard `number` of this rank in a part of the split."""
        rank = f"{self.config.rank:05d}-" if self.config.world_size > 1 else ""
        return f"{part}-{rank}{number:06d}.tar"

    def own_shards(self) -> list[tuple[str, str, int]]:
        """(name, part, number) of each whole shard of this rank."""
        rank = f"{self.config.rank:05d}" if self.config.world_size > 1 else None
        matches = [(name, _SHARD.fullmatch(name)) for name in self.tars()]
        return [(name, m["part"], int(m["number"])) for name, m in matches if m is not None and m["rank"] == rank]

    def stored_keys(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Each whole shard that is prepared, or of this rank, with its keys."""
        index = BridgeIndex.open(self.root / META_FOLDER / BRIDGE_INDEX)
        known = {} if index is None else index.entries
        for name in sorted({*known, *(name for name, _, _ in self.own_shards())}):
            data = index.segment_bytes(name) if index and name in known else scan_shard(self.root, name).segment
            yield name, Segment.of(data).keys()

    def tars(self) -> list[str]:
        """All tars in the folder."""
        return sorted(names_in(self.root, "*.tar"))

    def prepared(self) -> Mapping[str, ShardEntry]:
        """The shards of the data set as of its last preparation."""
        index = BridgeIndex.open(self.root / META_FOLDER / BRIDGE_INDEX)
        return {} if index is None else index.entries

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Start or resume the share of this rank, locked against other processes.

        Raises:
            ConfigError: if others write the folder with other settings, or it holds other data.
            DatasetError: if another process writes the share of this rank.
        """
        with contextlib.ExitStack() as stack:
            with writing(self.root):
                while not self._begin(stack):
                    pass  # the others finished and removed the folder while this rank waited for its lock
            yield

    def _begin(self, stack: contextlib.ExitStack) -> bool:
        """Start or resume, with locks that `stack` releases; False if the caller must try again."""
        if self._claim is not None:
            self._begin_in_store(self._claim, stack)
            return True
        assert isinstance(self.site, Path) and isinstance(self.share, Path)
        self.site.mkdir(parents=True, exist_ok=True)
        with preparing_alone(self.site, patience_s=MERGE_PATIENCE_S, doing="merging"):
            if not self.site.is_dir():
                return False
            self._check_settings()
            self.workspace = self.share
            self.workspace.mkdir(exist_ok=True)
            remove_temporary = stack.enter_context(preparing_alone(self.workspace, doing="writing"))
            remove_temporary([self.workspace])
            (self.workspace / _DONE).unlink(missing_ok=True)
            return True

    def _begin_in_store(self, claim: Claim, stack: contextlib.ExitStack) -> None:
        import tempfile  # imported here: slow, and not needed on a disk

        if self.config.world_size > 1:
            raise ConfigError(
                f"{self.root}: world_size={self.config.world_size}: ranks write to a disk, whose locks say which is "
                "the last. Copy the result to the store; or write by one process, with several workers"
            )
        if self.begun_settings() is None:
            storage.delete_below(self.site)  # of a writer that was interrupted after all was done
        self._check_settings()
        claim.take()
        self.workspace = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bridge_data.")))

    def publish(self, file: Path, name: str) -> None:
        """Give a finished file of the workspace its name in the data set; see `_check_alone`."""
        if isinstance(self.root, Path):
            os.replace(file, self.root / name)
            sync_folder(self.root)
            return
        self._check_alone()
        storage.upload(self.root / name, file)
        file.unlink()

    def _check_alone(self) -> None:
        """Ensure that no other process has begun to write to the store; on a disk, a lock does.

        Raises:
            DatasetError: if one has, which continues what is here.
        """
        if self._claim is not None and not self._claim.is_held():
            raise DatasetError(f"{self.root}: another process is writing it now: wait until that has finished")

    def _check_settings(self) -> None:
        """Ensure that the settings equal those of ranks that have started or, for the first, of the data set."""
        there = self.begun_settings()
        if there is None:
            self._check_folder()
            storage.write(self.site / _SETTINGS, json.dumps(self.settings).encode())
            return
        other = [name for name, value in self.settings.items() if there.get(name) != value]
        by_hand = f"remove {self.site} and the tars that are not in .nv-meta"
        if "origin" in other:
            raise ConfigError(
                f"{self.root}: was started with other samples, by a conversion that did not finish. Run it again, or "
                f"{by_hand}"
            )
        if other:
            name = min(other)
            raise ConfigError(
                f"{self.root}: is being written with {name}={there.get(name)}, here it is {self.settings[name]}. Give "
                f"the same settings to continue, or {by_hand}"
            )

    def _check_folder(self) -> None:
        written = self.written()
        if written is None:
            return
        split = written["split"]
        if "shard" in (self.config.split_by, written.get(_LAST, {}).get("split_by")):
            raise ConfigError(
                f"{self.root}: its shards are split by their order, so adding some would move others to another part. "
                "Write all samples to another folder"
            )
        if split != self.settings["split"]:
            raise ConfigError(
                f"{self.root}: was written with the split {split}, here it is {self.settings['split']}; samples would "
                "change their parts. Give the same split, or write all samples to another folder"
            )

    def written(self) -> dict[str, Any] | None:
        """What the last writer of the folder noted; None if there is no data set.

        Raises:
            ConfigError: if there are shards that no writer has made.
        """
        self.refuse(name for name in self.tars() if not _SHARD.fullmatch(name))
        if not (self.root / META_FOLDER).is_dir():
            return None
        data = storage.read_if_there(self.root / META_FOLDER / WRITER_YAML)
        if data is None:
            raise ConfigError(
                f"{self.root}: was prepared, but not by a ShardWriter, so its split is not by key; give another folder"
            )
        written: dict[str, Any] = parse_document(data, self.root / META_FOLDER / WRITER_YAML)
        return written

    def refuse(self, foreign: Iterable[str]) -> None:
        """Raise the error for tars that no writer has made, if there are any."""
        for name in foreign:
            raise ConfigError(f"{self.root}: holds tars of others, such as {name}; give another folder")

    def begun_settings(self) -> dict[str, Any] | None:
        """The settings of writers that are running, or were interrupted; None if there are none."""
        data = storage.read_if_there(self.site / _SETTINGS)
        return None if data is None else json.loads(data)

    def num_finished(self) -> int | None:
        """The number of samples of this rank, if the last writer of the folder had the same settings and number of
        items, and finished; else None."""
        if self.settings["num_items"] is None or (self.site / _SETTINGS).is_file():
            return None
        file, known = self.root / META_FOLDER / WRITER_YAML, self.prepared()
        data = storage.read_if_there(file)
        if data is None or not known or parse_document(data, file).get(_LAST) != self.settings:
            return None
        if isinstance(self.site, RemotePath):
            storage.delete_below(self.site)  # of a writer that was interrupted after all was done
        return sum(known[name].count for name, _, _ in self.own_shards() if name in known)

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
                storage.delete(finished / _SETTINGS)  # without them, the rest is of a writer that has finished
            storage.delete_below(finished)

    def _prepare(self) -> None:
        names = sorted({*self.tars(), *self.prepared()})
        if not names:
            raise DatasetError(f"{self.root}: no sample was written, so there is no data set")
        definitions = {WRITER_YAML: {"split": self.settings["split"], _LAST: self.settings}}
        if self.config.sample_type is not None or not (self.root / META_FOLDER / DATASET_YAML).is_file():
            definitions[DATASET_YAML] = self.settings["dataset.yaml"]
        try:
            config = PrepareConfig(unique_keys=True)
            done = prepare(self.root, self._split, config, names=names, definitions=definitions)
        except DatasetError as error:
            error.add_note(
                f"The shards are whole, and stay. Remove what is wrong, and run the writer of {self.root} again."
            )
            raise
        shares = self.config.shares()
        empty = [part for part, shards in self._split(names).items() if not shards and shares[part]]
        for note in [*done.notes, *(f"there is no sample in split part {part!r}" for part in empty)]:
            logger.warning("%s: %s", self.root, note)

    def _split(self, names: Sequence[str]) -> dict[str, list[str]]:
        """The shards of each part: by their names, or in their order by its share of them."""
        if self.config.split_by == "shard":
            return split_by_shares(names, [*self.config.shares().items()])
        return {part: [name for name in names if name.startswith(f"{part}-")] for part in self.settings["split"]}


def names_in(folder: Location, pattern: str) -> list[str]:
    """The files below `folder` whose relative paths match a pattern; a star stands for a part of a name."""
    if isinstance(folder, Path):
        return [path.relative_to(folder).as_posix() for path in folder.glob(pattern)]
    names = storage.list_sizes(str(folder))
    return [name for name in names if fnmatch.fnmatchcase(name, pattern) and name.count("/") == pattern.count("/")]


MAX_RECENT = 65_536
"""Maximum keys in memory. They are sorted before they are stored, so several go to one page of the file."""

_FILTER_BYTES = 8 << 20

_CREATE_KEYS = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -8192;
CREATE TABLE keys (key TEXT PRIMARY KEY, shard INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE items (key TEXT PRIMARY KEY, item INTEGER NOT NULL, num_samples INTEGER NOT NULL) WITHOUT ROWID;
"""


class ItemOrigin(NamedTuple):
    """What a sample was made from: the number of an item, and how many samples were made from it."""

    number: int
    num_samples: int


class ItemSet:
    """Numbers of items, a bit for each."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._count = 0

    def add(self, number: int) -> None:
        """Add a number that is not in the set."""
        at = number >> 3
        if at >= len(self._bits):
            self._bits.extend(bytes(at + 1 + at // 2 - len(self._bits)))
        self._bits[at] |= 1 << (number & 7)
        self._count += 1

    def __contains__(self, number: int) -> bool:
        at = number >> 3
        return at < len(self._bits) and bool(self._bits[at] & 1 << (number & 7))

    def __len__(self) -> int:
        return self._count


class WrittenKeys:
    """The keys that are stored, with the number of the shard of each, in bounded memory: recent ones in a dict, others
    in a file in `folder`, whose disk may be full. A filter in memory answers for most new keys without reading the
    file: for nine of ten, up to ten million keys.

    Raises:
        DatasetError: from any method, if the file cannot be written or read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / temporary_name("keys.sqlite")
        self._db: sqlite3.Connection | None = None
        self._filter = bytearray(_FILTER_BYTES)
        self._recent: dict[str, int] = {}

    def close(self) -> None:
        """Forget all keys, and remove the file."""
        self._recent = {}
        if self._db is not None:
            self._db.close()
            self._db = None
            self._path.unlink(missing_ok=True)

    def add(self, key: str, shard: int) -> None:
        """Add a key that is not there yet."""
        number = hash(key)
        self._filter[number % _FILTER_BYTES] |= 1 << (number >> 60 & 7)
        self._recent[key] = shard
        if len(self._recent) >= MAX_RECENT:
            rows = ((as_text(key), shard) for key, shard in sorted(self._recent.items()))
            self._insert("INSERT INTO keys VALUES (CAST(? AS TEXT), ?)", rows)
            self._recent = {}

    def __contains__(self, key: str) -> bool:
        number = hash(key)
        if not self._filter[number % _FILTER_BYTES] & 1 << (number >> 60 & 7):
            return False
        return self.shard(key) is not None

    def shard(self, key: str) -> int | None:
        """The number of the shard of this key; None if it is not there."""
        shard = self._recent.get(key)
        if shard is not None:
            return shard
        return next((shard for (shard,) in self._rows(f"SELECT shard FROM keys {_OF_KEY}", as_text(key))), None)

    def note_items(self, items: Iterable[tuple[str, ItemOrigin]]) -> None:
        """Note the items of samples that an earlier writer stored."""
        self._insert("INSERT INTO items VALUES (CAST(? AS TEXT), ?, ?)", ((as_text(key), *item) for key, item in items))

    def item(self, key: str) -> ItemOrigin | None:
        """The item noted for the sample with this key."""
        rows = self._rows(f"SELECT item, num_samples FROM items {_OF_KEY}", as_text(key))
        return next(itertools.starmap(ItemOrigin, rows), None)

    def finished_items(self) -> ItemSet:
        """The items whose samples were all noted."""
        found = ItemSet()
        for (item,) in self._rows("SELECT item FROM items GROUP BY item, num_samples HAVING COUNT(*) = num_samples"):
            found.add(item)
        return found

    def _rows(self, query: str, *values: object) -> Iterator[Any]:
        if self._db is not None:
            with writing(self._folder):
                yield from self._db.execute(query, values)

    def _insert(self, statement: str, rows: Iterable[Any]) -> None:
        """Insert rows into the file, which is created if missing, without crash safety and locks: no one else uses
        it."""
        with writing(self._folder):
            if self._db is None:
                uri = f"{self._path.absolute().as_uri()}?nolock=1"
                self._db = sqlite3.connect(uri, isolation_level=None, uri=True, check_same_thread=False)
                self._db.executescript(_CREATE_KEYS)
            self._db.execute("BEGIN")
            self._db.executemany(statement, rows)
            self._db.execute("COMMIT")


_OF_KEY = "WHERE key = CAST(? AS TEXT)"


class OpenShard:
    """A tar that is being written to the file `path`, to be named `name`; `number` is its number for stored keys."""

    def __init__(self, path: Path, name: str, number: int) -> None:
        self.path, self.name, self.number = path, name, number
        self.num_bytes = 0
        self.items: list[ItemOrigin | None] = []
        self._file = open(path, "wb")  # noqa: SIM115  closed by `close`

    def add(self, members: bytes, item: ItemOrigin | None) -> None:
        """Append the members of a sample."""
        self._file.write(members)
        self.num_bytes += len(members)
        self.items.append(item)

    def finish(self) -> None:
        """Write the end mark, padded to a whole record as other writers do, and wait until all is on disk."""
        self._file.write(bytes(2 * BLOCK_BYTES))
        self._file.write(bytes(-self._file.tell() % tarfile.RECORDSIZE))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def discard(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


class ShardWriter:
    """Writes samples to the data set in the folder `path`, or at a URL such as `s3://bucket/photos`, a new one or one
    made by a writer:

        with ShardWriter("photos", split={"train": 0.98, "val": 0.02}) as writer:
            writer.write({"__key__": "000001", "png": image, "json": {"caption": "a cat"}})

    When the block ends, the folder is prepared, and can be read here and by Megatron-Energon. If it ends with an
    exception, or the process is killed, whole shards stay, and there is no (new) `.nv-meta`. The next writer of the
    folder continues: `key in writer` says whether a sample is already stored.

    >>> with ShardWriter("texts", split={"train": 0.9, "val": 0.1}) as writer:
    ...     for number in range(100):
    ...         writer.write({"__key__": f"{number:06}", "txt": f"document {number}"})
    >>> writer.num_samples
    100

    Args:
        split: the share of each split part. The hash of a sample's key selects its part, so it stays there when samples
            are added; None: all in `train`.
        split_by: `shard` to assign whole shards, named `data-000000.tar` and so on, in order: neighbours stay in one
            part, and nothing can be added.
        max_bytes, max_samples: maximum size of a shard (but it always takes a first sample).
        sample_type, field_map: the class of the samples, such as `CaptioningSample`, and the part of each of its
            fields, such as `{"image": "png", "caption": "json[caption]"}`; None: crude samples.
        rank, world_size: with several processes, each writes shards of its own, and the last to finish prepares the
            folder, which is on a disk.

    Raises:
        ConfigError: for wrong settings; on entry, if the folder holds other data, or is written with other settings.
        DatasetError: on entry, if another process writes it; at the end, if ranks wrote the same key.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split: Mapping[str, float] | None = None,
        split_by: Literal["key", "shard"] = "key",
        max_bytes: int = 1_000_000_000,
        max_samples: int = 10_000,
        sample_type: str | type[Any] | None = None,
        field_map: Mapping[str, str] | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.path = output("ShardWriter: path", path).absolute()
        self.config = WriterConfig(
            split=split,
            split_by=split_by,
            max_bytes=max_bytes,
            max_samples=max_samples,
            sample_type=sample_type,
            field_map=field_map,
            rank=rank,
            world_size=world_size,
        )
        self._fields = read_definition(definition_of(sample_type, field_map)).field_map
        self._split = HashSplit(self.config.shares_of_keys())
        self.made_of = MadeOf()
        """What samples are made from, on which resumed writers must agree."""
        self.finished_items = ItemSet()
        """The numbers of items whose samples were all stored by an earlier, interrupted writer."""
        self.num_samples = 0
        """Samples of this rank that are stored or about to be: in whole shards, and written since."""
        self._open: dict[str, OpenShard] = {}
        self._exit: contextlib.ExitStack | None = None
        self._failed = self._closed = False
        self._numbers = collections.Counter[str]()
        self._shard_names: list[str] = []

    def __enter__(self) -> Self:
        if self._exit is not None:
            raise ConfigError(f"{self.path}: this writer has been used: make another one")
        with contextlib.ExitStack() as stack:
            self.session = self.not_begun()
            stack.enter_context(self.session.locked())
            self._keys = stack.enter_context(contextlib.closing(WrittenKeys(self.session.workspace)))
            self._read_stored()
            self._exit = stack.pop_all()
        return self

    def _read_stored(self) -> None:
        """Read what whole shards hold."""
        own = set()
        for name, part, number in self.session.own_shards():
            own.add(name)
            self._numbers[part] = max(self._numbers[part], number + 1)
        for name, keys in self.session.stored_keys():
            number = self._numbered(name)
            for key in keys:
                self._keys.add(key, number)
            if name in own:
                self.num_samples += len(keys)
                items = storage.read_if_there(self._items_path(name))
                if items is not None:
                    pairs = zip(keys, json.loads(items), strict=True)
                    self._keys.note_items((key, ItemOrigin(*item)) for key, item in pairs if item is not None)
        self.finished_items = self._keys.finished_items()

    def _numbered(self, name: str) -> int:
        """The number of another shard."""
        self._shard_names.append(name)
        return len(self._shard_names) - 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._exit is not None
        with self._exit:
            try:
                if kind is None:
                    self._finish()
            finally:
                self._closed = True
                self._discard()

    def __contains__(self, key: object) -> bool:
        """Whether the sample with this key is stored, or about to be."""
        if self._exit is None:
            raise ConfigError(f"{self.path}: stored keys are read when the writer is opened: ask in its `with` block")
        return isinstance(key, str) and key in self._keys

    def num_finished(self) -> int | None:
        """The number of samples of this rank, if the last writer had the same settings and wrote the same items;
        else None."""
        return self.not_begun().num_finished()

    def not_begun(self) -> WritingSession:
        """The share of this writer, not begun."""
        return WritingSession(self.path, self.config, self.made_of)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write a sample; `encode_sample` says what it may hold.

        Raises:
            ConfigError: if it cannot be stored, or lacks a field.
            DatasetError: naming the shards, if its key is in use; or if the disk is full.
        """
        self.write_encoded(encode_sample(sample))

    def note_key(self, key: str) -> None:
        """Keep a key as one that is stored, without a sample: for a writer whose block is going to fail."""
        self._keys.add(key, 0)

    def write_encoded(self, sample: EncodedSample, item: ItemOrigin | None = None) -> None:
        """Write an encoded sample that was made from `item`. If an interrupted writer has already stored it, do
        nothing."""
        self._check(sample)
        part = self._split.part_of(sample.key)
        if sample.key in self._keys:
            stored = self._keys.item(sample.key)
            if item is not None and stored == item:
                return
            raise DatasetError(self._duplicate_message(sample.key, part, stored, item))
        try:
            self._add(sample, part, item)
        except BaseException:
            self._failed = True  # a shard may end with half a sample
            self._discard()
            with writing(self.path):
                raise
        self.num_samples += 1

    def _check(self, sample: EncodedSample) -> None:
        if self._exit is None or self._failed or self._closed:
            why = "a sample could not be written" if self._failed else "it is not open: write in a `with` block"
            raise DatasetError(f"{self.path}: nothing can be written any more: {why}")
        names = {"__key__", *(name for name, _ in sample.parts)}
        if len(names) <= len(sample.parts):
            raise ConfigError(f"sample {sample.key!r}: has two parts with the same name")
        for field, access in self._fields.items():
            if names.isdisjoint(access.names):
                wanted, there = sorted(access.parts), sorted(names - {"__key__"})
                raise ConfigError(
                    f"sample {sample.key!r}: has no part {' or '.join(wanted)} for the field {field!r}; it has "
                    f"{', '.join(there)}"
                )

    def _duplicate_message(self, key: str, part: str, stored: ItemOrigin | None, item: ItemOrigin | None) -> str:
        shard = self._keys.shard(key)
        assert shard is not None
        here = self._open[part].name if part in self._open else self.session.shard_name(part, self._numbers[part])
        before, after = (f" (item {one.number})" if one else "" for one in (stored, item))
        there = self._shard_names[shard]
        return (
            f"{self.path}: key {key!r} is written twice: it is in {there}{before}, and was to go into "
            f"{here}{after}. Give each sample a key of its own; leave out what is stored with `if key not in writer`"
        )

    def _add(self, sample: EncodedSample, part: str, item: ItemOrigin | None) -> None:
        members = members_of(sample)
        shard = self._open.get(part)
        if shard is not None:
            is_large = shard.num_bytes + len(members) > self.config.max_bytes
            if is_large or len(shard.items) >= self.config.max_samples:
                self._commit(part)
                shard = None
        if shard is None:
            name = self.session.shard_name(part, self._numbers[part])
            path = self.session.workspace / temporary_name(name)
            shard = self._open[part] = OpenShard(path, name, self._numbered(name))
        shard.add(members, item)
        self._keys.add(sample.key, shard.number)

    def _commit(self, part: str) -> None:
        """Store the items of the samples of a part's open shard, then give the shard its name."""
        shard = self._open[part]
        shard.finish()
        path = self._items_path(shard.name)
        if any(shard.items) or path.is_file():  # of one that was interrupted
            storage.write(path, json.dumps(shard.items).encode())
        self.session.publish(shard.path, shard.name)
        del self._open[part]
        self._numbers[part] += 1

    def _items_path(self, name: str) -> Location:
        return self.session.share / f"{name}{ITEMS_SUFFIX}"

    def _finish(self) -> None:
        if self._failed:
            raise DatasetError(
                f"{self.path}: a sample could not be written, so the data set is not whole: write it again"
            )
        with writing(self.path):
            for part in [*self._open]:
                self._commit(part)
            self.session.finish()

    def _discard(self) -> None:
        """Remove the shards that are not whole."""
        for shard in self._open.values():
            shard.discard()
        self._open.clear()
