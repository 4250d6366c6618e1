"""`bridge-data info`: what a prepared data set holds."""

from pathlib import Path
from typing import Any

import click
import yaml

from bridge_data import storage
from bridge_data.cli.layout import counted, listed, sized, spanned
from bridge_data.cli.split_table import split_table
from bridge_data.index.dataset import PreparedDataset
from bridge_data.index.names import BRIDGE_INDEX, DATASET_YAML

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
def info(path: Path) -> None:
    """Show split parts, shards, samples, parts and sample type of the data set in the folder PATH."""
    dataset = PreparedDataset.open(path)
    names = list(dataset.shard_counts)
    num_bytes = sum(map(dataset.shard_bytes, names))
    total = f"{counted(sum(dataset.shard_counts.values()), 'sample')} in {counted(len(names), 'shard')}"
    rows = [
        ("data set", str(path)),
        ("holds", f"{total}, {sized(num_bytes)}"),
        ("shards", spanned(names) if names else "none"),
        ("parts", listed(dataset.part_names(), 20)),
        ("sample type", _sample_type(dataset.meta / DATASET_YAML)),
        ("index", ".tar.idx only; prepare with bridge-data for more speed" if dataset.index is None else BRIDGE_INDEX),
    ]
    for heading, text in rows:
        click.echo(f"{click.style(f'{heading:<12}', bold=True)} {text}")
    click.echo()
    click.echo(split_table(dataset))


def _sample_type(path: Path) -> str:
    """The class and its fields, in one line."""
    if not path.is_file():
        return f"not known, there is no {path.name}"
    try:
        content = yaml.load(storage.read_all(path), _Loader)
    except yaml.YAMLError:
        return f"not known, {path} is not readable as YAML"
    if not isinstance(content, dict):
        return f"not known, {path} holds no mapping"
    holder = content.get("sample_type", content)
    name = str(holder.get("__class__", "not known")) if isinstance(holder, dict) else "not known"
    field_map = content.get("field_map")
    if isinstance(field_map, dict):
        return f"{name}({', '.join(f'{field} ← {part}' for field, part in field_map.items())})"
    return name
