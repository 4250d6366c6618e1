"""Auxiliary data: what cookers may read besides the sample, declared under `aux` in a metadataset.

    aux:
      images: ../images                  # a prepared data set, whose parts are read by `key.part`
      pages: filesystem://../scans       # a folder, whose files are read by their paths in it
      remote: filesystem+msc://profile/scans

Reads the node. Returns an `AuxReference` for each name. Raises a `ConfigError` if such data do not exist.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Literal

from bridge_data import storage
from bridge_data.data.metadata import INFO_JSON, INFO_YAML, META_FOLDER
from bridge_data.data.plain_data import Node
from bridge_data.data.prepared import withheld_keys
from bridge_data.storage import located

_URL = re.compile(r"(?P<protocol>[A-Za-z][\w.+-]*)://(?P<path>.*)", re.DOTALL)
_FOLDER = "filesystem"


@dataclasses.dataclass(frozen=True, slots=True)
class AuxReference:
    """Auxiliary data called `name` at `path`, absolute or a URL: a prepared data set, or a folder of files. `given` is
    the text in the YAML; `forgotten` are (shard, key) of its samples that are forgotten, as of the opening of the plan,
    so that all processes of a run leave out the same."""

    name: str
    path: str
    kind: Literal["dataset", "folder"]
    given: str
    forgotten: Collection[tuple[str, str]] = ()


def read_aux(node: Node, file: str) -> dict[str, AuxReference]:
    """The auxiliary data in `node`, the value of `aux` in the metadataset `file`."""
    return {name: _reference(name, entry, file) for name, entry in node.mapping("aux").items()}


def _reference(name: str, node: Node, file: str) -> AuxReference:
    if isinstance(node.value, dict):
        entries = node.mapping(f"aux {name!r}", ("path", "fs_path"))
        if len(entries) != 1:
            raise node.error(
                f"aux {name!r}: expected one of `path` (a prepared data set) and `fs_path` (a folder), got "
                f"{node.shown()}"
            )
        ((key, entry),) = entries.items()
        given = entry.text(f"aux {name!r}: {key}")
        with entry.placed():
            return AuxReference(name, located(given, file), "dataset" if key == "path" else "folder", given)
    path = given = node.text(f"aux {name!r}")
    match = _URL.fullmatch(given)
    first, plus, second = match["protocol"].partition("+") if match else ("", "", "")
    is_folder = first == _FOLDER and "+" not in second
    if match and is_folder:
        path = f"{second}://{match['path']}" if plus else match["path"]
    elif plus:
        raise node.error(
            f"aux {name!r}: unknown form {first}{plus}{second}://; expected a path, filesystem://FOLDER or "
            "filesystem+PROTOCOL://FOLDER"
        )
    with node.placed():
        return AuxReference(name, located(path, file), "folder" if is_folder else "dataset", given)


def checked_aux(references: Mapping[str, AuxReference], node: Node) -> dict[str, AuxReference]:
    """The auxiliary data that `node` names, which exist, with what is forgotten of them."""
    found = {}
    for reference in references.values():
        fail = node.mapping("aux")[reference.name].error
        if storage.is_file(reference.path):
            raise fail(
                f"aux {reference.name!r}: {reference.path} is a file; expected a prepared data set, or filesystem://"
                "FOLDER"
            )
        if not storage.is_folder(reference.path):
            raise fail(f"aux {reference.name!r}: {reference.path}: no such folder")
        meta = storage.location(reference.path) / META_FOLDER
        if reference.kind == "dataset" and not any(storage.is_file(meta / name) for name in (INFO_JSON, INFO_YAML)):
            raise fail(
                f"aux {reference.name!r}: {reference.path} is not a prepared data set; run `bridge-data prepare "
                f"{reference.path}`, or write filesystem://{reference.given} for a folder of files"
            )
        gone = withheld_keys(storage.location(reference.path)) if reference.kind == "dataset" else ()
        found[reference.name] = dataclasses.replace(reference, forgotten=gone)
    return found
