"""Tables as a format: Parquet, what Hugging Face's `datasets` saved, Lance, and shards of MDS and litData.

Reads a reference to a file `.parquet`, `.arrow`, `.mds` or `chunk-0-0.bin` or a folder `.lance`, to several by a
pattern (`train-*.parquet`, `{a,b}.parquet`), or to a folder of Parquet files, shards or from `save_to_disk`. Returns a
`Source`, of crude samples or of those that a field map makes. The files of a split part are found by their names alone,
and shards by their index; raises `ConfigError` for a file in no part.
"""

import dataclasses
import fnmatch
import glob
import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bridge_data import storage
from bridge_data.data import Records
from bridge_data.data.metadata import expand_path
from bridge_data.data.plain_data import Node, as_node, nearest, parse_json_file
from bridge_data.errors import ConfigError, listed
from bridge_data.limits import Limits
from bridge_data.plan.dataset_yaml import TABLE_KEYS, SampleConfig, read_sample_config
from bridge_data.plan.declared import Reference
from bridge_data.plan.folder_contents import INDEX, SAVED, SAVED_SPLITS, check_one_kind, files_below, is_hidden
from bridge_data.plan.formats import WHOLE, Format, Opening
from bridge_data.plan.source import FieldAccess, Source
from bridge_data.plugins.tables import litdata_table, mds_table
from bridge_data.plugins.tables.table_columns import Column
from bridge_data.plugins.tables.table_records import TABLE_FILES, TableRecords, open_records
from bridge_data.samples import CrudeSample
from bridge_data.storage import Location, location

logger = logging.getLogger("bridge_data")

_NUMBERED = re.compile(r"(?:^|/)([\w.\-]+?)-(\d{5})-of-(\d{5})[\w.\-]*$")
"""`train-00000-of-00002.parquet`, as on the Hub."""
_ALIASES = (("train", "training"), ("val", "validation", "valid", "dev"), ("test", "testing", "eval", "evaluation"))
_SPLITS = frozenset(name for names in _ALIASES for name in names)
_NAMED = re.compile(rf"(?:^|[/._\- ])({'|'.join(sorted(_SPLITS))})(?=[/._\- \d]|$)")

_HIDDEN = re.compile(r"(^|/)[._]")
"""Names that are no data: `.cache`, `_SUCCESS`."""

_OTHERS = {
    "_delta_log/": "is a Delta table, in which files stay that are no part of it any more",
    ".hoodie/": "is a Hudi table, in which files stay that are no part of it any more",
    "_temporary/": "is being written by Spark, or its job failed",
}
"""Folders whose Parquet files are not all data, by what is in them."""

_SPECIAL = re.compile(r"[*?\[{]")
"""Characters that make a path a pattern."""

_INDEXED = re.compile(rf"\.mds(\.({'|'.join(mds_table.PACKINGS)}))?$|(^|/)chunk-[^/]*(?<=\.bin)$")
"""The names of shards that an index names: of MDS, and of litData."""

_PARQUET, _LANCE = ".parquet", ".lance"

_ALL = ""
"""The name under which files are that are in every split part."""

Files = list[tuple[str, str]]
"""(name in the data set, path) of each."""


def table_parts(path: str) -> list[str]:
    """The split parts of the tables at `path`, by the names of their files; only `train` if they name none.

    Raises:
        ConfigError: if a file is in no part, though others are.
    """
    parts = _parts(path)
    return [WHOLE] if parts is None or _ALL in parts else list(parts)


def files_of(path: str, split_part: str) -> Files:
    """The files of a split part. Tables whose names have no splits have the same rows in every part.

    Raises:
        ConfigError: if there is no such part, there are no files, or files of a folder are missing by their numbers
            (`train-00000-of-00002.parquet`).
    """
    parts = _parts(path)
    if parts is None:
        files = _named_files(path)
    elif _ALL in parts:
        files = parts[_ALL]
        _check_numbers(path, files)
    else:
        names = next((names for names in _ALIASES if split_part in names), ())
        found = next((name for name in (split_part, *names) if name in parts), None)
        if found is None:
            raise ConfigError(f"{path}: there is no split part {split_part!r}; there is {', '.join(parts)}")
        files = parts[found]
        _check_numbers(path, files)
    if not files:
        raise ConfigError(f"{path}: there are no files {' or '.join(TABLE_FILES)}")
    return files


def _parts(path: str) -> dict[str, Files] | None:
    """The files of each split part, or all of them under `_ALL`, if no name has one; None if `path` is no folder."""
    if not _is_folder(path):
        return None
    if (several := storage.read_if_there(f"{path}/{SAVED_SPLITS}")) is not None:
        splits = _json(several, f"{path}/{SAVED_SPLITS}").get("splits")
        if not isinstance(splits, list) or not splits:
            raise ConfigError(f"{path}/{SAVED_SPLITS}: expected a list `splits`")
        return {str(name): [(f"{name}/{file}", at) for file, at in saved_files(f"{path}/{name}")] for name in splits}
    if (state := storage.read_if_there(f"{path}/{SAVED}")) is not None:
        return {_ALL: _files_of_state(path, state)}
    found = files_below(path)
    check_one_kind(path, found)
    for start, what in _OTHERS.items():
        if any(name.startswith(start) for name in found):
            raise ConfigError(f"{path}: {what}: give the files that are to be read by a pattern")
    names = [name for name in found if not _HIDDEN.search(name)]
    if hidden := [name for name in found if name.endswith(_PARQUET) and _HIDDEN.search(name)]:
        logger.warning("%s: not read, as their names begin with . or _: %s", path, listed(hidden))
    if any(map(_INDEXED.search, names)):
        return _indexed_parts(path, names)
    parts: dict[str, Files] = {}
    others = []
    for file, at in (files := [(name, f"{path}/{name}") for name in names if name.endswith(_PARQUET)]):
        match = _NUMBERED.search(file.removesuffix(_PARQUET)) or _NAMED.search(file)
        if match is None:
            others.append(file)
        else:
            parts.setdefault(match[1], []).append((file, at))
    if not others and len(parts) == 1 and _SPLITS.isdisjoint(re.split(r"[_.\-]", next(iter(parts)))):
        return {_ALL: files}  # `part-00000-of-00002.parquet` and the like
    if parts and others:
        raise ConfigError(
            f"{path}: {others[0]} names no split part, but others name {', '.join(parts)}: name it like them, or give "
            "the files by a pattern"
        )
    return _train_first(parts) or {_ALL: files}


def _check_numbers(folder: str, files: Files) -> None:
    """Raise an error if files are missing by their numbers, for example because they are still being copied."""
    numbers: dict[tuple[str, str], set[int]] = {}
    for file, _ in files:
        if match := _NUMBERED.search(file.removesuffix(_PARQUET)):
            numbers.setdefault((file[: match.start(2)], match[3]), set()).add(int(match[2]))
    for (prefix, total), found in numbers.items():
        if (count := int(total) - len(found)) > 0:
            missing = min(set(range(int(total))) - found)
            raise ConfigError(
                f"{folder}: {count} of {int(total)} files are not there, such as {prefix}{missing:05d}-of-{total}: "
                f"wait until all are copied, or give those that are there by a pattern ({folder}/{prefix}*{_PARQUET})"
            )


def _train_first(parts: dict[str, Files]) -> dict[str, Files]:
    return dict(sorted(parts.items(), key=lambda part: part[0] != WHOLE))


def _indexed_parts(path: str, names: Sequence[str]) -> dict[str, Files]:
    """The shards that the index in `path` names, for all split parts; or else those of the indexes in folders there,
    each of which is a split part."""
    indexes = [name for name in names if os.path.basename(name) == INDEX]
    if not indexes:
        raise ConfigError(f"{path}: there are shards, but no {INDEX} that names them: it is not whole")
    parts = {}
    for index in [INDEX] if INDEX in indexes else indexes:
        data, file, folder = storage.read_all(f"{path}/{index}"), f"{path}/{index}", os.path.dirname(index)
        if "chunks" in _json(data, file):
            found = list(litdata_table.read_index(data, file).counts)
        else:
            found = [entry.name for entry in mds_table.read_index(data, file)]
        shards = [os.path.normpath(os.path.join(folder, name)) for name in found]
        parts[folder or _ALL] = [(name, f"{path}/{name}") for name in shards]
    return _train_first(parts)


def _named_files(path: str) -> Files:
    """The file at `path`, or the files that it names as a pattern."""
    start = os.path.dirname(_SPECIAL.split(path)[0])
    if storage.is_remote(path) and _SPECIAL.search(path):
        return [(name, f"{start}/{name}") for name in _matching(files_below(start), path.removeprefix(f"{start}/"))]
    if storage.is_file(path) or storage.is_folder(path):
        return [(os.path.basename(path), path)]
    found = [file for pattern in expand_path(path) for file in sorted(glob.glob(pattern, recursive=True))]
    return [(os.path.relpath(file, start), file) for file in dict.fromkeys(found)]


def _is_folder(path: str) -> bool:
    """Whether `path` is a folder of files. A Lance data set counts as a file; a URL that is a pattern is no folder,
    without a request to the store."""
    is_one = path.endswith(_LANCE) or (storage.is_remote(path) and _SPECIAL.search(path))
    return not is_one and storage.is_folder(path)


def _matching(names: Sequence[str], pattern: str) -> list[str]:
    """The sorted `names` that `glob` would find by `pattern`."""
    found: dict[str, None] = {}
    known = set(names)
    for one in expand_path(pattern):
        if one in known:
            found[one] = None
        elif _SPECIAL.search(one):
            found |= {name: None for name in names if _matches(name.split("/"), one.split("/"))}
    return list(found)


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether the names on a path match patterns; `**` stands for any number of folders."""
    if not names or not patterns:
        return not names and not patterns
    first = patterns[0]
    hides = names[0].startswith(".") and not first.startswith(".")
    if first == "**":
        return _matches(names, patterns[1:]) or (not hides and _matches(names[1:], patterns))
    return not hides and fnmatch.fnmatchcase(names[0], first) and _matches(names[1:], patterns[1:])


def saved_files(folder: str) -> Files:
    """The files that `save_to_disk` wrote, in its order.

    Raises:
        ConfigError: if `state.json` is not as it writes it, or rows are chosen by a file of indices.
    """
    return _files_of_state(folder, storage.read_all(f"{folder}/{SAVED}"))


def _files_of_state(folder: str, content: bytes) -> Files:
    state = _json(content, f"{folder}/{SAVED}")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise ConfigError(
            f"{folder}: its rows are chosen by a file of indices, which is not read: save it again with "
            "`dataset.flatten_indices().save_to_disk(...)`"
        )
    entries = state.get("_data_files")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "filename" in entry for entry in entries):
        raise ConfigError(f"{folder}/{SAVED}: expected a list `_data_files` of mappings with `filename`")
    names = [os.path.normpath(str(entry["filename"])) for entry in entries]
    if not names or any(os.path.basename(name) != name for name in names):
        raise ConfigError(f"{folder}/{SAVED}: expected the names of files in {folder}; it names {names[:3]}")
    return [(name, f"{folder}/{name}") for name in names]


def _json(data: bytes, path: str) -> dict[str, Any]:
    content = parse_json_file(data, path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping")
    return content


class Tables(Format):
    """Tables, whose samples are those of a field map in the metadataset or a dataset_config beside them, or crude."""

    name = "tables"
    settings = ("dataset_config", *TABLE_KEYS)

    def matches(self, path: str) -> bool:
        if path.endswith(tuple(TABLE_FILES)):
            return not path.endswith(".bin") or _INDEXED.search(path) is not None
        names = [name for name in files_below(path) if not is_hidden(name)]
        return any(name in (SAVED, SAVED_SPLITS) or name.endswith(_PARQUET) or _INDEXED.search(name) for name in names)

    def describe(self, path: str) -> str:
        return "has tables, whose files are named by their split parts"

    def splits(self, path: Location, limits: Limits) -> list[str]:
        return table_parts(str(path))

    def open(self, reference: Reference, opening: Opening) -> Source:
        root, file = _settings(reference)
        config = SampleConfig(sample_class=CrudeSample)

        def choose(columns: list[Column]) -> list[Column]:
            nonlocal config
            if root is not None:
                config = read_sample_config(
                    root,
                    opening.trusted_modules,
                    trust_dataset_code=opening.trust_dataset_code,
                    columns=[column.name for column in columns],
                )
            return _chosen(columns, config, root, reference)

        path, part = reference.path, reference.scope.split_part
        records = open_records(location(path), files_of(path, part), part, choose)
        chosen = records.columns
        config = dataclasses.replace(
            config,
            field_map=_resolved(config.field_map, chosen),
            parts=None if config.parts is None else frozenset(column.part for column in chosen),
        )
        values = frozenset(column.part for column in chosen if not column.is_bytes)
        return self.source(reference, records, config, file, values)

    def with_keys(self, reference: Reference) -> Records:
        return open_keys(reference.path, reference.scope.split_part)


def open_keys(path: str, split_part: str) -> TableRecords:
    """The rows of the tables at `path` without their columns, which have keys, if the tables have."""
    return open_records(location(path), files_of(path, split_part), split_part, lambda columns: [])


def _settings(reference: Reference) -> tuple[Node | None, str]:
    """(definition of the samples in a dataset.yaml or the metadataset, None if there is none; its file)."""
    name, path = reference.text("dataset_config"), reference.path
    inline = {key: reference.entries[key] for key in TABLE_KEYS if key in reference.entries}
    if name is not None:
        if inline:
            raise reference.error(f"dataset_config: {', '.join(inline)} says the same: remove one", "dataset_config")
        folder = path if _is_folder(path) else os.path.dirname(path)
        file = str(location(folder) / name)
        document = reference.scope.cache.document(file)
        if document is None:
            raise reference.error(
                f"{file}: no such file; a dataset_config is a file next to the data", "dataset_config"
            )
        return document, file
    if not inline:
        return None, path
    node = next(iter(inline.values()))
    kind = inline.get("sample_type") or as_node(CrudeSample.__name__, node.file)
    if isinstance(kind.value, str):
        ours = {"__module__": as_node("bridge_data", kind.file), "__class__": kind}
        inline = {**inline, "sample_type": Node(ours, kind.file, kind.line)}
    return Node(inline, node.file, node.line), node.file


def _chosen(columns: list[Column], config: SampleConfig, root: Node | None, reference: Reference) -> list[Column]:
    """The needed columns, by their own names or those of their parts."""
    names = _by_name(columns)
    chosen = columns
    if root is not None and config.field_map:
        fields = root.mapping("dataset.yaml")["field_map"].mapping("field_map")
        wanted: dict[str, Column] = {}
        for field, access in config.field_map.items():
            found = [names[part] for part in access.parts if part in names]
            if not found and "__key__" not in access.parts:
                raise fields[field].error(
                    f"field_map: {field}: {reference.path} has no column "
                    f"{' or '.join(map(repr, access.parts))}{nearest(access.part, names)}"
                )
            wanted.update((column.part, column) for column in found)
        chosen = [column for column in columns if column.part in wanted]
    elif config.parts is not None:
        chosen = [column for column in columns if any(name in config.parts for name in column.names)]
    return list(chosen)


def _by_name(columns: Sequence[Column]) -> dict[str, Column]:
    """The columns by what they may be called; their own names take precedence."""
    guessed = {name: column for column in columns for name in column.names}
    return guessed | {name: column for column in columns for name in (column.name, column.part)}


def _resolved(field_map: Mapping[str, FieldAccess], columns: Sequence[Column]) -> dict[str, FieldAccess]:
    """The field map, with names of columns replaced by those of parts."""
    parts = {name: column.part for name, column in _by_name(columns).items()}

    def resolved(access: FieldAccess) -> FieldAccess:
        others = tuple(map(resolved, access.alternatives))
        return FieldAccess(parts.get(access.part, access.part), access.path, others)

    return {name: resolved(access) for name, access in field_map.items()}
