"""Cost indexes for tests, without an encoder."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bridge_data.data import Records
from bridge_data.data.records import counts_of, fingerprint_of, split_part_of, stored_records
from bridge_data.plan import load_plan
from bridge_data.plugins.planned.costs import CostFacts, arrays_of, costs_path, shard_stamps, write_costs

KEY = "0123456789abcdef"


def save_costs(
    records: Records,
    samples: Sequence[Sequence[Mapping[str, int]]],
    names: Sequence[str] = ("tokens",),
    key: str = KEY,
    encoder: str = "tests.Encoder",
) -> Path:
    """Write the costs of the parts of all samples of the stored records below `records`."""
    base = stored_records(records)
    assert len(samples) == base.num_samples
    arrays = arrays_of(samples, names)
    stamps, begin = shard_stamps(base), 0
    shards: list[tuple[str, int, int, dict[str, tuple[int, str]]]] = []
    for stamp, count in zip(stamps, counts_of(base), strict=True):
        num_parts = sum(map(len, samples[begin : begin + count]))
        shards.append((stamp, count, num_parts, {}))
        begin += count
    facts = CostFacts(
        key=key,
        encoder=encoder,
        data=fingerprint_of(base),
        split_part=split_part_of(base),
        names=tuple(names),
        totals=tuple(int(column.sum()) for column in arrays.columns),
        shards=tuple(shards),
    )
    path = costs_path(base, key)
    assert isinstance(path, Path)
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        write_costs(file, arrays, facts)
    return path


def save_costs_of_blend(path: Path, encoder: Any, costs: Callable[[int], Sequence[int]]) -> None:
    """Write the tokens of all samples of the training data at `path`: of each part of sample number n of its source."""
    for source in load_plan(path).sources:
        samples = [[{"tokens": cost} for cost in costs(number)] for number in range(source.records.num_samples)]
        save_costs(source.records, samples, key=encoder.costs_key(source))
