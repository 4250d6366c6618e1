"""Finding a source's family of formats, by its name and first bytes, and opening it.

Enters: a path, and perhaps the name of a format. Leaves: a `RecordSource`. Guarantee: a path that could be read in two
ways, or in none, is a `ConfigError` that names the option to give.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from bridge_data import storage
from bridge_data.errors import ConfigError
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.prepare.converters.coco_captions import CocoCaptions
from bridge_data.prepare.converters.columnar_tables import ColumnarTables, saved_files
from bridge_data.prepare.converters.mds_shards import MdsShards, is_mds
from bridge_data.prepare.converters.sample_files import FolderFiles, TarCollection
from bridge_data.prepare.converters.source_records import RecordSource, files_below
from bridge_data.prepare.converters.text_tables import JsonStream, csv_rows, json_array, json_lines
from bridge_data.shards.media_kinds import kind_of_name
from bridge_data.shards.metadata import META_FOLDER

_JSONL = (".jsonl", ".ndjson")
_CSV = (".csv", ".tsv", ".tab")
_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".feather")
_TARS = (".tar", ".tgz", ".tar.gz")

_TABLE_NAMES = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
"""Files that describe a folder of media, as in folders for `datasets`."""


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
        ConfigError: if nothing is there, or its format is not clear. DatasetError: if it is damaged.
    """
    config = config or SourceConfig()
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder")
    source = _OPENERS[config.format or find_format(path)](path, config)
    if not len(source):
        raise ConfigError(f"{path}: holds no records")
    return source


def find_format(path: Path) -> str:
    """The name of the format of a source.

    Raises:
        ConfigError: if the format is unknown.
    """
    if path.is_dir():
        return _folder_format(path)
    name = path.name.lower()
    for endings, known in ((_JSONL, "jsonl"), (_CSV, "csv"), (_PARQUET, "parquet"), (_ARROW, "arrow")):
        if name.endswith(endings):
            return known
    if name.endswith(_TARS):
        return "webdataset"
    if name.endswith(".json"):
        with JsonStream(path) as stream:
            try:
                return {"[": "json", "{": "coco"}[stream.kind()]
            except KeyError:
                raise ConfigError(f"{path}: expected a list of objects, or the object of COCO captions") from None
    raise ConfigError(f"{path}: its name does not say its format; give --format, one of {', '.join(FORMAT_NAMES)}")


def _folder_format(folder: Path) -> str:
    if saved_files(folder) is not None:
        return "datasets"
    if is_mds(folder):
        return "mds"
    if (folder / META_FOLDER).is_dir():
        return "webdataset"
    tables = [name for name in _TABLE_NAMES if (folder / name).is_file()]
    if tables:
        raise ConfigError(
            f"{folder}: {tables[0]} names its files; convert that file: {folder / tables[0]} (or give --format folder)"
        )
    found = _most_files(folder)
    splits = _splits(path.name for path in folder.iterdir() if path.is_dir())
    if found == "folder" and len(splits) > 1:
        raise ConfigError(
            f"{folder}: its folders are of the splits {', '.join(splits)}; convert each by itself (or give --format "
            "folder, if they are no splits)"
        )
    return found


def _most_files(folder: Path) -> str:
    """The format of most files in a folder; tables do not count if there are more media."""
    counts = dict.fromkeys(("folder", "webdataset", "parquet", "arrow", "jsonl", "csv"), 0)
    families = (_TARS, "webdataset"), (_PARQUET, "parquet"), (_ARROW, "arrow"), (_JSONL, "jsonl"), (_CSV, "csv")
    for _, folders, names in storage.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            lowered = name.lower()
            family = next((family for endings, family in families if lowered.endswith(endings)), "")
            if not family and (kind_of_name(lowered) or lowered.endswith(".txt")):
                family = "folder"
            if family and not name.startswith("."):
                counts[family] += 1
    return max(counts, key=lambda name: counts[name])


_SPLIT = re.compile(r"(train|validation|valid|val|dev|test)(?![a-z])")


def _splits(names: Iterable[str]) -> list[str]:
    """The splits whose names start names of files or folders."""
    return sorted({match[1] for match in map(_SPLIT.match, names) if match is not None})


def _files(path: Path, config: SourceConfig, endings: tuple[str, ...]) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = files_below(path, endings, config.include)
    splits = _splits(file.name for file in files)
    if len(splits) > 1:
        raise ConfigError(
            f"{path}: its files are of the splits {', '.join(splits)}; convert each by itself, such as --include "
            f"'{splits[0]}*'"
        )
    return files


def _open_folder(path: Path, config: SourceConfig, as_classes: bool | None = None) -> RecordSource:
    links, same_parts = config.follow_links, config.same_parts
    return FolderFiles(path, follow_links=links, as_classes=as_classes, same_parts=same_parts)


def _open_datasets(path: Path, config: SourceConfig) -> RecordSource:
    files = saved_files(path)
    if files is None:
        raise ConfigError(f"{path}: has no state.json, as folders have that `datasets` saved with save_to_disk")
    return ColumnarTables("Hugging Face data set", files, dropped=config.dropped)


_OPENERS: dict[str, Callable[[Path, SourceConfig], RecordSource]] = {
    "folder": lambda path, config: _open_folder(path, config),
    "classes": lambda path, config: _open_folder(path, config, as_classes=True),
    "jsonl": lambda path, config: json_lines(_files(path, config, _JSONL), config.limits),
    "json": lambda path, config: json_array(_files(path, config, (".json",)), config.limits),
    "csv": lambda path, config: csv_rows(_files(path, config, _CSV), config.limits),
    "coco": lambda path, config: CocoCaptions(path, config.limits),
    "parquet": lambda path, config: ColumnarTables("Parquet", _files(path, config, _PARQUET), dropped=config.dropped),
    "arrow": lambda path, config: ColumnarTables("Arrow", _files(path, config, _ARROW), dropped=config.dropped),
    "datasets": _open_datasets,
    "mds": lambda path, config: MdsShards(path, config.limits),
    "webdataset": lambda path, config: TarCollection(
        _files(path, config, _TARS),
        prefix_keys=config.prefix_keys,
        same_parts=config.same_parts,
        folder=path if path.is_dir() else None,
    ),
}

FORMAT_NAMES = tuple(_OPENERS)
"""The formats that can be named."""
