"""Checking a whole data set or metadataset, shard by shard, in parallel.

Reads a path and a `LintConfig`. Returns a `LintReport`: every fault is counted; memory is bounded by a few shards and
by the kept faults. Shards are checked as such, with the samples that sources make of them; JSONL files, joins and
samples that code makes are checked by loading them. Raises a ConfigError if nothing is there, or `where` is wrong.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from bridge_data.data import Records, ShardSet
from bridge_data.data.index_file import split_name
from bridge_data.data.jsonl_file import split_gaps
from bridge_data.data.metadata import META_FOLDER
from bridge_data.data.plain_data import as_node
from bridge_data.data.prepared import PreparedDataset, tars_of
from bridge_data.data.records import place_of, selected_number, stored_number
from bridge_data.data.tar_files import GZIP_SUFFIXES, open_tar, read_member
from bridge_data.decode import SampleDecoder, open_source_reader
from bridge_data.errors import BridgeDataError, ConfigError, DatasetError, SkipSample
from bridge_data.limits import DEFAULT_LIMITS, Limits, allow_pixels
from bridge_data.options import check_at_least
from bridge_data.plan import EmptySplitError, Source
from bridge_data.plan.declared import (
    Declared,
    DeclaredBlend,
    LoadCache,
    OptionError,
    Reference,
    Scope,
    declare,
    given_clauses,
)
from bridge_data.plan.formats import Opening, find_format
from bridge_data.plan.opening import narrowed, open_plan, open_reference, split_parts
from bridge_data.plugins.doctor.lint_checks import (
    KINDS,
    Fault,
    FaultTally,
    ImageNotes,
    KeyLog,
    LintReport,
    Recipe,
    Report,
    SampleCheck,
    ShardWalk,
    check_indexes,
    check_metadata,
    code_of,
    digests,
    repeated_table_keys,
)
from bridge_data.prepare.executors import Executor, LocalProcesses, Progress, no_progress, usual_workers
from bridge_data.prepare.tars import find_shards
from bridge_data.storage import absolute, on_disk

__all__ = ["KINDS", "Fault", "LintConfig", "LintReport", "lint"]


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
        given_clauses(self.where, self.columns)


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
    scope = Scope(split_part=part, cache=LoadCache(config.limits), where=given_clauses(config.where, config.columns))
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
        if isinstance(failure, OptionError):
            fix = "" if config.split_parts else f" (in split part {part!r}: --split-part names those to check)"
            raise ConfigError(f"{failure}{fix}")
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
            yield narrowed(declared.open(opening, members), declared)
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
    if source.composition is not None:
        for member in source.composition.members:
            _add_source(targets, member, report)
    shards = tars_of(source.records)
    if shards is None or source.sample_loader is not None:
        targets.load(source, is_counted=shards is None and source.composition is None)
    if shards is not None:
        folder = _add_folder(targets, on_disk(shards.root), report, source.limits)
        if folder is not None:
            _add_shards(folder, source, shards)
    for reference in source.aux.values():
        if reference.kind == "dataset" and "://" not in reference.path:
            _add_folder(targets, Path(reference.path), report, source.limits, [ShardUse()])


def _first_line(source: Source) -> int | None:
    """The line number of the first sample; None if the samples are not consecutive lines of a JSONL file."""
    if source.format != "jsonl" or source.composition is not None or not source.num_samples:
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
    if source.field_map and source.sample_loader is None:
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


SAMPLES_AT_ONCE = 512
"""Samples of a JSONL file or a join per task; more if there would be over `MAX_TASKS` tasks."""

MAX_TASKS = 256


def lint(path: Path, config: LintConfig | None = None, *, on_progress: Progress = no_progress) -> LintReport:
    """Check the data set (a folder of tars or a tar, prepared or not), the JSONL file or the metadataset at `path`.

    Raises:
        ConfigError: if there is nothing at `path`.
        WorkerError: if a process died.
    """
    config = config or LintConfig()
    tally = FaultTally(config.max_kept)
    opened: list[Fault] = []
    targets = find_targets(path, config, opened.append)
    folders = list(targets.folders.values())
    metadata = [fault for folder in folders if folder.is_prepared for fault in check_metadata(folder.root)]
    tally.add_all(_once(opened, metadata))
    tally.add_all(metadata)
    shards = [_Shard(number, *shard) for number, folder in enumerate(folders) for shard in _present(folder)]
    total = _num_samples(targets, config.limit)
    done = num_walked = 0
    tasks = itertools.chain(_shard_tasks(folders, shards, config), _range_tasks(targets.loaded, config.limit))
    executor = config.executor or LocalProcesses(config.num_workers)
    found_all = executor.map(functools.partial(run_task, config.decode, config.max_kept), tasks, what=f"checked {path}")
    with KeyLog(total) as keys, contextlib.closing(found_all):
        for found in found_all:
            tally.merge(found.tally)
            done += found.num_samples
            num_walked += found.num_walked
            if found.keys is not None:
                keys.add(found.keys)
            on_progress(num_walked, max(total, num_walked))
        tally.add_all(_repeated_keys(keys, shards, folders))
    if config.limit is None:
        tally.add_all(repeated_table_keys(loaded.source for loaded in targets.loaded))
    return LintReport(
        path=str(path),
        num_datasets=len(folders) + len({loaded.source.path for loaded in targets.loaded} - targets.folders.keys()),
        num_shards=len(shards),
        num_samples=done,
        is_complete=config.limit is None and config.where is None and config.decode,
        counts=dict(tally.counts),
        kept=dict(tally.kept),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ShardTask:
    """The checks of one shard."""

    folder: int
    root: Path
    name: str
    number: int
    """Among all checked shards."""
    position: int
    """Among the shards of its data set."""
    count: int | None
    """Its number of samples by the metadata; None if it is not prepared."""
    limit: int | None
    uses: bytes
    """The recipes, each with the positions of its samples; None: of all."""
    excluded: frozenset[str]
    limits: Limits


@dataclasses.dataclass(frozen=True, slots=True)
class RangeTask:
    """Samples of a source that are checked by loading them. Those made from shards are counted with the shards."""

    source: bytes
    start: int
    end: int
    is_counted: bool


@dataclasses.dataclass(slots=True)
class Found:
    """The result of a task: faults, number of checked samples, of those gone through, and the keys of a shard."""

    tally: FaultTally
    num_samples: int = 0
    num_walked: int = 0
    keys: NDArray[np.void] | None = None


def run_task(decode: bool, max_kept: int, task: ShardTask | RangeTask) -> Found:
    """Run a task; keep `max_kept` faults of a kind with shard and key."""
    found = Found(FaultTally(max_kept))
    if isinstance(task, ShardTask):
        _check_shard(task, decode, found)
    else:
        _check_range(task, decode, found)
    return found


class _Shard(NamedTuple):
    """A shard: the number of its folder, its number there, and its name."""

    folder: int
    position: int
    name: str


def _present(folder: Folder) -> Iterator[tuple[int, str]]:
    """(position, name) of the shards to check; missing ones were reported."""
    for position, name in enumerate(folder.counts):
        if name in folder.uses and (folder.root / name).is_file():
            yield position, name


def _num_samples(targets: Targets, limit: int | None) -> int:
    sizes = [sum(folder.counts[name] for _, name in _present(folder)) for folder in targets.folders.values()]
    sizes += [end - start for loaded in targets.loaded if loaded.is_counted for start, end in loaded.ranges]
    return sum(size if limit is None else min(size, limit) for size in sizes)


def _shard_tasks(folders: Sequence[Folder], shards: Sequence[_Shard], config: LintConfig) -> Iterator[ShardTask]:
    left: dict[int, int] = {}
    for number, (folder_number, position, name) in enumerate(shards):
        folder = folders[folder_number]
        limit = None if config.limit is None else left.setdefault(folder_number, config.limit)
        if limit is not None and limit <= 0:
            continue
        uses = [(use.recipe, use.positions()) for use in folder.uses[name]]
        if limit is not None and folder.is_prepared:
            left[folder_number] -= _num_used(folder.counts[name], [positions for _, positions in uses])
        yield ShardTask(
            folder=folder_number,
            root=folder.root,
            name=name,
            number=number,
            position=position,
            count=folder.counts[name] if folder.is_prepared else None,
            limit=limit,
            uses=cloudpickle.dumps(uses),
            excluded=frozenset(folder.excluded.get(name, ())),
            limits=config.limits,
        )


def _num_used(count: int, several: Sequence[frozenset[int] | None]) -> int:
    """The samples at any of these positions of a shard with `count` samples."""
    found: set[int] = set()
    for positions in several:
        if positions is None:
            return count
        found |= positions
    return len(found)


def _range_tasks(sources: Sequence[Loaded], limit: int | None) -> Iterator[RangeTask]:
    for loaded in sources:
        pickled = cloudpickle.dumps(loaded.source)
        for first, last in loaded.ranges:
            end = last if limit is None else min(last, first + limit)
            step = max(SAMPLES_AT_ONCE, -(-(end - first) // MAX_TASKS))
            for start in range(first, end, step):
                yield RangeTask(pickled, start, min(end, start + step), loaded.is_counted)


_NOT_OPENED = frozenset({"metadata-damaged", "split-unknown-shard", "split-repeated-shard"})
"""Faults of metadata for which a split part cannot be opened either."""


def _once(opened: Sequence[Fault], metadata: Sequence[Fault]) -> Iterator[Fault]:
    """Faults found on opening, each cause once, except those that metadata faults describe more precisely."""
    damaged = [absolute(str(Path(fault.dataset, META_FOLDER))) for fault in metadata if fault.code in _NOT_OPENED]
    reported: set[str] = set()
    for fault in opened:
        cause = fault.cause.removeprefix(f"{fault.dataset}: ")
        if fault.code == "config" and any(folder in fault.cause for folder in damaged):
            continue
        if cause not in reported:
            reported.add(cause)
            yield fault


def _repeated_keys(keys: KeyLog, shards: Sequence[_Shard], folders: Sequence[Folder]) -> Iterator[Fault]:
    for (first, _), (number, offset) in keys.repeated():
        root, name = folders[shards[number].folder].root, shards[number].name
        cause = f"shard {shards[first].name} has it too"
        yield Fault("shared-key", cause, str(root), name, _key_at(root / name, offset))


def _key_at(path: Path, offset: int) -> str:
    """The key of the sample that begins at `offset`."""
    member = read_member(open_tar(str(path)), offset, file=str(path))
    name = split_name(member.name) if member is not None else None
    return name[0] if name is not None else ""


def _check_shard(task: ShardTask, decode: bool, found: Found) -> None:
    """Check the members of a shard, the content of each sample, and the indexes of the shard."""
    report, dataset = found.tally.add, str(task.root)
    walk = ShardWalk(task.root, task.name, report)
    uses: list[tuple[Recipe | None, frozenset[int] | None]] = _unpickled(task.uses)
    check = SampleCheck(decode=decode, limits=task.limits)
    keys = walk.found.keys
    for number in walk.samples():
        if found.num_samples == task.limit:
            break
        found.num_walked, key = number + 1, keys[number]
        recipes = [recipe for recipe, positions in uses if positions is None or number in positions]
        found.num_samples += bool(recipes)
        if not recipes or key in task.excluded:
            continue
        try:
            parts = walk.read(number) if decode else {part: b"" for part, _, _ in walk.found.parts_of(number)}
        except DatasetError as error:
            report(Fault("unreadable", str(error), dataset, task.name, key))
            continue
        for fault in check.check(key, parts, filter(None, recipes)):
            report(dataclasses.replace(fault, dataset=dataset, shard=task.name))
    found.keys = digests(task.folder, task.number, keys[: found.num_walked], walk.found.offsets)
    if not walk.is_whole or task.count is None:
        return
    if found.num_walked != task.count:
        cause = f"it has {found.num_walked:,} samples, the metadata say {task.count:,}"
        report(Fault("wrong-count", cause, dataset, task.name))
    for key in sorted(task.excluded.difference(keys)):
        report(
            Fault("exclude-unknown", f"`exclude` names {task.name}/{key}, which it does not have", dataset, task.name)
        )
    found.tally.add_all(check_indexes(task.root, task.name, task.position, walk))


def _check_range(task: RangeTask, decode: bool, found: Found) -> None:
    """Whether samples can be read and, with `decode`, made."""
    source: Source = _unpickled(task.source)
    allow_pixels(source.limits)
    reader = open_source_reader(source, SampleDecoder())
    for index in range(task.start, task.end):
        found.num_samples += task.is_counted
        found.num_walked += task.is_counted
        noted = ImageNotes()
        try:
            raw = reader.read(index)
            if decode:
                reader.build(raw, index)
            for code, cause in noted.faults():
                found.tally.add(Fault(code, cause, source.path, key=place_of(source.records, index)))
        except SkipSample:
            continue
        except DatasetError as error:
            _report(found, "unreadable", source, index, error)
        except BridgeDataError as error:
            _report(found, code_of(error), source, index, error)
        except Exception as error:
            _report(found, "unbuildable", source, index, error)


def _report(found: Found, code: str, source: Source, index: int, error: Exception) -> None:
    cause = str(error) if isinstance(error, BridgeDataError) else f"{type(error).__name__}: {error}"
    found.tally.add(Fault(code, cause, source.path, key=place_of(source.records, index)))


_unpickled = functools.lru_cache(maxsize=16)(cloudpickle.loads)
"""What tasks share: the uses of a shard, or a source."""
