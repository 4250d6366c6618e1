"""Reading `.nv-meta`: what Energon 7, its predecessors and we write there.

Enters: a folder. Leaves: samples per shard, shards and exclusions of a split part. Touches no shard.

Source: the file formats of Megatron-Energon, https://nvidia.github.io/Megatron-Energon/basic/data_prep.html
"""

import json
from pathlib import Path
from typing import Any

import braceexpand
import yaml

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.index.names import INDEX_UUID, INFO_JSON, INFO_YAML, META_FOLDER, SPLIT_JSON, SPLIT_YAML

_YamlLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def meta_folder(root: Path) -> Path:
    """The `.nv-meta` folder of the data set at `root`.

    Raises:
        ConfigError: if there is no such data set, or it is not prepared.
    """
    if not root.exists():
        raise ConfigError(f"{root}: no such folder")
    if not root.is_dir():
        raise ConfigError(f"{root}: expected the folder of a data set, got a file")
    folder = root / META_FOLDER
    if not folder.is_dir():
        raise ConfigError(
            f"{root}: not a prepared data set, it has no {META_FOLDER} folder; run `bridge-data prepare {root}`"
        )
    return folder


def read_shard_counts(meta: Path) -> dict[str, int]:
    """Samples of each shard, by its path relative to the data set, from `.info.json` or the older `.info.yaml`.

    Raises:
        ConfigError: if there is neither. DatasetError: if it cannot be understood.
    """
    path = next((meta / name for name in (INFO_JSON, INFO_YAML) if (meta / name).is_file()), None)
    if path is None:
        raise ConfigError(f"{meta / INFO_JSON}: no such file; run `bridge-data prepare {meta.parent}`")
    content = load_document(path)
    counts = content.get("shard_counts") if isinstance(content, dict) else None
    if not isinstance(counts, dict):
        raise DatasetError(f"{path}: expected a mapping with `shard_counts`; run `bridge-data prepare` again")
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise DatasetError(f"{path}: shard {name!r}: expected a number of samples, got {count!r}")
    return counts


def read_uuid(meta: Path) -> str | None:
    """The identity of the preparation; older Energon versions gave none."""
    path = meta / INDEX_UUID
    return storage.read_all(path).decode().strip() if path.is_file() else None


def read_split(meta: Path, split_config: str | None = None) -> tuple[dict[str, list[str]], list[str]]:
    """(shards of each part, exclusions), brace patterns expanded, from `split.yaml`, `split.json` or `split_config`.

    Raises:
        ConfigError: if the file is missing or is not a split.
    """
    names = (split_config,) if split_config is not None else (SPLIT_YAML, SPLIT_JSON)
    path = next((meta / name for name in names if (meta / name).is_file()), None)
    if path is None:
        raise ConfigError(f"{meta / names[0]}: no such file; run `bridge-data prepare {meta.parent}`")
    content = load_document(path)
    parts = content.get("split_parts") if isinstance(content, dict) else None
    if not isinstance(parts, dict):
        raise ConfigError(f"{path}: expected a mapping with `split_parts`, such as `split_parts: {{train: [a.tar]}}`")
    expanded = {str(part): _expand(path, f"split part {part!r}", patterns) for part, patterns in parts.items()}
    return expanded, _expand(path, "exclude", content.get("exclude"))


def _expand(path: Path, what: str, patterns: Any) -> list[str]:
    """The names that brace patterns such as `data-{000..009}.tar` stand for."""
    if patterns is None:
        return []
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ConfigError(f"{path}: {what}: expected a list of names, got {patterns!r}")
    names: list[str] = []
    for pattern in patterns:
        try:
            names.extend(braceexpand.braceexpand(pattern) if "{" in pattern or "\\" in pattern else (pattern,))
        except ValueError as error:
            raise ConfigError(f"{path}: {what}: pattern {pattern!r} cannot be expanded: {error}") from None
    return names


def load_document(path: Path) -> Any:
    """What the YAML file `path` holds, or the JSON file, if it is called so.

    Raises:
        ConfigError: if it is not readable as that.
    """
    data = storage.read_all(path)
    try:
        return json.loads(data) if path.suffix == ".json" else yaml.load(data, _YamlLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not readable as YAML: {error.problem}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: not readable as JSON: {error.msg}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable: {error}") from None
