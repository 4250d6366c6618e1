"""Finding a source's format, by its name and first bytes, and opening it.

Reads a path, and perhaps the name of a format. Returns a `RecordSource`, which the plug-in of that format opens. Raises
`ConfigError`, which names the option to give, for a path that could be read in two ways, or in none.
"""

import os
from pathlib import Path

from bridge_data.data.metadata import is_prepared
from bridge_data.decode.media_kinds import kind_of_name
from bridge_data.errors import ConfigError
from bridge_data.plan.folder_contents import (
    INDEX,
    SAVED,
    SAVED_SPLITS,
    files_below,
    in_words,
    is_hidden,
    is_pattern,
    kind_of_file,
    kinds_of,
    why_no_text,
)
from bridge_data.plugins.convert.text_tables import (
    JsonStream,
    is_of_lines,
)
from bridge_data.prepare.record_source import CONVERTERS, RecordSource, SourceConfig, is_included, split_names

_INDEXES = {"mds": (b'"mds"', b'"shards"'), "litdata": (b'"chunks"', b'"data_format"')}
"""Formats of tables with an index, and what its first bytes hold."""

_TABLES = {".lance": "lance", ".mds": "mds", ".bin": "litdata"}
"""Formats of other tables, by how their names end."""


FORMAT_NAMES = (*CONVERTERS.names, *CONVERTERS.names_of_others)
"""The formats that can be named."""


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
    name = config.format or find_format(path, config.include)
    if name not in FORMAT_NAMES:
        raise ConfigError(f"format={name!r}: expected one of {', '.join(FORMAT_NAMES)}")
    source = CONVERTERS.get(name, needed_by=f"{path}: format {name}")(path, config)
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
    if (complaint := why_no_text(str(path))) is not None:
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
    splits = split_names(path.name for path in folder.iterdir() if path.is_dir())
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
