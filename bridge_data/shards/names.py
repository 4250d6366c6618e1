"""Names in the Energon format: members of a shard, files beside the data.

A member `images/0001.left.png` is part `left.png` of sample `images/0001`: the key is the path up to the first dot of
the file name. Members under a name like `__meta__` are not data.

Source: the WebDataset naming convention, https://github.com/webdataset/webdataset
"""

import re
from pathlib import Path
from typing import overload

from bridge_data.storage import Location, location

META_FOLDER = ".nv-meta"
INFO_JSON = ".info.json"
INFO_YAML = ".info.yaml"
SPLIT_YAML = "split.yaml"
SPLIT_JSON = "split.json"
DATASET_YAML = "dataset.yaml"
INDEX_SQLITE = "index.sqlite"
INDEX_UUID = "index.uuid"
BRIDGE_INDEX = "index.bridge"
JSONL_SUFFIX = ".jsonl"

_HIDDEN_PART = re.compile(r"((?:.*/)?[^./]*/)\.([^/]*)", re.DOTALL)
"""Of `a/.txt` the key is `a/`."""

_META_MEMBER = re.compile(r"__[^/]*__(/|$)")
_SHARD = re.compile(r"(?:[^/]+/)*?[^/]+\.(?:tar|tgz|tar\.gz)/(?=.)", re.DOTALL)


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


def without_shard(name: str) -> str | None:
    """`images/0001.jpg` of `a/b.tar/images/0001.jpg`; None if no shard is named in it."""
    match = _SHARD.match(name)
    return None if match is None else name[match.end() :]


@overload
def tar_index_path(shard: str | Path) -> Path: ...
@overload
def tar_index_path(shard: Location) -> Location: ...
def tar_index_path(shard: str | Location) -> Location:
    """Where the offsets of the samples of `shard` are kept: `a/b.tar` has them in `a/b.tar.idx`."""
    return location(shard).with_suffix(".tar.idx")


def is_meta_member(name: str) -> bool:
    """Whether the member `name` is set apart as no data, like `__meta__/readme`."""
    return name.startswith("__") and _META_MEMBER.match(name) is not None
