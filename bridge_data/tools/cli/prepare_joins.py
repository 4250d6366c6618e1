"""`bridge-data prepare blend.yaml`: the indexes of the joins of a metadataset."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from bridge_data.errors import ConfigError
from bridge_data.prepare.metadataset_joins import prepare_metadataset
from bridge_data.shards.join_index import JoinIndex
from bridge_data.tools.cli.bar import progress_bar
from bridge_data.tools.cli.tables import counted

_FLAGS = frozenset({"path", "non_interactive", "num_workers", "progress"})


def prepare_joins(path: Path, flags: Mapping[str, Any]) -> None:
    """Make the indexes of the joins in the metadataset `path`, and tell what they hold; `flags` are those of `prepare`.

    Raises:
        ConfigError: if a flag is given that means nothing here, or the metadataset is not right. DatasetError: if its
        data sets cannot be joined.
    """
    context = click.get_current_context()
    for name in flags.keys() - _FLAGS:
        if context.get_parameter_source(name) not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP, None):
            raise ConfigError(f"--{name.replace('_', '-')} is for folders of tars, but {path} is a metadataset")
    with progress_bar("joining", "steps", shown=flags["progress"]) as on_progress:
        made = prepare_metadataset(path, num_workers=flags["num_workers"], on_progress=on_progress)
    for index in made:
        click.echo("\n".join(_told(index)))
    if not made:
        click.echo(f"{path}: has no join, so there is nothing to prepare")


def _told(index: JoinIndex) -> list[str]:
    first = index.members[0]
    lines = [f"join on {first.path} [{first.split_part}]: {counted(index.num_rows, 'sample')}"]
    if index.num_left_out:
        lines[0] += f", {index.num_left_out:,} left out"
    for member in index.members[1:]:
        missing = f", none for {member.num_missing:,} (nonmatch: {member.nonmatch})" if member.num_missing else ""
        lines.append(f"  {member.path} [{member.split_part}]: {counted(member.num_samples, 'sample')}{missing}")
    return lines
