"""Data sets to join, for tests."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from bridge_data.data import Records, ShardSet, open_shards
from bridge_data.plugins.joins.joins import JoinIndex, JoinMember, Nonmatch, open_join
from bridge_data.plugins.joins.metadataset_joins import make_join
from tests.data.tars import prepare_by_ratio, write_tar


def dataset(folder: Path, shards: Sequence[Sequence[str]], exclude: Sequence[str] = ()) -> ShardSet:
    """A prepared data set whose shards hold samples of these keys; each sample's text is its key."""
    for number, keys in enumerate(shards):
        write_tar(folder / f"{number}.tar", {f"{key}.txt": key.encode() for key in keys})
    prepare_by_ratio(folder, "1,0,0")
    return narrowed(folder, exclude=list(exclude))


def narrowed(folder: Path, **changes: object) -> ShardSet:
    """The training part of `folder`, whose split.yaml is changed so."""
    path = folder / ".nv-meta" / "split.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))
    return open_shards(folder, "train")


def join(folder: Path, primary: Records, *others: tuple[Records, Nonmatch], num_workers: int = 1) -> JoinIndex:
    """The index of their join, made in `folder` and found there."""
    members = [JoinMember(primary, "error"), *(JoinMember(*other) for other in others)]
    made = make_join(folder, members, num_workers=num_workers)
    found = open_join(folder, members)
    assert rows(found) == rows(made)
    return found


def rows(index: JoinIndex) -> list[list[int]]:
    """All rows of an index."""
    return [index.row(number) for number in range(index.num_rows)]
