"""What to check for a path: folders of shards, with recipes of their samples, and sources that are checked by loading
them (JSONL files, joins, samples made by code).

Enters: a path and a `LintConfig`. Leaves: `Targets`, and faults for what cannot be opened. No shard is opened.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.options import check_at_least
from bridge_data.plan import EmptySplitError, Source
from bridge_data.plan.declared import Declared, DeclaredBlend, LoadCache, Reference, Scope, declare
from bridge_data.plan.document import absolute, as_node
from bridge_data.plan.formats import Opening, find_format
from bridge_data.plan.join import join_source
from bridge_data.plan.opening import cut, open_plan, open_reference, split_parts
from bridge_data.plan.where_clauses import WhereOptionError, given_where
from bridge_data.prepare.executors import Executor, usual_workers
from bridge_data.prepare.tars import find_shards
from bridge_data.shards import Records, ShardSet
from bridge_data.shards.jsonl_file import split_gaps
from bridge_data.shards.metadata import META_FOLDER
from bridge_data.shards.prepared import PreparedDataset, tars_of
from bridge_data.shards.records import selected_number, stored_number
from bridge_data.shards.tar_files import GZIP_SUFFIXES
from bridge_data.storage import on_disk
from bridge_data.tools.lint.check_samples import Recipe
from bridge_data.tools.lint.check_shards import Report
from bridge_data.tools.lint.faults import Fault


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LintConfig:
    """What to check: `split_parts` (empty: all shards); at most `limit` samples of each data set; without `decode`,
    only whether samples are stored correctly and have their parts. `max_kept` faults of a kind keep shard and key.
    `executor` does the work; None: `num_workers` processes. `limits` are size limits of the data, `opening` says what
    code may be run. `dataset_config` and `split_config` replace `dataset.yaml` and `split.yaml` of a prepared folder.
    With `where` (and `columns`), only the samples are decoded and made that a run with these options has.
    """

    split_parts: tuple[str, ...] = ()
    dataset_config: str | None = None
    split_config: str | None = None
    where: str | None = None
    columns: str | None = None
    num_workers: int = dataclasses.field(default_factory=usual_workers)
    executor: Executor | None = None
    limit: int | None = None
    decode: bool = True
    max_kept: int = 1000
    limits: Limits = DEFAULT_LIMITS
    opening: Opening = dataclasses.field(default_factory=lambda: Opening(training=False))

    @property
    def named_files(self) -> dict[str, str]:
        """The named configuration files."""
        given = {"dataset_config": self.dataset_config, "split_config": self.split_config}
        return {key: name for key, name in given.items() if name is not None}

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_workers", "limit", "max_kept")
        given_where(self.where, self.columns)


@dataclasses.dataclass(frozen=True, slots=True)
class ShardUse:
    """What a source makes of the samples of a shard (None: nothing that can be checked), and which it has: those of
    `chosen` in its shard number `shard`; None: all."""

    recipe: Recipe | None = None
    chosen: Records | None = None
    shard: int = 0

    def positions(self) -> frozenset[int] | None:
        """The positions of the samples in the shard; None: all."""
        if self.chosen is None:
            return None
        shards = tars_of(self.chosen)
        assert shards is not None
        samples = range(*shards.starts[self.shard : self.shard + 2])
        chosen = (sample for sample in samples if selected_number(self.chosen, sample) is not None)
        return frozenset(shards.locate(sample)[1] for sample in chosen)


@dataclasses.dataclass(slots=True)
class Folder:
    """A data set: its shards with their sample counts, and for some of them uses and excluded samples. If it is not
    prepared, counts are unknown, and are 0."""

    root: Path
    counts: dict[str, int]
    is_prepared: bool = True
    uses: dict[str, list[ShardUse]] = dataclasses.field(default_factory=dict)
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
        ranges, first = [(0, source.num_samples)], _first_line(source)
        for other in self.loaded if first is not None else ():
            line = _first_line(other.source)
            if line is not None and first is not None and other.source.path == source.path:
                ranges = _without(ranges, [(start + line - first, end + line - first) for start, end in other.ranges])
        self.loaded.append(Loaded(source, ranges, is_counted))


def find_targets(path: Path, config: LintConfig, report: Report) -> Targets:
    """What to check for `path`: a folder of tars or a tar, a JSONL file or a metadataset.

    Raises:
        ConfigError: if nothing is there, or `where` is wrong or chooses nothing of some data.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such folder or file")
    targets, parts, limits = Targets(), config.split_parts, config.limits
    is_whole, is_tar = not parts, path.name.endswith((".tar", *GZIP_SUFFIXES)) and path.is_file()
    data = find_format(str(path))
    has_shards = path.is_dir() and (data is None or data.name != "tables")
    all_samples = [] if config.where is not None else [ShardUse()]
    if is_tar or (has_shards and not (path / META_FOLDER).exists() and is_whole):
        root, names = (path.parent, [path.name]) if is_tar else (path, find_shards(path))
        report(Fault("unprepared", "only the tars, and whether their parts can be decoded, are checked", str(root)))
        uses = {name: [*all_samples] for name in names}
        targets.folders[absolute(str(root))] = Folder(root, dict.fromkeys(names, 0), is_prepared=False, uses=uses)
        if config.where is None:
            return targets
    elif has_shards:
        _add_folder(targets, path, report, limits, all_samples if is_whole else None)
    try:
        if not parts and config.split_config is not None:
            parts = tuple(PreparedDataset.open(path, limits).split_parts(config.split_config))
        elif not parts:
            parts = tuple(split_parts(path, limits))
        if is_whole and data is not None and data.name == "jsonl":
            for count, code, where in zip(
                split_gaps(path), ("unused-lines", "shared-lines"), ("no part", "several parts"), strict=True
            ):
                if count:
                    report(Fault(code, f"{count:,} of its samples are in {where}", str(path)))
    except BridgeDataError as error:
        report(Fault("config", str(error), str(path)))
        parts = ()
    failures: dict[str, list[str]] = {}
    for part in parts:
        for source in _sources(path, part, failures, config):
            _add_source(targets, source, report)
    for text, failed in failures.items():
        report(Fault("config", f"split part {', '.join(failed)}: {text}", str(path)))
    return targets


def _sources(path: Path, part: str, failures: dict[str, list[str]], config: LintConfig) -> Iterator[Source]:
    """Every source of a split part that can be opened; errors of the others go to `failures`, with the part."""
    errors: list[BridgeDataError] = []
    scope = Scope(split_part=part, cache=LoadCache(config.limits), where=given_where(config.where, config.columns))
    try:
        entries = {key: as_node(name, str(path)) for key, name in config.named_files.items()}
        declared = declare(Reference(path=absolute(str(path)), scope=scope, entries=entries))
        yield from _opened(declared, config.opening, errors)
        if not errors:
            open_plan(declared, config.opening, f"{path}: the split part {part!r}")
    except EmptySplitError:
        pass
    except BridgeDataError as error:
        errors.append(error)
    for failure in errors:
        if isinstance(failure, WhereOptionError):
            way_out = "" if config.split_parts else f" (in split part {part!r}: --split-parts names those to check)"
            raise ConfigError(f"{failure}{way_out}")
        failures.setdefault(str(failure), []).append(part)


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


def _add_folder(
    targets: Targets, root: Path, report: Report, limits: Limits, uses: Sequence[ShardUse] | None = None
) -> Folder | None:
    """The folder `root`, opened once; with `uses`, which may be none, all of its shards."""
    key = absolute(str(root))
    folder = targets.folders.get(key)
    if folder is None:
        try:
            dataset = PreparedDataset.open(root, limits)
        except BridgeDataError as error:
            report(Fault("config", str(error), str(root)))
            return None
        folder = targets.folders[key] = Folder(root, dataset.shard_counts)
        if uses is not None:
            folder.uses = {name: [*uses] for name in dataset.shard_counts}
    return folder


def _add_source(targets: Targets, source: Source, report: Report) -> None:
    """A source: its shards, those of its joins, and the other files that its cookers read."""
    if source.joined is not None:
        for member in source.joined.members:
            _add_source(targets, member, report)
    shards = tars_of(source.records)
    if shards is None or source.maker is not None:
        targets.load(source, is_counted=shards is None and source.joined is None)
    if shards is not None:
        folder = _add_folder(targets, on_disk(shards.root), report, source.limits)
        if folder is not None:
            _add_shards(folder, source, shards)
    for reference in source.aux.values():
        if reference.kind == "dataset" and "://" not in reference.path:
            _add_folder(targets, Path(reference.path), report, source.limits, [ShardUse()])


def _first_line(source: Source) -> int | None:
    """The line number of the first sample; None if the samples are not consecutive lines of a JSONL file."""
    if source.format != "jsonl" or source.joined is not None or not source.num_samples:
        return None
    first, last = (stored_number(source.records, index) for index in (0, source.num_samples - 1))
    return first if last - first + 1 == source.num_samples else None


def _without(ranges: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """`ranges` without the numbers that are in `others`."""
    for first, last in others:
        pieces = [((start, min(end, first)), (max(start, last), end)) for start, end in ranges]
        ranges = [piece for pair in pieces for piece in pair if piece[0] < piece[1]]
    return list(ranges)


def _add_shards(folder: Folder, source: Source, shards: ShardSet) -> None:
    recipe = None
    if source.field_map and source.maker is None:
        recipe = Recipe(source.sample_class, source.field_map, source.parts)
    chosen = None if source.records is shards else source.records
    for shard, name in enumerate(shards.names):
        uses = folder.uses.setdefault(name, [])
        use = ShardUse(recipe) if chosen is None else ShardUse(recipe, chosen, shard)
        if use not in uses:
            uses.append(use)
    for entry in shards.excluded:
        name, key = _split_entry(entry, folder.counts)
        folder.excluded.setdefault(name, set()).add(key)


def _split_entry(entry: str, shards: dict[str, int]) -> tuple[str, str]:
    """(shard, key) of an exclusion `shard/key`; both may have slashes."""
    at = entry.find("/")
    while at >= 0 and entry[:at] not in shards:
        at = entry.find("/", at + 1)
    return entry[:at], entry[at + 1 :]
