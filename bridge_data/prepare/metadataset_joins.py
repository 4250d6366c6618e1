"""Preparing a metadataset: making the indexes of its joins.

Enters: the path of a metadataset. Leaves: an index of every join in it and in the metadatasets it refers to, next to
the file that has the join. No class is imported and no sample is read.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from bridge_data.errors import ConfigError
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan.declared import (
    Declared,
    DeclaredBlend,
    DeclaredJoin,
    LoadCache,
    Reference,
    Scope,
    declare,
    read_splits,
)
from bridge_data.plan.document import absolute
from bridge_data.plan.formats import format_of
from bridge_data.plan.join import with_records
from bridge_data.prepare.executors import Progress, no_progress
from bridge_data.prepare.join_keys import make_join
from bridge_data.prepare.tars import PrepareConfig
from bridge_data.shards import Records
from bridge_data.shards.joins import FILE_SUFFIX, JoinIndex, join_folder
from bridge_data.storage import location, on_disk


def prepare_metadataset(
    path: str | os.PathLike[str],
    *,
    num_workers: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    on_progress: Progress = no_progress,
) -> list[JoinIndex]:
    """Make the indexes of all joins of the metadataset at `path`, by `num_workers` processes (None: one a core, at most
    16). Indexes that are up to date stay; those of this file that no join uses any more are removed.
    `limits` apply to the metadatasets and to the metadata of their data sets. `on_progress` is called with the steps
    done and all steps of each join in turn.

    Raises:
        ConfigError: naming file and line, if a join is malformed or its data sets are not prepared.
        DatasetError: if a key occurs twice in a data set, or has no match where it must have one.
    """
    file = absolute(path)
    cache = LoadCache(limits)
    is_yaml = os.path.isfile(file) and file.endswith((".yaml", ".yml"))
    document = cache.document(file) if is_yaml else None
    if document is None:
        raise ConfigError(
            f"{file}: expected a metadataset .yaml{'' if os.path.exists(file) else ', found no such file'}"
        )
    num_workers = PrepareConfig().num_workers if num_workers is None else num_workers
    made: dict[Path, JoinIndex] = {}
    for part in read_splits(document)[1]:
        for join in _joins(declare(Reference(path=file, scope=Scope(split_part=part, cache=cache)))):
            members = with_records(join.join, [_records(member) for member in join.members])
            index = make_join(_folder(join.file), members, num_workers=num_workers, on_progress=on_progress)
            made[index.path] = index
    for stale in _folder(file).glob(f"*{FILE_SUFFIX}"):
        if stale not in made:
            stale.unlink(missing_ok=True)
    return list(made.values())


def _folder(file: str) -> Path:
    return join_folder(on_disk(location(file)))


def _joins(declared: Declared) -> Iterator[DeclaredJoin]:
    if isinstance(declared, DeclaredJoin):
        yield declared
    elif isinstance(declared, DeclaredBlend):
        for child in declared.children:
            yield from _joins(child)


def _records(member: Reference) -> Records:
    """The samples of a member, of which only the keys are needed."""
    with member.placed():
        records = format_of(member.path).with_keys(member)
    if records.join_problem is not None:
        raise member.error(records.join_problem)
    return records
