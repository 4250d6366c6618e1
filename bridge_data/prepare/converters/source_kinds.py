"""Finding a source's family of formats, by its name and first bytes, and opening it.

Reads a path, and perhaps the name of a format. Returns a `RecordSource`: the tables of any kind that is read in place,
tars, text files or a folder of files. Raises `ConfigError`, which names the option to give, for a path that could be
read in two ways, or in none.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from bridge_data.data.metadata import is_prepared
from bridge_data.decode.media_kinds import kind_of_name
from bridge_data.errors import ConfigError
from bridge_data.extensions import Seam
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan.folder_contents import (
    INDEX,
    KINDS,
    SAVED,
    SAVED_SPLITS,
    files_below,
    in_words,
    is_hidden,
    is_pattern,
    kind_of_file,
    kinds_of,
    why_packed,
)
from bridge_data.prepare.converters.sample_files import FolderFiles, TarCollection
from bridge_data.prepare.converters.source_records import RecordSource, included_files, is_included
from bridge_data.prepare.converters.text_tables import (
    CocoCaptions,
    JsonLines,
    JsonStream,
    csv_rows,
    is_of_lines,
    json_array,
)

_INDEXES = {"mds": (b'"mds"', b'"shards"'), "litdata": (b'"chunks"', b'"data_format"')}
"""Formats of tables with an index, and what its first bytes hold."""

_TABLES = {".lance": "lance", ".mds": "mds", ".bin": "litdata"}
"""Formats of other tables, by how their names end."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """How a source is read; `bridge-data convert --help` explains the settings."""

    format: str | None = None
    include: str | None = None
    follow_links: bool = False
    prefix_keys: bool = False
    same_parts: bool = False
    dropped: frozenset[str] = frozenset()
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMAT_NAMES:
            raise ConfigError(f"format={self.format!r}: expected one of {', '.join(FORMAT_NAMES)}")


def open_source(path: Path, config: SourceConfig | None = None) -> RecordSource:
    """The records of the file or folder `path`.

    Raises:
        ConfigError: if nothing is there, or its format is not clear.
        DatasetError: if it is damaged.
    """
    config = config or SourceConfig()
    if not path.exists():
        fix = "; of several files, give their folder, with --include GLOB" if is_pattern(str(path)) else ""
        raise ConfigError(f"{path}: no such file or folder{fix}")
    source = _OPENERS[config.format or find_format(path, config.include)](path, config)
    if not len(source):
        raise ConfigError(f"{path}: holds no records")
    return source


def find_format(path: Path, include: str | None = None) -> str:
    """The name of the format of a source; of a folder, only files that match the pattern `include` count.

    Raises:
        ConfigError: if the format is unknown, or a folder holds data of several.
    """
    if path.suffix in _TABLES:
        return _TABLES[path.suffix]
    if path.is_dir():
        return _folder_format(path, include)
    if kind := kind_of_file(path.name):
        return kind
    if path.name.lower().endswith(".json"):
        return _json_format(path)
    raise ConfigError(f"{path}: its name does not say its format; give --format, one of {', '.join(FORMAT_NAMES)}")


def _json_format(path: Path) -> str:
    """The format of a file `.json`: a list, lines, or the object of COCO captions, which is checked when it is read."""
    if (complaint := why_packed(str(path))) is not None:
        raise ConfigError(f"{path}: {complaint}")
    if is_of_lines(path):
        return "jsonl"
    with JsonStream(path) as stream:
        try:
            return {"[": "json", "{": "coco"}[stream.kind()]
        except KeyError:
            raise ConfigError(
                f"{path}: expected a list of objects, an object on each line, or the object of COCO captions"
            ) from None


def _folder_format(folder: Path, include: str | None) -> str:
    if is_prepared(folder):
        return "webdataset"
    found = _kind_in(folder, include) or "folder"
    if any((folder / name).is_file() for name in (SAVED, SAVED_SPLITS)):
        return "datasets"
    if (indexed := _indexed_format(folder / INDEX)) is not None:
        return indexed
    splits = _splits(path.name for path in folder.iterdir() if path.is_dir())
    if found == "folder" and len(splits) > 1:
        raise ConfigError(
            f"{folder}: its folders are of the splits {', '.join(splits)}; convert each by itself (or give --format "
            "folder, if they are no splits)"
        )
    return found


def _indexed_format(index: Path) -> str | None:
    """The format of the data whose index this is; None if it is none."""
    try:
        with open(index, "rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return None
    return next((name for name, words in _INDEXES.items() if all(word in head for word in words)), None)


_ROWS_OF_TEXT = ("jsonl", "csv")
"""Kinds of files that may name media, and of which each may be a part of a sample."""


def _kind_in(folder: Path, include: str | None) -> str | None:
    """The kind of the data files in a folder, of those that match `include`; None if there are media or texts alone.

    Raises:
        ConfigError: if there are several kinds, or media, too.
    """
    names = [name for name in files_below(str(folder)) if is_included(name, include) and not is_hidden(name)]
    media = [name for name in names if kind_of_name(name) is not None]
    found = kinds_of(names)
    if media:
        keys = {name.partition(".")[0] for name in map(os.path.basename, media)}
        for kind in _ROWS_OF_TEXT:  # but for parts of samples, as in `0001.jpg` with `0001.csv`
            rows = [name for name in found.pop(kind, []) if os.path.basename(name).partition(".")[0] not in keys]
            found |= {kind: rows} if rows else {}
    if len(found) + bool(media) < 2 or not found:
        return next(iter(found), None)
    ways = [f"give --format {' or --format '.join((*found, *['folder'] * bool(media)))}"]
    naming = [name for kind in _ROWS_OF_TEXT for name in found.get(kind, [])] if media else []
    if len(naming) == 1:
        ways.insert(0, f"convert {folder / naming[0]}, if it names the others")
    beside = f" beside {len(media):,} images and clips ({'such as ' * (len(media) > 1)}{min(media)})" if media else ""
    raise ConfigError(f"{folder}: holds {in_words(found)}{beside}. Say which is meant: {', or '.join(ways)}")


_SPLIT = re.compile(r"(train|validation|valid|val|dev|test)(?![a-z])")


def _splits(names: Iterable[str]) -> list[str]:
    """The splits whose names start names of files or folders."""
    return sorted({match[1] for match in map(_SPLIT.match, names) if match is not None})


def _files(path: Path, config: SourceConfig, endings: tuple[str, ...]) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = included_files(path, endings, config.include)
    splits = _splits(file.name for file in files)
    if len(splits) > 1:
        raise ConfigError(
            f"{path}: its files are of the splits {', '.join(splits)}; convert each by itself, such as --include "
            f"'{splits[0]}*'"
        )
    return files


def _open_folder(path: Path, config: SourceConfig, as_classes: bool | None = None) -> RecordSource:
    if config.include is not None:
        raise ConfigError(f"--include: is for folders of tars or tables, but {path} is one of files: give one below it")
    links, same_parts = config.follow_links, config.same_parts
    return FolderFiles(path, follow_links=links, as_classes=as_classes, same_parts=same_parts)


_CONVERTERS = Seam[Callable[..., RecordSource]]("converters")
"""`table files` opens the files that it gets, `tables` what is read in place; see `_open_files`, `_open_tables`."""


def _open_files(path: Path, config: SourceConfig, *, title: str, name: str) -> RecordSource:
    """Tables that are files beside each other."""
    opened = _CONVERTERS.get("table files", needed_by=f"{path}: {title}")
    return opened(path, _files(path, config, KINDS[name].endings), title=title, dropped=config.dropped)


def _open_tables(path: Path, config: SourceConfig, *, title: str) -> RecordSource:
    """Other tables, whose files are those that are read in place."""
    opened = _CONVERTERS.get("tables", needed_by=f"{path}: {title}")
    return opened(path, title=title, include=config.include, dropped=config.dropped)


_OPENERS: dict[str, Callable[[Path, SourceConfig], RecordSource]] = {
    "folder": _open_folder,
    "classes": functools.partial(_open_folder, as_classes=True),
    "jsonl": lambda path, config: JsonLines(_files(path, config, KINDS["jsonl"].endings), config.limits),
    "json": lambda path, config: json_array(_files(path, config, (".json",)), config.limits),
    "csv": lambda path, config: csv_rows(_files(path, config, KINDS["csv"].endings), config.limits),
    "coco": lambda path, config: CocoCaptions(path, config.limits),
    "parquet": functools.partial(_open_files, title="Parquet", name="parquet"),
    "arrow": functools.partial(_open_files, title="Arrow", name="arrow"),
    "datasets": functools.partial(_open_tables, title="Hugging Face data set"),
    "mds": functools.partial(_open_tables, title="MDS shards"),
    "litdata": functools.partial(_open_tables, title="litData chunks"),
    "lance": functools.partial(_open_tables, title="Lance data set"),
    "tables": functools.partial(_open_tables, title="tables"),
    "webdataset": lambda path, config: TarCollection(
        path,
        _files(path, config, KINDS["webdataset"].endings),
        prefix_keys=config.prefix_keys,
        same_parts=config.same_parts,
        limits=config.limits,
    ),
}

FORMAT_NAMES = tuple(_OPENERS)
"""The formats that can be named."""
