"""The Energon format: file names, and the content of `.nv-meta`.

Reads the metadata of a folder. Returns samples per shard, shards and exclusions of a split part. Raises `ConfigError`
or `DatasetError`, which name the file. No shard is touched.

Source: the file formats of Megatron-Energon, https://nvidia.github.io/Megatron-Energon/basic/data_prep.html
"""

import dataclasses
import re
import reprlib
from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import Any, overload

import braceexpand

from bridge_data import storage
from bridge_data.data.plain_data import parse_json_file, parse_yaml_file
from bridge_data.data.tar_files import GZIP_SUFFIXES
from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.storage import AnyLocation, Location, location

_RUN = re.compile(r"(?P<before>[^{}\\]*)\{(?P<first>\d+)\.\.(?P<last>\d+)\}(?P<after>[^{}\\]*)", re.ASCII)
_BRACES = re.compile(
    r"\\.|\{(?P<first>-?\d+)\.\.(?P<last>-?\d+)(?:\.\.-?(?P<step>\d+))?\}"
    r"|(?P<letters>\{[A-Za-z]\.\.[A-Za-z](?:\.\.-?\d+)?\})|(?P<sign>[{},])",
    re.DOTALL,
)
_MAX_DIGITS = 32
_MAX_NESTED_BRACES = 32
_NUM_LETTERS = 52
META_FOLDER = ".nv-meta"
INFO_JSON = ".info.json"
INFO_YAML = ".info.yaml"
SPLIT_YAML = "split.yaml"
SPLIT_JSON = "split.json"
DATASET_YAML = "dataset.yaml"
INDEX_SQLITE = "index.sqlite"
INDEX_UUID = "index.uuid"
BRIDGE_INDEX = "index.bridge"
WRITER_YAML = "writer.yaml"
"""What the last writer of the shards wrote, and its split, which stays the same when samples are added."""
PREPARING = ".preparing"
"""A file that exists while others in the folder are replaced, and stays if that was interrupted."""
WRITING = ".writing"
"""A folder inside a data set that exists until a `ShardWriter` or a conversion has finished."""
JSONL_SUFFIX = ".jsonl"


def is_jsonl(path: str) -> bool:
    """Whether `path` is that of a JSONL file."""
    return path.endswith(JSONL_SUFFIX)


_MAX_SAMPLES = 1 << 48
_SHARD = re.compile(r"((?:[^/]+/)*?[^/]+\.(?:tar|tgz|tar\.gz))[/:](?=.)", re.DOTALL)


def split_shard(name: str) -> tuple[str, str] | None:
    """`a/b.tar` and `images/0001.jpg` of `a/b.tar/images/0001.jpg`, also with a colon between them; None if no shard is
    named in it."""
    match = _SHARD.match(name)
    return None if match is None else (match[1], name[match.end() :])


def without_shard(name: str) -> str | None:
    """`images/0001.jpg` of `a/b.tar/images/0001.jpg`; None if no shard is named in it."""
    split = split_shard(name)
    return None if split is None else split[1]


@overload
def tar_index_path(shard: str | Path) -> Path: ...


@overload
def tar_index_path(shard: Location) -> Location: ...


def tar_index_path(shard: str | Location) -> Location:
    """The path of the sample offsets of `shard`: `a/b.tar.idx` for `a/b.tar`."""
    return location(shard).with_suffix(".tar.idx")


def meta_folder(root: AnyLocation) -> AnyLocation:
    """The `.nv-meta` folder of the data set at `root`.

    Raises:
        ConfigError: if there is no such data set, or it is not prepared, or only in part.
    """
    folder = root / META_FOLDER
    names = _names_in(folder)
    if names is None:
        if not root.exists():
            raise ConfigError(f"{root}: no such folder")
        if not root.is_dir():
            raise ConfigError(f"{root}: expected the folder of a data set, got a file")
        raise ConfigError(why_unprepared(root))
    if PREPARING in names:
        raise ConfigError(
            f"{root}: is being prepared now, or was until that was interrupted: wait for it, or run "
            f"`{bridge_command('prepare', root)}` again"
        )
    return folder


def _names_in(folder: Location) -> Container[str] | None:
    """The names of the files in `folder`; None if there is none. A folder of metadata in a store is listed by one
    request."""
    if isinstance(folder, storage.RemotePath):
        return storage.list_sizes(str(folder)) or None
    return {name for name in (PREPARING,) if (folder / name).exists()} if folder.is_dir() else None


def is_prepared(root: Location) -> bool:
    """Whether the folder `root` was prepared: it may have a `.nv-meta` of other use, such as metadata of media."""
    return any((root / META_FOLDER / name).is_file() for name in (INFO_JSON, INFO_YAML))


def why_unprepared(root: AnyLocation) -> str:
    """What to do about the folder `root`, which has no `.nv-meta`."""
    if is_unfinished(root):
        return f"{root}: {UNFINISHED}"
    if isinstance(root, Path) and not root.exists():
        return f"{root}: no such folder"
    if isinstance(root, Path) and not has_tars(root):
        return (
            f"{root}: not a prepared data set, it has neither a {META_FOLDER} folder nor tars; run "
            f"`{bridge_command('convert', root, 'DST')}`, which makes a data set of other files"
        )
    return f"{root}: not a prepared data set, it has no {META_FOLDER} folder; run `{bridge_command('prepare', root)}`"


def has_tars(root: Location) -> bool:
    """Whether there are tars below a folder."""
    return any(name.endswith((".tar", *GZIP_SUFFIXES)) for _, _, names in storage.walk(root) for name in names)


UNFINISHED = (
    "is not whole: it is being written by `convert`, `write` or a ShardWriter, or was until that was interrupted. Run "
    f"the same again to resume; or remove {WRITING} in it, to discard what is not written yet"
)


def is_unfinished(root: AnyLocation) -> bool:
    """Whether the data set is being written, or writing was interrupted."""
    return (root / WRITING).is_dir()


def read_shard_counts(meta: Location, limits: Limits = DEFAULT_LIMITS) -> dict[str, int]:
    """Samples of each shard, by its path relative to the data set, from `.info.json` or the older `.info.yaml`.

    Raises:
        ConfigError: if there is neither.
        DatasetError: if it cannot be parsed.
    """
    path, data = _first_of(meta, INFO_JSON, INFO_YAML)
    content = parse_document(data, path, limits)
    counts = content.get("shard_counts") if isinstance(content, dict) else None
    if not isinstance(counts, dict):
        raise DatasetError(f"{path}: expected a mapping with `shard_counts`; run `bridge-data prepare` again")
    for name, count in counts.items():
        if not isinstance(name, str) or type(count) is not int or not 0 <= count < _MAX_SAMPLES:
            raise DatasetError(
                f"{path}: shard {reprlib.repr(name)}: expected a number of samples, got {reprlib.repr(count)}"
            )
    return counts


def read_uuid(meta: Location) -> str | None:
    """The identity of the preparation; None if an older Energon version made it."""
    data = storage.read_if_there(meta / INDEX_UUID)
    try:
        return None if data is None else data.decode().strip()
    except UnicodeDecodeError:
        raise DatasetError(
            f"{meta / INDEX_UUID}: is damaged: expected text, the name of the preparation; "
            f"run `bridge-data prepare {meta.parent}` again"
        ) from None


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """The split in the file at `path`, with the content `data`. Only requested parts are checked."""

    path: Location
    data: bytes
    split_parts: Mapping[str, Any]
    exclude: Any
    limits: Limits

    def shards(self, part: str) -> list[str]:
        """The shards of `part`, brace patterns expanded.

        Raises:
            ConfigError: if there is no such part, it is no list of shards, or one of too many.
        """
        if part not in self.split_parts:
            raise ConfigError(
                f"{self.path}: there is no split part {part!r}; there is {', '.join(self.split_parts) or 'none'}. Ask "
                f"for one of these (split_part), list shards as {part!r} in this file, or convert again with a split, "
                "such as `--split train=0.9,val=0.1`; for a run without validation, write `val: []` there"
            )
        return self._expanded(f"split part {part!r}", self.split_parts[part])

    def excluded(self) -> list[str]:
        """The excluded shards, and excluded samples as `shard/key`.

        Raises:
            ConfigError: if it is no list, or one of too many.
        """
        return self._expanded("exclude", self.exclude)

    def _expanded(self, what: str, patterns: Any) -> list[str]:
        """The names that a list of brace patterns such as `data-{000..009}.tar` stands for."""
        if patterns is None:
            return []
        if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
            raise ConfigError(f"{self.path}: {what}: expected a list of names, got {reprlib.repr(patterns)}")
        names: list[str] = []
        for pattern in patterns:
            try:
                total = len(names) + num_expanded(pattern)
                if total <= self.limits.max_shards:
                    names += _numbered(pattern) or braceexpand.braceexpand(pattern)
            except ValueError as error:
                raise ConfigError(
                    f"{self.path}:{self._line_of(pattern)}: {what}: pattern {reprlib.repr(pattern)} cannot be "
                    f"expanded: {error}"
                ) from None
            if total > self.limits.max_shards:
                raise ConfigError(
                    f"{self.path}:{self._line_of(pattern)}: with pattern {reprlib.repr(pattern)} the names "
                    f"stand for more shards than the {self.limits.max_shards} allowed (Limits(max_shards))"
                )
        return names

    def _line_of(self, text: str) -> int:
        """The first line of the file with `text` in it; 1 if it is written otherwise there."""
        return self.data.count(b"\n", 0, max(0, self.data.find(text.encode(errors="replace")))) + 1


def read_split(meta: Location, split_config: str | None = None, limits: Limits = DEFAULT_LIMITS) -> Split:
    """The split of a data set, from `split.yaml`, `split.json` or the file named `split_config`.

    Raises:
        ConfigError: if the file is missing, is not a split, or exceeds a limit.
    """
    path, data = _first_of(meta, *((SPLIT_YAML, SPLIT_JSON) if split_config is None else (split_config,)))
    content = parse_document(data, path, limits, repeatable=("exclude",))  # users append lists to the file
    parts = content.get("split_parts") if isinstance(content, dict) else None
    if not isinstance(parts, dict):
        raise ConfigError(f"{path}: expected a mapping with `split_parts`, such as `split_parts: {{train: [a.tar]}}`")
    return Split(path, data, {str(part): given for part, given in parts.items()}, content.get("exclude"), limits)


def _first_of(meta: Location, *names: str) -> tuple[Location, bytes]:
    """(path, content) of the first of these files that exists."""
    for name in names:
        data = storage.read_if_there(meta / name)
        if data is not None:
            return meta / name, data
    root = meta.parent
    if isinstance(root, Path) and not root.exists():
        raise ConfigError(f"{root}: no such folder")
    if isinstance(root, Path) and not is_prepared(root) and not has_tars(root):
        raise ConfigError(
            f"{root}: not a prepared data set: its {META_FOLDER} holds no more than the metadata of media, and there "
            f"are no tars; run `{bridge_command('convert', root, 'DST')}`, which makes a data set of its files"
        )
    raise ConfigError(f"{meta / names[0]}: no such file; run `{bridge_command('prepare', root)}`")


def expand_braces(pattern: str, *, escape: bool = True, max_names: int = DEFAULT_LIMITS.max_shards) -> list[str]:
    """The names that a pattern stands for; with `escape`, a backslash takes its meaning from the next character.

    Raises:
        ValueError: if the braces do not match, are nested too deeply, or stand for more than `max_names`.
    """
    if num_expanded(pattern, escape=escape) > max_names:
        raise ValueError(f"it stands for more than the {max_names} names allowed (Limits(max_shards))")
    return list(braceexpand.braceexpand(pattern, escape=escape))


def expand_path(pattern: str, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    """The paths that a pattern of a user stands for.

    Raises:
        ConfigError: as `expand_braces` does.
    """
    try:
        return expand_braces(pattern, max_names=limits.max_shards)
    except ValueError as error:
        raise ConfigError(f"{pattern}: cannot be expanded: {error}") from None


def num_expanded(pattern: str, *, escape: bool = True) -> int:
    """The maximum number of names in a brace pattern, by arithmetic, without creating any.

    Raises:
        ValueError: if braces are nested too deeply.
    """
    if "{" not in pattern:
        return 1
    sums, products = [0], [1]  # of the alternatives before, and of this one, for each open brace
    for match in _BRACES.finditer(pattern if escape else pattern.replace("\\", "")):
        sign = match["sign"]
        if match["first"]:
            products[-1] *= _num_in_range(match["first"], match["last"], match["step"])
        elif match["letters"]:
            products[-1] *= _NUM_LETTERS
        elif sign == "{":
            if len(sums) > _MAX_NESTED_BRACES:
                raise ValueError(f"more than {_MAX_NESTED_BRACES} braces are open at once")
            sums.append(0)
            products.append(1)
        elif sign == "," and len(sums) > 1:
            sums[-1], products[-1] = sums[-1] + products[-1], 1
        elif sign == "}" and len(sums) > 1:
            num_inner = sums.pop() + products.pop()
            products[-1] *= num_inner
        if products[-1] > _MAX_SAMPLES:
            return products[-1]
    return max(total + product for total, product in zip(sums, products, strict=True))


def _num_in_range(first: str, last: str, step: str | None) -> int:
    if max(len(first), len(last), len(step or "")) > _MAX_DIGITS:
        raise ValueError(f"a number in it has more than {_MAX_DIGITS} digits")
    return abs(int(last) - int(first)) // (int(step or 1) or 1) + 1


def _numbered(pattern: str) -> list[str]:
    """The names in a plain name, or in one range of numbers of equal width, as we write it: ten times as fast as
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
        ConfigError: if it cannot be parsed, or exceeds a limit.
    """
    return parse_document(storage.read_all(path), path)


def parse_document(
    data: bytes, path: Location, limits: Limits = DEFAULT_LIMITS, *, repeatable: Collection[str] = ()
) -> Any:
    """`data` parsed, which are the bytes of the file at `path`; see `load_document`. `repeatable` are keys of YAML that
    may be there several times: see `parse_yaml_file`."""
    if path.suffix == ".json":
        return parse_json_file(data, str(path), limits)
    return parse_yaml_file(data, str(path), limits, repeatable=repeatable)
