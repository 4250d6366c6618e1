"""Our index of a data set that Energon prepared, made when it is first opened for training.

Reads its `index.sqlite`. Returns the index, written next to the data, or if that is not writable, to the cache; or
None, and samples are found by their headers, unless it agrees with `.info.json` and every `.tar.idx`. The headers of a
shard that changed after the database was written are compared at every read. The order of samples does not depend on
whether there is an index, so ranks need not agree on it. It never takes long: for a large data set, run `bridge-data
prepare --tar-index-only`.
"""

import collections
import itertools
import logging
import time
from pathlib import Path

from bridge_data.data.index_file import UNKNOWN, BridgeIndex
from bridge_data.data.key_index import ReadOnlyDatabase
from bridge_data.data.metadata import BRIDGE_INDEX, INDEX_SQLITE, META_FOLDER, tar_index_path
from bridge_data.data.sample_offsets import read_offsets
from bridge_data.data.tar_files import any_gzip
from bridge_data.errors import DatasetError, bridge_command
from bridge_data.plugins.unindexed.raw_tars import alone, digest
from bridge_data.prepare.index_writing import BridgeIndexWriter, build_segment
from bridge_data.storage.atomic import replacing
from bridge_data.storage.copies import cache_folder

MAX_SAMPLES = 1_000_000
"""Maximum samples of a data set whose index is made on opening, which takes a few seconds."""

WAIT_S = 30.0
"""How long a process waits for another that makes the index, without which the data can be read."""

_SAMPLES = "SELECT sample_index, sample_key, byte_offset, byte_size FROM samples WHERE tar_file_id = ? ORDER BY 1"
_PARTS = (
    "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts WHERE tar_file_id = ? "
    "ORDER BY 1, 3"
)
logger = logging.getLogger("bridge_data")


class _Unusable(Exception):
    """Why no index can be made of the database."""


def index_of_energon(root: Path, shard_counts: dict[str, int], uuid: str | None) -> BridgeIndex | None:
    """The index of the data set at `root`, made now if it does not exist; None if it cannot be made, or would take
    long. Only for a data set without one: an unusable index is left to `prepare`, and `check` reports it."""
    meta = root / META_FOLDER
    if uuid is None or not (meta / INDEX_SQLITE).is_file() or any_gzip(shard_counts):
        return None
    cached = cache_folder() / "indexes" / f"{digest([str(root.absolute()), uuid])}.bridge"

    def known() -> BridgeIndex | None:
        for path in (meta / BRIDGE_INDEX, cached):
            index = BridgeIndex.open(path)
            if index is not None and index.describes(shard_counts, uuid):
                return index
        return None

    index = known()
    if index is not None:
        return index
    num_samples = sum(shard_counts.values())
    if num_samples > MAX_SAMPLES:
        fix_command = bridge_command("prepare", root, "--tar-index-only")
        logger.warning(
            "%s: was prepared by Energon, and has no index of ours: its samples are found by their headers, which "
            "takes longer. With %s samples the index is not made on opening: run `%s` once",
            root,
            f"{num_samples:,}",
            fix_command,
        )
        return None
    try:
        with alone(cached.with_suffix(".lock"), WAIT_S, root):
            index = known()
            if index is None:
                _make(root, shard_counts, uuid, cached)
                index = known()
    except (OSError, DatasetError, _Unusable) as error:
        logger.warning("%s: no index can be made of %s, so samples are found by their headers: %s", root, meta, error)
    return index


def _make(root: Path, shard_counts: dict[str, int], uuid: str, cached: Path) -> None:
    """Write the index next to the data, or if that fails to the path `cached`."""
    started = time.monotonic()
    path = root / META_FOLDER / BRIDGE_INDEX
    try:
        _write(root, shard_counts, uuid, path)
    except OSError:
        path = cached
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(root, shard_counts, uuid, path)
    seconds = time.monotonic() - started
    logger.info("%s: was prepared by Energon; our index was made of it in %.1f s: %s", root, seconds, path)


def _write(root: Path, shard_counts: dict[str, int], uuid: str, path: Path) -> None:
    database = ReadOnlyDatabase(root / META_FOLDER / INDEX_SQLITE, "prepare it again")
    if not database.has_table("sample_parts"):
        raise _Unusable(f"{database.file} is of an older version of Energon, and knows no parts")
    written_ns = database.file.stat().st_mtime_ns
    with replacing(path) as temporary, open(temporary, "wb") as file:
        index = BridgeIndexWriter(file)
        for number, (name, count) in enumerate(shard_counts.items()):
            segment = _segment(database, number, root / name, count)
            status = (root / name).stat()
            # A later change may be a copy or other content: if the time differs, headers are compared.
            mtime_ns = status.st_mtime_ns if status.st_mtime_ns <= written_ns else 0
            index.add(name, status.st_size, mtime_ns, segment, UNKNOWN)  # no shard is read
        index.finish(uuid)


def _segment(database: ReadOnlyDatabase, number: int, shard: Path, count: int) -> bytes:
    """The segment of shard number `number`, of `count` samples, if database and `.tar.idx` agree."""
    samples, parts = database.rows(_SAMPLES, number), database.rows(_PARTS, number)
    positions, keys, starts, sizes = zip(*samples, strict=True) if samples else ((), (), (), ())
    owners, names, offsets, lengths = zip(*parts, strict=True) if parts else ((), (), (), ())
    offsets_there = read_offsets(shard, count)
    is_sound = (
        positions == tuple(range(count))
        and {type(key) for key in (*keys, *names)} <= {str}
        and {type(one) for column in (starts, sizes, owners, offsets, lengths) for one in column} <= {int}
        and min((*sizes, *offsets, *lengths), default=0) >= 0
        and list(starts) == offsets_there[:-1].tolist()
        and (not count or starts[-1] + sizes[-1] == offsets_there[-1])
        and set(owners) == set(positions)
    )
    if is_sound:
        counts = collections.Counter(owners)
        ends = list(itertools.accumulate(counts[position] for position in positions))
        is_sound = all(
            offsets_there[owner] < offset and offset + length <= offsets_there[owner + 1]
            for owner, offset, length in zip(owners, offsets, lengths, strict=True)
        )
    if not is_sound:
        raise _Unusable(f"{database.file} and {tar_index_path(shard)} do not agree")
    return build_segment(keys, offsets_there, ends, list(zip(names, offsets, lengths, strict=True)))
