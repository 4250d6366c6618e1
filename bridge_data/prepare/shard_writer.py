"""Writing a data set from Python: samples become tar shards, split by their keys, and `.nv-meta`.

Reads samples as dicts. Writes the folder of a data set, as `bridge-data prepare` leaves it, on a disk or in an object
store. A shard appears under its name when it is whole; `.nv-meta` appears or changes when all has been written. If a
writer is killed, whole shards stay, and a writer that gets the remaining samples in the same order writes the same
files as the first one would have.
"""

import contextlib
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.options import path_text
from bridge_data.prepare.part_encoding import EncodedSample, encode_sample
from bridge_data.prepare.sample_definitions import definition_of, read_definition
from bridge_data.prepare.writing_session import (
    ITEMS_SUFFIX,
    HashSplit,
    MadeOf,
    WriterConfig,
    WritingSession,
    writing_session,
)
from bridge_data.prepare.written_keys import ItemOrigin, ItemSet, WrittenKeys
from bridge_data.storage import Location, location
from bridge_data.storage.atomic import temporary_name, writing

_BLOCK_BYTES = 512


class OpenShard:
    """A tar that is being written to the file `path`, to be named `name`; `number` is its number for stored keys."""

    def __init__(self, path: Path, name: str, number: int) -> None:
        self.path, self.name, self.number = path, name, number
        self.num_bytes = self.num_samples = 0
        self.items: list[ItemOrigin | None] = []
        self._file = open(path, "wb")  # noqa: SIM115  closed by `close`

    def add(self, members: bytes, item: ItemOrigin | None) -> None:
        """Append the members of a sample."""
        self._file.write(members)
        self.num_bytes += len(members)
        self.num_samples += 1
        self.items.append(item)

    def finish(self) -> None:
        """Write the end mark, padded to a whole record as other writers do, and wait until all is on disk."""
        self._file.write(bytes(2 * _BLOCK_BYTES))
        self._file.write(bytes(-self._file.tell() % tarfile.RECORDSIZE))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def discard(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


def members_of(sample: EncodedSample) -> bytes:
    """The members of a tar that hold a sample, without time and owner."""
    blocks = []
    for name, content in sample.parts:
        header = tar_header(f"{sample.key}.{name}", len(content))
        blocks += [header, content, bytes(-len(content) % _BLOCK_BYTES)]
    return b"".join(blocks)


def tar_header(name: str, num_bytes: int) -> bytes:
    """The header of a member: the same as from `tarfile`, which is ten times as slow."""
    if not name.isascii() or len(name) > _MAX_SHORT_NAME or num_bytes >= _MAX_SHORT_SIZE:
        info = tarfile.TarInfo(name)
        info.size, info.mode = num_bytes, _MODE
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8")
    header = bytearray(_HEADER)
    header[: len(name)] = name.encode()
    header[124:135] = b"%011o" % num_bytes
    header[148:155] = b"%06o\0" % sum(header)  # the checksum is taken with spaces in its own field
    return bytes(header)


def _empty_header() -> bytes:
    info = tarfile.TarInfo("")
    info.mode = _MODE
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    header[148:156] = b" " * 8
    return bytes(header)


_MODE = 0o444
_HEADER = _empty_header()
_MAX_SHORT_NAME, _MAX_SHORT_SIZE = 100, 8**11
"""Maximum name and size for a header alone."""


class ShardWriter:
    """Writes samples to the data set in the folder `path`, or at a URL such as `s3://bucket/photos`, a new one or one
    made by a writer:

        with ShardWriter("photos", split={"train": 0.98, "val": 0.02}) as writer:
            writer.write({"__key__": "000001", "png": image, "json": {"caption": "a cat"}})

    When the block ends, the folder is prepared, and can be read here and by Megatron-Energon. If it ends with an
    exception, or the process is killed, whole shards stay, and there is no (new) `.nv-meta`. The next writer of the
    folder continues: `key in writer` says whether a sample is already stored.

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
        self.path = location(path_text("path", path)).absolute()
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
        fields = read_definition(definition_of(sample_type, field_map)).field_map
        self._fields = [(field, frozenset(access.parts)) for field, access in fields.items()]
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
        self._numbers: dict[str, int] = {}
        self._shard_names: list[str] = []

    def __enter__(self) -> Self:
        if self._exit is not None:
            raise ConfigError(f"{self.path}: this writer has been used: make another one")
        with contextlib.ExitStack() as stack:
            session = writing_session(self.path, self.config, self.made_of)
            self.session: WritingSession = stack.enter_context(session)
            self._keys = stack.enter_context(contextlib.closing(WrittenKeys(self.session.workspace)))
            self._read_stored()
            self._exit = stack.pop_all()
        return self

    def _read_stored(self) -> None:
        """Read what whole shards hold."""
        own = set()
        for name, part, number in self.session.own_shards():
            own.add(name)
            self._numbers[part] = max(self._numbers.get(part, 0), number + 1)
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
        return self._not_begun().num_finished()

    def _not_begun(self) -> WritingSession:
        return WritingSession(self.path, self.config, self.made_of)

    def make_way(self, *, overwrite: bool = False) -> int | None:
        """Remove what an unfinished conversion has left that this writer cannot resume, and no other file; with
        `overwrite`, also a whole data set. The number of the unfinished one's shards; None if there is none.

        Raises:
            ConfigError: if there is other data then. DatasetError: if another process writes the folder.
        """
        return self._not_begun().make_way(overwrite=overwrite)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write a sample; `encode_sample` says what it may hold.

        Raises:
            ConfigError: if it cannot be stored, or lacks a field. DatasetError: naming the shards, if its key is in
            use; or if the disk is full.
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
            raise DatasetError(self._told_twice(sample.key, part, stored, item))
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
        for field, options in self._fields:
            if names.isdisjoint(options):
                raise ConfigError(
                    f"sample {sample.key!r}: has no part {' or '.join(sorted(options))} for the field {field!r}; it "
                    f"has {', '.join(sorted(names - {'__key__'}))}"
                )

    def _told_twice(self, key: str, part: str, stored: ItemOrigin | None, item: ItemOrigin | None) -> str:
        shard = self._keys.shard(key)
        assert shard is not None
        here = self._open[part].name if part in self._open else self.session.shard_name(part, self._next(part))
        before, after = (f" (item {one.number})" if one else "" for one in (stored, item))
        there = self._shard_names[shard]
        return (
            f"{self.path}: key {key!r} is written twice: it is in {there}{before}, and was to go into "
            f"{here}{after}. Give each sample a key of its own; leave out what is stored with `if key not in writer`"
        )

    def _next(self, part: str) -> int:
        return self._numbers.get(part, 0)

    def _add(self, sample: EncodedSample, part: str, item: ItemOrigin | None) -> None:
        members = members_of(sample)
        shard = self._open.get(part)
        if shard is not None:
            is_large = shard.num_bytes + len(members) > self.config.max_bytes
            if is_large or shard.num_samples >= self.config.max_samples:
                self._commit(part)
                shard = None
        if shard is None:
            name = self.session.shard_name(part, self._next(part))
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
        self._numbers[part] = self._next(part) + 1

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
