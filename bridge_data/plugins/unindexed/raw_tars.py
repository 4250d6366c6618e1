"""Tars that nobody prepared, as a format: indexed when they are first opened on a machine.

Reads the path of tars without `.nv-meta`: a folder of them, or a pattern, `shards-{000..009}.tar` or `shards-*.tar`.
Returns a `ShardSet` of all samples, in the order of `bridge-data prepare` with everything in `train`, so a run can
resume after the tars are prepared. The index is in the user's cache; nothing is written next to the tars. It records
sizes and times of change: a tar that has changed is scanned again. Raises `DatasetError` that names all damaged tars.

One process makes an index, and others wait for it.
"""

import contextlib
import glob
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bridge_data import storage
from bridge_data.data import ShardSet
from bridge_data.data.index_file import BridgeIndex, Segment
from bridge_data.data.metadata import META_FOLDER, expand_path, is_unfinished
from bridge_data.data.paged_file import DamagedIndexError
from bridge_data.data.tar_files import GZIP_SUFFIXES
from bridge_data.errors import ConfigError, DatasetError, bridge_command, listed
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan.declared import Reference
from bridge_data.plan.formats import WHOLE, Format, Opening
from bridge_data.plan.source import Source
from bridge_data.prepare.index_writing import BridgeIndexWriter
from bridge_data.prepare.tar_scan import ScanNotes, raise_faults, scan_tar
from bridge_data.storage.atomic import EXCLUSIVE, lock, replacing, writing
from bridge_data.storage.copies import CACHE_VARIABLE, cache_folder

WAIT_S = 3600.0
"""How long a process waits for another that makes the index of tars."""

_POLL_S = 0.1
_TAR_SUFFIXES = (".tar", *GZIP_SUFFIXES)
_WILDCARD = re.compile(r"[*?]")
_SPECIAL = re.compile(r"[*?{]")

logger = logging.getLogger("bridge_data")

Versions = Mapping[str, tuple[int, int]]
"""(size, time of change in ns) of each tar, by its name."""


class RawTars(NamedTuple):
    """The tars at `path`: their names in the folder `root`, in the order of their samples."""

    path: str
    root: Path
    names: Sequence[str]

    @property
    def fix_command(self) -> str:
        """The command that prepares them."""
        return f"`{bridge_command('prepare', self.root)}`"


def find_raw_tars(path: str, limits: Limits = DEFAULT_LIMITS) -> RawTars | None:
    """The tars without `.nv-meta` at `path`, a folder, a tar or a pattern; None if there are none, as in a folder
    that is prepared, holds one that is, or is being written.

    Raises:
        ConfigError: for a pattern that cannot be expanded, or that no tar matches.
    """
    if storage.is_remote(path):
        return None
    if os.path.isdir(path):
        names = _names_below(path)
        return RawTars(path, Path(path), names) if names else None
    if not path.endswith(_TAR_SUFFIXES) or not (os.path.isfile(path) or _is_pattern(path)):
        return None
    files = [path] if os.path.isfile(path) else _expanded(path, limits)
    folder = os.path.dirname(path if os.path.isfile(path) else _SPECIAL.split(path)[0])
    return RawTars(path, Path(folder), [os.path.relpath(file, folder) for file in files])


def _is_pattern(path: str) -> bool:
    """Whether `path` names tars by braces, `*` or `?`."""
    return path.endswith(_TAR_SUFFIXES) and _SPECIAL.search(path) is not None


def _names_below(folder: str) -> list[str]:
    """The tars below a folder, in the order of `prepare`."""
    if os.path.isdir(os.path.join(folder, META_FOLDER)) or is_unfinished(Path(folder)):
        return []
    names = []
    for where, folders, files in storage.walk(folder):
        if META_FOLDER in folders:
            return []
        folders[:] = [name for name in folders if not name.startswith(".")]
        tars = (file for file in files if file.endswith(_TAR_SUFFIXES) and not file.startswith("."))
        names += [os.path.relpath(os.path.join(where, file), folder) for file in tars]
    return _in_order(names)


def _in_order(names: Iterable[str]) -> list[str]:
    """Sorted folder by folder, as `prepare` lists tars."""
    return sorted(names, key=lambda name: name.split("/"))


def _expanded(pattern: str, limits: Limits) -> list[str]:
    """The tars that a pattern names: in the order of its braces, and sorted where there are `*` or `?`."""
    files = [file for name in expand_path(pattern, limits) for file in _matching(name)]
    if not files:
        raise ConfigError(f"{pattern}: no tar has such a name")
    if len(set(files)) < len(files):
        raise ConfigError(f"{pattern}: names a tar twice: its samples would come twice in each epoch")
    return files


def _matching(name: str) -> list[str]:
    """The tars that match a name with `*` or `?`; any other name as it is."""
    if not _WILDCARD.search(name):
        return [name]
    return _in_order(filter(os.path.isfile, glob.iglob(name.replace("[", "[[]"), recursive=True)))


def open_raw_tars(tars: RawTars, split_part: str) -> ShardSet:
    """All samples of the tars, as the split part `train`.

    Raises:
        ConfigError: for another part, tars that are not there, or compressed ones.
        DatasetError: naming all damaged tars, or if the index cannot be made.
    """
    if split_part != WHOLE:
        raise ConfigError(
            f"{tars.path}: has no {META_FOLDER}, so all of its samples are in split part {WHOLE!r}, and there is no "
            f"{split_part!r}: run {tars.fix_command}, which divides the tars, or name others in a metadataset, with "
            f"split_part: {WHOLE}"
        )
    compressed = next((name for name in tars.names if name.endswith(GZIP_SUFFIXES)), None)
    if compressed is not None:
        raise ConfigError(f"{tars.root / compressed}: is compressed, and has no index: run {tars.fix_command}")
    index = _index_of(tars)
    counts = tuple(index.entries[name].count for name in tars.names)
    return ShardSet(root=tars.root, split_part=split_part, names=tuple(tars.names), stored_counts=counts, index=index)


def _versions(tars: RawTars) -> Versions:
    """The current sizes and times of change."""
    versions, missing = {}, []
    for name in tars.names:
        try:
            status = os.stat(tars.root / name)
        except OSError:
            missing.append(name)
            continue
        versions[name] = (status.st_size, status.st_mtime_ns)
    if missing:
        raise ConfigError(f"{tars.path}: {len(missing)} of its {len(tars.names)} tars are not there: {listed(missing)}")
    return versions


def _index_of(tars: RawTars) -> BridgeIndex:
    """The up-to-date index of the tars, created if there is none."""
    versions = _versions(tars)
    folder, known_as = cache_folder() / "indexes", f"raw-{digest(tars.path)}"
    path = folder / f"{known_as}-{digest([*versions.items()])}.bridge"
    index = BridgeIndex.open(path)
    if index is not None:
        return index
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatasetError(
            f"{folder}: the index of {tars.path} cannot be written there: {error}. Name another folder in "
            f"{CACHE_VARIABLE}, or run {tars.fix_command}"
        ) from error
    try:
        with alone(folder / f"{known_as}.lock", WAIT_S) as is_alone:
            index = BridgeIndex.open(path)
            if index is None:
                for left in folder.glob(f".{known_as}-*.tmp") if is_alone else ():  # from a killed process
                    left.unlink()
                _make(tars, versions, path, _last_index(folder, known_as))
                index = BridgeIndex.open(path)
    except TimeoutError:
        raise DatasetError(
            f"{tars.path}: another process has been indexing it for {WAIT_S:.0f} s: end it, or run {tars.fix_command} "
            "once, which does that in several processes"
        ) from None
    if index is None:
        raise DatasetError(f"{path}: was written, and cannot be read: see the warning before")
    return index


def digest(content: object) -> str:
    import hashlib  # here: slow, and most data have an index

    return hashlib.blake2b(json.dumps(content).encode(errors="surrogateescape"), digest_size=16).hexdigest()


def _last_index(folder: Path, known_as: str) -> BridgeIndex | None:
    """The index of the tars from their last opening."""
    found = sorted(folder.glob(f"{known_as}-*.bridge"), key=lambda path: path.stat().st_mtime_ns)
    return BridgeIndex.open(found[-1]) if found else None


@contextlib.contextmanager
def alone(path: Path, wait_s: float, folder: Path | None = None) -> Iterator[bool]:
    """Hold the lock under which an index is made: that of `folder`, which `prepare` takes, too, or if there is none, or
    its file system has no locks, that of the file `path`; False if there is no lock at all.

    Raises:
        TimeoutError: if another process holds it for `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    for locked_path in (folder or path, path):
        try:
            locked_path.parent.mkdir(parents=True, exist_ok=True)
            while (descriptor := lock(str(locked_path), EXCLUSIVE, wait=False)) is None:
                if time.monotonic() >= deadline:
                    raise TimeoutError("another process is making it")
                time.sleep(_POLL_S)
        except TimeoutError:
            raise
        except OSError:
            continue
        try:
            yield True
        finally:
            os.close(descriptor)
        return
    yield False


def _make(tars: RawTars, versions: Versions, path: Path, old: BridgeIndex | None) -> None:
    """Write the index of the tars to `path`, reusing `old` for those that have not changed."""
    started = time.monotonic()
    _tell(tars, versions, old)
    errors: list[str] = []
    notes, num_samples = ScanNotes(), 0
    with writing(path.parent), replacing(path) as temporary, open(temporary, "wb") as file:
        index = BridgeIndexWriter(file)
        for name in tars.names:
            try:
                segment, head = _known(old, name, versions) or _scanned(tars, name, versions, notes)
            except DatasetError as error:
                errors.append(str(error))
                continue
            index.add(name, *versions[name], segment, head)
            num_samples += len(Segment.of(segment))
        raise_faults(errors, len(tars.names))
        if not num_samples:
            raise DatasetError(f"{tars.path}: there are no samples; {'; '.join(notes.messages())}")
        index.finish(index.content_uuid())
    for note in notes.messages():
        logger.warning("%s: %s", tars.path, note)
    seconds = time.monotonic() - started
    logger.info("%s: %d samples were indexed in %.1f s: %s", tars.path, num_samples, seconds, path)


def _tell_if_prepared(tars: RawTars) -> None:
    """Log that tars of a prepared data set are read as if they were not: a pattern may name any of its shards."""
    folder = tars.root.absolute()
    prepared = next((one for one in (folder, *folder.parents) if (one / META_FOLDER).is_dir()), None)
    if prepared is not None:
        logger.warning(
            "%s: its tars are read without %s, as they are named one by one: all of their samples are for training, "
            "also those that the split there has for validation, or excludes. To read the prepared data set, name its "
            "folder",
            tars.path,
            prepared / META_FOLDER,
        )


def _tell(tars: RawTars, versions: Versions, old: BridgeIndex | None) -> None:
    """Log that the tars are indexed, and why."""
    if old is None:
        logger.warning(
            "%s: is read without %s, so its tars (%d) are indexed now, for this user on this machine; run %s once to "
            "index them for all, by several processes, and to say what the samples are",
            tars.path,
            META_FOLDER,
            len(tars.names),
            tars.fix_command,
        )
        return
    changed = [name for name in old.entries if name in versions and not _is_known(old, name, versions)]
    new = [name for name in versions if name not in old.entries]
    gone = [name for name in old.entries if name not in versions]
    told = [f"{listed(names)} {what}" for names, what in ((changed, "changed"), (new, "new"), (gone, "gone")) if names]
    logger.warning(
        "%s: its tars have changed since they were indexed (%s), so these are indexed again. States of runs that read "
        "the old ones are refused, unless sizes and numbers of samples are the same",
        tars.path,
        "; ".join(told),
    )


def _is_known(old: BridgeIndex, name: str, versions: Versions) -> bool:
    entry = old.entries.get(name)
    return entry is not None and (entry.num_bytes, entry.mtime_ns) == versions[name]


def _known(old: BridgeIndex | None, name: str, versions: Versions) -> tuple[bytes, int] | None:
    """The segment of a tar that has not changed since `old` was made, and the checksum of its first bytes."""
    if old is None or not _is_known(old, name, versions):
        return None
    try:
        return old.segment_bytes(name), old.entries[name].head_checksum
    except DamagedIndexError:
        return None


def _scanned(tars: RawTars, name: str, versions: Versions, notes: ScanNotes) -> tuple[bytes, int]:
    """The same of a tar that is scanned; an error if it changes meanwhile."""
    scan = scan_tar(tars.root, name)
    if (scan.num_bytes, scan.mtime_ns) != versions[name]:
        raise DatasetError(f"{tars.root / name}: has changed while it was indexed: start again when it is whole")
    notes.merge(scan.notes)
    return scan.segment, scan.head


class UnpreparedTars(Format):
    """A folder of tars, a tar or a pattern of tars, on a disk, that nobody has prepared."""

    name = "tars"

    def matches(self, path: str) -> bool:
        if storage.is_remote(path):
            return False
        return find_raw_tars(path) is not None if os.path.isdir(path) else _is_pattern(path) or os.path.isfile(path)

    def describe(self, path: str) -> str:
        tars = find_raw_tars(path)
        assert tars is not None
        return f"holds tars without {META_FOLDER}: run {tars.fix_command}"

    def open(self, reference: Reference, opening: Opening) -> Source:
        path, part, cache = reference.path, reference.scope.split_part, reference.scope.cache
        tars = find_raw_tars(path, cache.limits)
        assert tars is not None
        _tell_if_prepared(tars)
        return self.source(reference, cache.get(("tars", path, part), lambda: open_raw_tars(tars, part)))
