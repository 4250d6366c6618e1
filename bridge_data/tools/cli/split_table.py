"""The table of a data set's split parts."""

from bridge_data.shards.prepared import PreparedDataset
from bridge_data.tools.cli.tables import sized, table


def split_table(dataset: PreparedDataset) -> str:
    """Shards, samples and bytes by split part, and those that are in none."""
    rows: list[list[str]] = []
    named: set[str] = set()
    for part in dataset.split_parts():
        shards = dataset.split(part)
        named.update(shards.names)
        num_bytes = sum(map(dataset.shard_bytes, shards.names))
        rows.append([part, f"{len(shards.names):,}", f"{shards.num_samples:,}", sized(num_bytes)])
    rest = [name for name in dataset.shard_counts if name not in named]
    if rest:
        counts = sum(dataset.shard_counts[name] for name in rest)
        rows.append(["(in no part)", f"{len(rest):,}", f"{counts:,}", sized(sum(map(dataset.shard_bytes, rest)))])
    return table(["split part", "shards", "samples", "bytes"], rows)
