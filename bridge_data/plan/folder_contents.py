"""The data files in a folder that nobody prepared, by the endings of their names.

Reads the names of the files in a folder. Returns those of each kind. Raises `ConfigError` for data of two kinds, such
as tars with a Parquet file beside each: only the user knows which of them is the data set, and whoever reads one of
them would leave out the other without a word.

`KINDS` has these endings. Its keys are names of formats of `bridge-data convert`; the first ending of a kind that is
read in place by a plug-in is the name of the extension of the kind `formats`.
"""

import codecs
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bridge_data import storage
from bridge_data.data.metadata import JSONL_SUFFIX
from bridge_data.data.tar_files import GZIP_SUFFIXES
from bridge_data.errors import HEAD_BYTES, ConfigError, bridge_command, why_pointer

_PACKINGS = {
    ".gz": (b"\x1f\x8b", "gunzip -k"),
    ".bz2": (b"BZh", "bunzip2 -k"),
    ".xz": (b"\xfd7zXZ\0", "unxz -k"),
    ".zst": (b"\x28\xb5\x2f\xfd", "unzstd"),
    ".zip": (b"PK\3\4", "unzip"),
}
"""By the ending that compressed text files have after their own: how they begin, and what unpacks them."""

_LINES, _ROWS = (JSONL_SUFFIX, ".ndjson"), (".csv", ".tsv", ".tab")


class DataKind(NamedTuple):
    """A kind of data files: what messages call them, how their names end, and whether those of a folder are read in
    place by a pattern of their paths."""

    title: str
    endings: tuple[str, ...]
    has_patterns: bool = False


KINDS: Mapping[str, DataKind] = {
    "webdataset": DataKind("tars", (".tar", *GZIP_SUFFIXES), has_patterns=True),
    "parquet": DataKind("Parquet files", (".parquet", ".pq"), has_patterns=True),
    "arrow": DataKind("Arrow files", (".arrow", ".feather"), has_patterns=True),
    "mds": DataKind("MDS shards", (".mds", *(f".mds.{name}" for name in ("zstd", "gz", "bz2", "br", "snappy")))),
    "litdata": DataKind("litData chunks", (".bin",)),
    "lance": DataKind("Lance data sets", (".lance",)),
    "jsonl": DataKind(
        "files of JSON lines", (*_LINES, *(end + more for end in (*_LINES, ".json") for more in _PACKINGS))
    ),
    "csv": DataKind("tables of text", (*_ROWS, *(end + more for end in _ROWS for more in _PACKINGS))),
}

TEXTS = ("jsonl", "csv")
"""Kinds that are lines of text."""

SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""Files that `save_to_disk` of `datasets` writes next to a data set, and above several."""

INDEX = "index.json"
"""The file that names the shards of MDS and the chunks of litData."""

_CHUNK = re.compile(r"chunk-[^/]*\.bin$")
_HIDDEN = re.compile(r"(^|/)\.")
_LANCE = re.compile(r"(?<![^/])[^/]+\.lance(?=/|$)")


def files_below(folder: str) -> list[str]:
    """The names of all files below a folder, on a disk or in a store, sorted."""
    if storage.is_remote(folder):
        return list(storage.list_sizes(folder))
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in storage.walk(folder)
        for name in names
    )


def kinds_of(names: Iterable[str]) -> dict[str, list[str]]:
    """The data files among the names of files in a folder, by their kind in `KINDS`. Hidden files are none, nor are
    those below a hidden folder; a Lance data set, which is a folder, counts as one file."""
    found: dict[str, dict[str, None]] = {}
    for name in names:
        if is_hidden(name):
            continue
        lance = _LANCE.search(name)
        kind = "lance" if lance else kind_of_file(name)
        if kind:
            found.setdefault(kind, {})[name[: lance.end()] if lance else name] = None
    return {kind: list(files) for kind, files in found.items()}


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder that it is in, is hidden."""
    return _HIDDEN.search(name) is not None


def kind_of_file(name: str) -> str:
    """The kind of a data file by its name; empty for any other file."""
    lowered = name.lower()
    found = next((kind for kind, about in KINDS.items() if lowered.endswith(about.endings)), "")
    return "" if found == "litdata" and not _CHUNK.search(name) else found


def in_words(found: Mapping[str, list[str]]) -> str:
    """What is there, for messages: `2 tars (such as 0.tar) and 1 Parquet file (a.parquet)`."""
    return " and ".join(
        f"{len(names):,} {KINDS[kind].title} ({'such as ' * (len(names) > 1)}{min(names)})"
        for kind, names in found.items()
    )


def check_one_kind(folder: str, names: Iterable[str]) -> None:
    """Ensure that the folder, which has files of these names, holds data of one kind at most.

    Raises:
        ConfigError: with the path of each kind by which it is read in place.
    """
    found = kinds_of(names)
    if len(found) > 1:
        ways = [f"{_path_of(folder, kind, files)} for its {KINDS[kind].title}" for kind, files in found.items()]
        raise ConfigError(
            f"{folder}: holds data of {len(found)} kinds, {in_words(found)}. "
            f"Say which is meant: give {' or '.join(ways)}"
        )


def _path_of(folder: str, kind: str, names: list[str]) -> str:
    """The path that names these files of a folder and no others; for those that are not read in place as they are, the
    command that makes a data set of them."""
    at, about = folder.rstrip("/"), KINDS[kind]
    endings = {next(end for end in about.endings if name.lower().endswith(end)) for name in names}
    if len(names) == 1 and (about.has_patterns or kind == "lance" or endings == {JSONL_SUFFIX}):
        return f"{at}/{names[0]}"
    if about.has_patterns and len(endings) == 1:
        return f"{at}/{'**/' * any('/' in name for name in names)}*{endings.pop()}"
    return f"the folder that `{bridge_command('convert', folder, 'DST', '--format', kind)}` makes"


def why_no_lines(path: str) -> str | None:
    """Why there is no data set at `path`, and the fix, if it names files of JSON lines in another way than as one
    file `.jsonl`: a folder, a pattern, a compressed file, or one of another ending; None if it does not."""
    if storage.is_folder(path):
        found = kinds_of(files_below(path))
        command = bridge_command("convert", path, "DST")
        return f"{path}: holds {in_words(found)}: {_ONE_FILE}, or run `{command}`" if [*found] == ["jsonl"] else None
    if kind_of_file(path) != "jsonl":
        return None
    if storage.is_file(path):
        rename = f"{path}: JSON lines are read in place from files that end with {JSONL_SUFFIX}: rename it"
        return f"{path}: {packed}" if (packed := why_no_text(path)) else rename
    if not is_pattern(path):
        return None
    folder = os.path.dirname(_SPECIAL.split(path)[0]) or "."
    command = bridge_command("convert", folder, "DST", "--include", "GLOB")
    return f"{path}: a pattern of files of JSON lines is not read in place: {_ONE_FILE}, or run `{command}`"


def is_pattern(path: str) -> bool:
    """Whether a path has characters of patterns: stars, question marks, brackets or braces."""
    return _SPECIAL.search(path) is not None


def why_no_text(path: str) -> str | None:
    """Why the lines of a text file cannot be found, and what unpacks or recodes it; None if its first bytes are neither
    those of a compressed file nor the mark of UTF-16, which spreadsheets and consoles of Windows write, nor those of a
    pointer of Git LFS."""
    head = storage.read(path, 0, min(HEAD_BYTES, storage.size_bytes(path)))
    if (complaint := why_pointer(head)) is not None:
        return complaint
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return f"is UTF-16; expected UTF-8: `iconv -f UTF-16 -t UTF-8 {shlex.quote(path)} > ...`"
    command = next((command for start, command in _PACKINGS.values() if head.startswith(start)), None)
    return f"is compressed, so its lines cannot be found: run `{command} {shlex.quote(path)}`" if command else None


_SPECIAL = re.compile(r"[*?\[{]")
_ONE_FILE = "each of these is a data set: give one, or all in a metadataset (`blend_epochized: [{path: ...}, ...]`)"
