"""How a training order deals the samples of a data set: chunks, windows, and what a lane has of an epoch."""

from bridge_data.order import Geometry
from bridge_data.order.chunks import ChunkTable, overlap
from bridge_data.order.plan_order import Shuffle
from bridge_data.plan.source import Source
from bridge_data.tools.cli.terminal import counted


def lane_shares(source: Source, num_lanes: int, shuffle: Shuffle) -> list[tuple[str, str]]:
    """(heading, text) of each row."""
    geometry = Geometry.choose(
        source.records.counts,
        num_lanes=num_lanes,
        max_samples_per_sequence=shuffle.max_samples_per_sequence,
        shuffle_buffer_size=shuffle.shuffle_buffer_size,
        sample_bytes=source.records.sample_bytes,
    )
    chunks = ChunkTable(source.records.counts, geometry.chunk_size)
    lengths = _range(chunks.shortest, chunks.longest)
    mixed = f"of at least {geometry.window_size:,} samples, or a lane's share"
    rows = [
        ("samples", f"{source.num_samples:,} of {source.name}, for {counted(num_lanes, 'lane')}"),
        ("chunks", f"{chunks.num_chunks:,} of {lengths}, in blocks of at most {geometry.block_size:,}"),
        ("windows", mixed if geometry.window_size else "none, each chunk is read front to back"),
    ]
    if source.epochs_per_shuffle != 1:
        times = f"shuffle_over_epochs_multiplier {source.epochs_per_shuffle}"
        return [*rows, ("repeats", f"not known for one epoch, because of {times}")]
    found, percent = overlap(chunks, num_lanes), 100 / source.num_samples
    equal = source.num_samples / num_lanes
    mean = f"{equal:,.0f} on the average, with a standard deviation of {found.share_std:,.1f}"
    typical = f"about {found.mean_repeats:,.0f} ({found.mean_repeats * percent:.1f}%)"
    most = f"at most {found.most_repeats:,} ({found.most_repeats * percent:.1f}%)"
    return [
        *rows,
        ("a lane has", f"{_range(found.fewest, found.most)} of an epoch: {mean}"),
        ("repeats", f"of {source.num_samples:,} draws {typical} come twice before others come once, {most}"),
    ]


def _range(least: int, most: int) -> str:
    return f"{most:,} samples" if least == most else f"{least:,} to {most:,} samples"
