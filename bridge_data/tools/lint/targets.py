"""What to check for a path: folders of shards, with recipes of their samples, and sources that are checked by loading
them (JSONL files, joins, samples made by code).

Enters: a path and split parts. Leaves: `Targets`, and faults for what cannot be opened. No shard is opened.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan import EmptySplitError, Source
from bridge_data.plan.declared import Declared, DeclaredBlend, LoadCache, Reference, Scope, declare
from bridge_data.plan.document import absolute, as_node, is_jsonl
from bridge_data.plan.join import join_source
from bridge_data.plan.opening import Opening, cut, has_tables, open_plan, open_reference, split_parts
from bridge_data.prepare.tars import find_shards
from bridge_data.shards import Records, ShardSet
from bridge_data.shards.jsonl_file import JsonlLines, split_gaps
from bridge_data.shards.metadata import META_FOLDER
from bridge_data.shards.prepared import PreparedDataset
from bridge_data.shards.records import without_views
from bridge_data.shards.subset import Subset
from bridge_data.shards.tar_bytes import GZIP_SUFFIXES
from bridge_data.storage import on_disk
from bridge_data.tools.lint.check_samples import Recipe
from bridge_data.tools.lint.check_shards import Report
from bridge_data.tools.lint.faults import Fault


@dataclasses.dataclass(slots=True)
class Folder:
    """A data set: its shards with their sample counts, and for some of them recipes and excluded samples. If it is not
    prepared, counts are unknown, and are 0."""

    root: Path
    counts: dict[str, int]
    is_prepared: bool = True
    recipes: dict[str, list[Recipe]] = dataclasses.field(default_factory=dict)
    excluded: dict[str, set[str]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """A source whose samples in `ranges` are loaded; `is_counted` unless they are counted by shard."""

    source: Source
    ranges: list[tuple[int, int]]
    is_counted: bool


@dataclasses.dataclass(slots=True)
class Targets:
    """What to check; folders by their absolute path."""

    folders: dict[str, Folder] = dataclasses.field(default_factory=dict)
    loaded: list[Loaded] = dataclasses.field(default_factory=list)

    def load(self, source: Source, *, is_counted: bool) -> None:
        """Add a source, without lines of a file that another source loads: split parts may share them."""
        ranges, first = [(0, source.num_samples)], _first_line(source.records)
        for other in self.loaded if first is not None else ():
            line = _first_line(other.source.records)
            if line is not None and first is not None and other.source.path == source.path:
                ranges = _without(ranges, [(start + line - first, end + line - first) for start, end in other.ranges])
        self.loaded.append(Loaded(source, ranges, is_counted))


def find_targets(
    path: Path,
    parts: Sequence[str],
    report: Report,
    opening: Opening,
    named_files: Mapping[str, str],
    limits: Limits = DEFAULT_LIMITS,
) -> Targets:
    """What to check for `path`: a folder of tars or a tar, a JSONL file or a metadataset. With `parts` of the split,
    only those. `opening` says what code may be run, `named_files` which files describe a prepared folder; `limits` are
    size limits of the data.

    Raises:
        ConfigError: if nothing is there.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such folder or file")
    targets, is_whole = Targets(), not parts
    if path.name.endswith((".tar", *GZIP_SUFFIXES)) and path.is_file():
        _add_raw(targets, path.parent, [path.name], report)
        return targets
    tables = has_tables(str(path))
    if path.is_dir() and not tables and not (path / META_FOLDER).exists() and is_whole:
        _add_raw(targets, path, find_shards(path), report)
        return targets
    if path.is_dir() and not tables:
        _add_folder(targets, path, report, limits, all_shards=not parts)
    try:
        if not parts and "split_config" in named_files:
            parts = PreparedDataset.open(path, limits).split_parts(named_files["split_config"])
        elif not parts:
            parts = split_parts(path, limits)
        if is_whole and is_jsonl(str(path)):
            for count, code, where in zip(
                split_gaps(path), ("unused-lines", "shared-lines"), ("no part", "several parts"), strict=True
            ):
                if count:
                    report(Fault(code, f"{count:,} of its samples are in {where}", str(path)))
    except BridgeDataError as error:
        report(Fault("config", str(error), str(path)))
        parts = []
    failures: dict[str, list[str]] = {}
    for part in parts:
        for source in _sources(path, Scope(split_part=part, cache=LoadCache(limits)), failures, opening, named_files):
            _add_source(targets, source, report)
    for text, failed in failures.items():
        report(Fault("config", f"split part {', '.join(failed)}: {text}", str(path)))
    return targets


def _add_raw(targets: Targets, root: Path, names: Sequence[str], report: Report) -> None:
    """Tars that are not prepared."""
    report(Fault("unprepared", "only the tars, and whether their parts can be decoded, are checked", str(root)))
    targets.folders[absolute(str(root))] = Folder(
        root, dict.fromkeys(names, 0), is_prepared=False, recipes={name: [] for name in names}
    )


def _sources(
    path: Path, scope: Scope, failures: dict[str, list[str]], opening: Opening, named_files: Mapping[str, str]
) -> Iterator[Source]:
    """Every source of a split part that can be opened; errors of the others go to `failures`, with the part."""
    errors: list[BridgeDataError] = []
    try:
        entries = {key: as_node(name, str(path)) for key, name in named_files.items()}
        declared = declare(Reference(path=absolute(str(path)), scope=scope, entries=entries))
        yield from _opened(declared, opening, errors)
        if not errors:
            open_plan(declared, opening, f"{path}: the split part {scope.split_part!r}")
    except EmptySplitError:
        pass
    except BridgeDataError as error:
        errors.append(error)
    for failure in errors:
        failures.setdefault(str(failure), []).append(scope.split_part)


def _opened(declared: Declared, opening: Opening, errors: list[BridgeDataError]) -> Iterator[Source]:
    if isinstance(declared, DeclaredBlend):
        for child in declared.children:
            yield from _opened(child, opening, errors)
        return
    try:
        if isinstance(declared, Reference):
            yield open_reference(declared, opening)
            return
        members = [source for member in declared.members for source in _opened(member, opening, errors)]
        if len(members) == len(declared.members):
            yield cut(join_source(declared.join, members, declared.file, opening.trusted_modules), declared)
        else:
            yield from members
    except BridgeDataError as error:
        errors.append(error)


def _add_folder(targets: Targets, root: Path, report: Report, limits: Limits, *, all_shards: bool) -> Folder | None:
    """The folder `root`, opened once; with `all_shards`, all of its shards."""
    key = absolute(str(root))
    folder = targets.folders.get(key)
    if folder is None:
        try:
            dataset = PreparedDataset.open(root, limits)
        except BridgeDataError as error:
            report(Fault("config", str(error), str(root)))
            return None
        folder = targets.folders[key] = Folder(root, dataset.shard_counts)
        if all_shards:
            folder.recipes = {name: [] for name in dataset.shard_counts}
    return folder


def _add_source(targets: Targets, source: Source, report: Report) -> None:
    """A source: its shards, those of its joins, and the other files that its cookers read."""
    if source.joined is not None:
        for member in source.joined.members:
            _add_source(targets, member, report)
    shards = shards_of(source.records)
    if shards is None or source.maker is not None:
        targets.load(source, is_counted=shards is None and source.joined is None)
    if shards is not None:
        folder = _add_folder(targets, on_disk(shards.root), report, source.limits, all_shards=False)
        if folder is not None:
            _add_shards(folder, source, shards)
    for reference in source.aux.values():
        if reference.kind == "dataset" and "://" not in reference.path:
            _add_folder(targets, Path(reference.path), report, source.limits, all_shards=True)


def _first_line(records: Records) -> int | None:
    """The line number of the first of these samples; None if they are not of a JSONL file."""
    first = 0
    while isinstance(records, Subset):
        first += records.start
        records = records.records
    return first if isinstance(records, JsonlLines) else None


def _without(ranges: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """`ranges` without the numbers that are in `others`."""
    for first, last in others:
        pieces = [((start, min(end, first)), (max(start, last), end)) for start, end in ranges]
        ranges = [piece for pair in pieces for piece in pair if piece[0] < piece[1]]
    return list(ranges)


def _add_shards(folder: Folder, source: Source, shards: ShardSet) -> None:
    recipe = Recipe(source.sample_class, source.field_map, source.parts)
    for name in shards.names:
        recipes = folder.recipes.setdefault(name, [])
        if source.field_map and source.maker is None and recipe not in recipes:
            recipes.append(recipe)
    for entry in shards.excluded:
        shard, key = _split_entry(entry, folder.counts)
        folder.excluded.setdefault(shard, set()).add(key)


def _split_entry(entry: str, shards: dict[str, int]) -> tuple[str, str]:
    """(shard, key) of an exclusion `shard/key`; both may have slashes."""
    at = entry.find("/")
    while at >= 0 and entry[:at] not in shards:
        at = entry.find("/", at + 1)
    return entry[:at], entry[at + 1 :]


def shards_of(records: Records) -> ShardSet | None:
    """The shards of the records; None if they are not tars."""
    below = without_views(records)
    return below if isinstance(below, ShardSet) else None
