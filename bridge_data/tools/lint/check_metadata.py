"""Checking `.nv-meta`: whether its files agree with each other and with the folder. No shard is opened."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bridge_data.errors import BridgeDataError
from bridge_data.prepare.tars import find_shards
from bridge_data.shards.bridge_index import BridgeIndex
from bridge_data.shards.metadata import (
    BRIDGE_INDEX,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    SPLIT_JSON,
    SPLIT_YAML,
    load_document,
    read_shard_counts,
    read_split,
    read_uuid,
)
from bridge_data.tools.lint.faults import Fault


def check_metadata(root: Path) -> Iterator[Fault]:
    """What is wrong with the metadata of the data set in the folder `root`."""
    dataset, meta = str(root), root / META_FOLDER
    try:
        counts = read_shard_counts(meta)
    except BridgeDataError as error:
        yield Fault("metadata-damaged", str(error), dataset)
        return
    yield from _check_twins(meta, dataset)
    for name in counts:
        if not (root / name).is_file():
            yield Fault(
                "missing-shard", f"{INFO_JSON} has {counts[name]} samples in it, but there is no file", dataset, name
            )
    for name in _tars(root):
        if name not in counts:
            yield Fault("unprepared-shard", f"{INFO_JSON} does not know it", dataset, name)
    try:
        parts, exclude = read_split(meta)
    except BridgeDataError as error:
        yield Fault("metadata-damaged", str(error), dataset)
    else:
        yield from _check_split(parts, exclude, counts, dataset)
    index = BridgeIndex.open(meta / BRIDGE_INDEX)
    if index is None:
        if (meta / BRIDGE_INDEX).is_file():
            yield Fault("index-outdated", f"{BRIDGE_INDEX} is damaged, or of another version", dataset)
    elif not index.describes(counts, read_uuid(meta)):
        yield Fault("index-outdated", f"{BRIDGE_INDEX} is of another preparation than {INFO_JSON}", dataset)


def _check_twins(meta: Path, dataset: str) -> Iterator[Fault]:
    """Files that say the same in two formats must say the same."""
    for first, second in ((INFO_JSON, INFO_YAML), (SPLIT_YAML, SPLIT_JSON)):
        if not ((meta / first).is_file() and (meta / second).is_file()):
            continue
        try:
            same = load_document(meta / first) == load_document(meta / second)
        except BridgeDataError as error:
            yield Fault("metadata-damaged", str(error), dataset)
            continue
        if not same:
            yield Fault("metadata-disagree", f"{first} and {second} differ; {first} is the one that counts", dataset)


def _check_split(
    parts: dict[str, list[str]], exclude: list[str], counts: dict[str, int], dataset: str
) -> Iterator[Fault]:
    used = set(exclude)
    for part, names in parts.items():
        for name, times in Counter(names).items():
            if name not in counts:
                yield Fault("split-unknown-shard", f"split part {part!r} has it, but {INFO_JSON} not", dataset, name)
            elif times > 1:
                yield Fault("split-repeated-shard", f"{times} times in split part {part!r}", dataset, name)
        used.update(names)
    for name in counts:
        if name not in used:
            yield Fault("unused-shard", f"in none of {', '.join(parts) or 'no parts at all'}", dataset, name)
    for entry in exclude:
        shards = {entry[:at] for at, character in enumerate(entry) if character == "/"}
        if entry not in counts and shards.isdisjoint(counts):
            yield Fault("exclude-unknown", f"`exclude` names {entry!r}, but there is no such shard", dataset)


def _tars(root: Path) -> list[str]:
    try:
        return find_shards(root)
    except BridgeDataError:
        return []
