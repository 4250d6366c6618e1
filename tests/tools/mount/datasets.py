"""A prepared data set with keys in folders, and what it should look like."""

from functools import partial
from pathlib import Path

from bridge_data.prepare.tars import parse_ratio, prepare, split_by_ratio
from tests.shards.tars import write_tar

SHARDS = {
    "one/data-0.tar": {"b.txt": b"bee", "b.left.png": b"left", "b-c.txt": b"dash", "in/x.txt": b"x" * 5000},
    "one/data-1.tar": {"in/y.txt": b"y", "in/deep/z.txt": b"", "in.txt": b"both a sample and a folder"},
    "last.tar": {"ä.json": b"{}", "in/deep/zz.json": b"[]"},
}

MEMBERS = {name: content for members in SHARDS.values() for name, content in members.items()}


def write_dataset(folder: Path) -> Path:
    """The data set."""
    for name, members in SHARDS.items():
        write_tar(folder / name, members)
    prepare(folder, partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
    return folder
