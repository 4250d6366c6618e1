"""The Energon format: the names of members and files, and what `.nv-meta` says.

Enters: the name of a member; a folder. Leaves: key and part; samples per shard, shards and exclusions of a split part.
No shard is touched. A member `images/0001.left.png` is part `left.png` of sample `images/0001`: the key is the path up
to the first dot of the file name. Members under a name like `__meta__` are not data.

Source: the file formats of Megatron-Energon, https://nvidia.github.io/Megatron-Energon/basic/data_prep.html, and the
WebDataset naming convention, https://github.com/webdataset/webdataset
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import braceexpand
import yaml

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.storage import AnyLocation, Location, location

_RUN = re.compile(r"(?P<before>[^{}\\]*)\{(?P<first>\d+)\.\.(?P<last>\d+)\}(?P<after>[^{}\\]*)", re.ASCII)
_YamlLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
META_FOLDER = ".nv-meta"
INFO_JSON = ".info.json"
INFO_YAML = ".info.yaml"
SPLIT_YAML = "split.yaml"
SPLIT_JSON = "split.json"
DATASET_YAML = "dataset.yaml"
INDEX_SQLITE = "index.sqlite"
INDEX_UUID = "index.uuid"
BRIDGE_INDEX = "index.bridge"
PREPARING = ".preparing"
"""A file that is there while others in the folder are replaced, and afterwards if that was interrupted."""
JSONL_SUFFIX = ".jsonl"

_HIDDEN_PART = re.compile(r"((?:.*/)?[^./]*/)\.([^/]*)", re.DOTALL)
"""The member `a/.txt` has the key `a/`."""

_META_MEMBER = re.compile(r"__[^/]*__(/|$)")
_SHARD = re.compile(r"((?:[^/]+/)*?[^/]+\.(?:tar|tgz|tar\.gz))[/:](?=.)", re.DOTALL)


def split_name(name: str) -> tuple[str, str] | None:
    """(key, part) of the member `name`; None if it is no part of a sample."""
    start = name.rfind("/") + 1
    dot = name.find(".", start)
    if dot < 0 or (name[:2] == "__" and is_meta_member(name)):
        return None
    if dot > start:
        return name[:dot], name[dot + 1 :]
    match = _HIDDEN_PART.fullmatch(name)
    return None if match is None else (match[1], match[2])


def split_shard(name: str) -> tuple[str, str] | None:
    """`a/b.tar` and `images/0001.jpg` of `a/b.tar/images/0001.jpg`, also with a colon between them; None if no shard is
    named in it."""
    match = _SHARD.match(name)
    return None if match is None else (match[1], name[match.end() :])


def without_shard(name: str) -> str | None:
    """`images/0001.jpg` of `a/b.tar/images/0001.jpg`; None if no shard is named in it."""
    split = split_shard(name)
    return None if split is None else split[1]


def is_meta_member(name: str) -> bool:
    """Whether the member `name` is marked as no data, like `__meta__/readme`."""
    return name.startswith("__") and _META_MEMBER.match(name) is not None


@overload
def tar_index_path(shard: str | Path) -> Path: ...


@overload
def tar_index_path(shard: Location) -> Location: ...


def tar_index_path(shard: str | Location) -> Location:
    """Where the offsets of the samples of `shard` are kept: `a/b.tar` has them in `a/b.tar.idx`."""
    return location(shard).with_suffix(".tar.idx")


def meta_folder(root: AnyLocation) -> AnyLocation:
    """The `.nv-meta` folder of the data set at `root`.

    Raises:
        ConfigError: if there is no such data set, or it is not prepared, or only in part.
    """
    folder = root / META_FOLDER
    if not folder.is_dir():
        if not root.exists():
            raise ConfigError(f"{root}: no such folder")
        if not root.is_dir():
            raise ConfigError(f"{root}: expected the folder of a data set, got a file")
        raise ConfigError(
            f"{root}: not a prepared data set, it has no {META_FOLDER} folder; run `{bridge_command('prepare', root)}`"
        )
    if isinstance(folder, Path) and (folder / PREPARING).exists():
        raise ConfigError(
            f"{root}: is being prepared now, or was until that was interrupted: wait for it, or run "
            f"`{bridge_command('prepare', root)}` again"
        )
    return folder


def read_shard_counts(meta: Location) -> dict[str, int]:
    """Samples of each shard, by its path relative to the data set, from `.info.json` or the older `.info.yaml`.

    Raises:
        ConfigError: if there is neither. DatasetError: if it cannot be understood.
    """
    path, data = _first_of(meta, INFO_JSON, INFO_YAML)
    content = parse_document(data, path)
    counts = content.get("shard_counts") if isinstance(content, dict) else None
    if not isinstance(counts, dict):
        raise DatasetError(f"{path}: expected a mapping with `shard_counts`; run `bridge-data prepare` again")
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise DatasetError(f"{path}: shard {name!r}: expected a number of samples, got {count!r}")
    return counts


def read_uuid(meta: Location) -> str | None:
    """The identity of the preparation; None if it was by an older Energon version."""
    data = storage.read_if_there(meta / INDEX_UUID)
    return None if data is None else data.decode().strip()


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """A split as the file at `path` has it. A part that nobody asks for may be wrong."""

    path: Location
    parts: Mapping[str, Any]
    exclude: Any

    def shards(self, part: str) -> list[str]:
        """The shards of `part`, brace patterns expanded.

        Raises:
            ConfigError: if there is no such part, or it is no list of shards.
        """
        if part not in self.parts:
            raise ConfigError(
                f"{self.path}: there is no split part {part!r}; there is {', '.join(self.parts) or 'none'}"
            )
        return _expand(self.path, f"split part {part!r}", self.parts[part])

    def excluded(self) -> list[str]:
        """The shards, and the samples as `shard/key`, that are left out.

        Raises:
            ConfigError: if it is no list.
        """
        return _expand(self.path, "exclude", self.exclude)


def read_split(meta: Location, split_config: str | None = None) -> Split:
    """The split of a data set, from `split.yaml`, `split.json` or the file named `split_config`.

    Raises:
        ConfigError: if the file is missing or is not a split.
    """
    path, data = _first_of(meta, *((SPLIT_YAML, SPLIT_JSON) if split_config is None else (split_config,)))
    content = parse_document(data, path)
    parts = content.get("split_parts") if isinstance(content, dict) else None
    if not isinstance(parts, dict):
        raise ConfigError(f"{path}: expected a mapping with `split_parts`, such as `split_parts: {{train: [a.tar]}}`")
    return Split(path, {str(part): patterns for part, patterns in parts.items()}, content.get("exclude"))


def _first_of(meta: Location, *names: str) -> tuple[Location, bytes]:
    """(path, content) of the first of these files that exists."""
    for name in names:
        data = storage.read_if_there(meta / name)
        if data is not None:
            return meta / name, data
    raise ConfigError(f"{meta / names[0]}: no such file; run `{bridge_command('prepare', meta.parent)}`")


def _expand(path: Location, what: str, patterns: Any) -> list[str]:
    """The names that brace patterns such as `data-{000..009}.tar` expand to."""
    if patterns is None:
        return []
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ConfigError(f"{path}: {what}: expected a list of names, got {patterns!r}")
    names: list[str] = []
    for pattern in patterns:
        try:
            names.extend(_numbered(pattern) or braceexpand.braceexpand(pattern))
        except ValueError as error:
            raise ConfigError(f"{path}: {what}: pattern {pattern!r} cannot be expanded: {error}") from None
    return names


def _numbered(pattern: str) -> list[str]:
    """The names of a plain name, or of one run of numbers of one width, as we write it: ten times as fast as
    `braceexpand`. Empty for any other pattern."""
    if "{" not in pattern and "\\" not in pattern:
        return [pattern]
    match = _RUN.fullmatch(pattern)
    if match is None or len(match["first"]) != len(match["last"]):
        return []
    width, first, last = len(match["first"]), int(match["first"]), int(match["last"])
    return [f"{match['before']}{number:0{width}}{match['after']}" for number in range(first, last + 1)]


def load_document(path: Location) -> Any:
    """The content of the YAML or JSON file `path`.

    Raises:
        ConfigError: if it cannot be parsed.
    """
    return parse_document(storage.read_all(path), path)


def parse_document(data: bytes, path: Location) -> Any:
    """`data` parsed, which are the bytes of the file at `path`; see `load_document`."""
    try:
        return json.loads(data) if path.suffix == ".json" else yaml.load(data, _YamlLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not readable as YAML: {error.problem}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: not readable as JSON: {error.msg}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable: {error}") from None
