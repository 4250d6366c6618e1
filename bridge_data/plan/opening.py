"""Opening a plan: the data sets of a folder of tars, a JSONL file, tables or a metadataset.

Enters: a path and the name of a split part. Leaves: a `Plan` of opened sources. Only metadata are read, once per data
set. Guarantee: mistakes in a YAML file, and references or field maps that do not fit the data, are errors here, with
file and line, before the first sample is read.
"""

import concurrent.futures
import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bridge_data import storage
from bridge_data.errors import ConfigError, bridge_command
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan.auxiliary import checked_aux
from bridge_data.plan.blending import Branch, Plan, Tree, changes, leaves, plan_of, weight_at
from bridge_data.plan.dataset_yaml import check_parts, find_object, is_our_module, read_sample_config
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
from bridge_data.plan.document import TABLE_KEYS, Node, absolute, given, has_raw_tars, is_jsonl, is_table, parse_yaml
from bridge_data.plan.factories import BaseCoreDatasetFactory, read_function
from bridge_data.plan.source import Source
from bridge_data.plan.where_clauses import choose_samples, given_where
from bridge_data.samples import CrudeSample
from bridge_data.shards import PreparedDataset
from bridge_data.shards.metadata import DATASET_YAML, META_FOLDER, why_unprepared
from bridge_data.storage import Location, is_remote, location

WHOLE = "train"
"""The only split part of a JSONL file without a split, which has the same samples in every part, and of raw tars."""

_FACTORY_KEYS = ("__module__", "__class__")
_FUNCTIONS = ("sample_loader", "part_filter")

MAX_OPENING = 16
"""Data sets in object stores opened at the same time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Settings for all data sets of a plan: whether it is for training, and which code may run: modules named in YAML
    files, and Python files next to the data. With `makes_indexes`, data that Energon prepared get our index."""

    training: bool = True
    trusted_modules: Collection[str] = ()
    trust_dataset_code: bool = False
    makes_indexes: bool = False


def load_plan(
    path: str | os.PathLike[str],
    *,
    split_part: str = "train",
    training: bool = True,
    trusted_modules: Collection[str] = (),
    trust_dataset_code: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    where: str | None = None,
    columns: str | os.PathLike[str] | None = None,
) -> Plan:
    """The plan for `split_part` of the prepared folder, JSONL file, tables or metadataset YAML at `path`.

    With `training`, sources are blended by their weights; otherwise they are read consecutively, and those without
    samples are left out. YAML files may name classes of this package and of `trusted_modules`. Python files next to the
    data (`sample_loader.py`) are run only with `trust_dataset_code`. `limits` bound the cost of samples and these
    files. `where` and `columns` choose samples of all data sets.

    Raises:
        EmptySplitError: if the part is declared and has no samples. ConfigError: for other mistakes.
        DatasetError: if the data differ from their metadata.
    """
    location = absolute(path)
    opening = Opening(training=training, trusted_modules=trusted_modules, trust_dataset_code=trust_dataset_code)
    scope = Scope(split_part=split_part, cache=LoadCache(limits), where=given_where(where, columns))
    declared = declare(Reference(path=location, scope=scope))
    return open_plan(declared, opening, f"{location}: the split part {split_part!r}")


def open_plan(declared: Declared, opening: Opening, what: str) -> Plan:
    """The plan of the declared tree, which messages call `what`."""
    return plan_of(_open(declared, opening), training=opening.training, what=what)


def _open(declared: Declared, opening: Opening) -> Tree:
    if isinstance(declared, Reference):
        return open_reference(declared, opening)
    if isinstance(declared, DeclaredJoin):
        return _open_join(declared, opening)
    return _open_blend(declared, opening)


def _open_join(declared: DeclaredJoin, opening: Opening) -> Source:
    from bridge_data.plan.join import join_source  # here: few data sets are joined

    members = [open_reference(member, opening) for member in declared.members]
    return cut(join_source(declared.join, members, declared.file, opening.trusted_modules), declared)


def _open_all(declared: Sequence[Declared], opening: Opening) -> list[Tree]:
    """All references, in order; opened in parallel if in object stores, as each needs several requests."""
    if not any(isinstance(child, Reference) and is_remote(child.path) for child in declared):
        return [_open(child, opening) for child in declared]
    with concurrent.futures.ThreadPoolExecutor(MAX_OPENING) as threads:
        return list(threads.map(lambda child: _open(child, opening), declared))


def _open_blend(declared: DeclaredBlend, opening: Opening) -> Branch:
    """A blend by weights, or one by repetitions of whole data sets."""
    kind = "blend_epochized" if declared.epochized else "blend"
    children = _open_all(declared.children, opening)
    for item, child in zip(declared.nodes, children, strict=True):
        if isinstance(child, Branch) and child.children and child.epochized != declared.epochized:
            raise item.error(
                f"a {kind} cannot hold a {'blend_epochized' if child.epochized else 'blend'}: weights count "
                "draws, repetitions count epochs. Use one kind throughout."
            )
    empty = [not any(source.num_samples for source, _ in leaves(child)) for child in children]
    if opening.training and any(empty) and not all(empty):
        raise declared.nodes[empty.index(True)].error(
            f"this item of the blend has no samples in split part {declared.split_part!r}, so its weight cannot be "
            "kept; give it some shards, or remove it from the blend"
        )
    for sample in sorted({0} | changes(declared.weights)):
        if children and not any(weight_at(weight, sample) for weight in declared.weights):
            raise declared.node.error(
                f"{kind}: all weights are 0 from sample {sample:,} on, so nothing could be drawn; raise one of them"
            )
    return Branch(declared.label, tuple(zip(declared.weights, children, strict=True)), epochized=declared.epochized)


def open_reference(reference: Reference, opening: Opening) -> Source:
    """The source that `reference` names."""
    path = reference.path
    if has_tables(path):
        source = _open_tables(reference, opening)
    elif given_key := next((key for key in TABLE_KEYS if key in reference.entries), None):
        raise reference.error(
            f"{given_key} is for Parquet files and data sets of Hugging Face; {path} has it in its dataset.yaml, if it "
            "is prepared",
            given_key,
        )
    elif has_raw_tars(path):
        from bridge_data.plan.raw_tar_source import open_tar_source  # here: few data sets are not prepared

        source = open_tar_source(reference)
    elif storage.is_folder(path):
        source = _open_folder(reference, opening)
    elif not storage.is_file(path):
        raise reference.error(f"{path}: no such folder or file")
    elif is_jsonl(path):
        source = _open_jsonl(reference)
    else:
        raise reference.error(
            f"{path}: expected a folder of tars, a metadataset .yaml, a .tar, .jsonl or .parquet file, got another file"
        )
    if reference.aux:
        if not issubclass(source.sample_class, CrudeSample):
            raise reference.error(
                f"aux is for crude samples, which are cooked, but {path} has samples of the class "
                f"{source.sample_class.__name__}",
                "aux",
            )
        source = dataclasses.replace(source, aux=checked_aux(reference.aux, reference.entries["aux"]))
    return cut(source, reference)


def has_tables(path: str) -> bool:
    """Whether there are Parquet files at `path`, or a data set saved by `datasets`."""
    if is_table(path):
        return True
    if not storage.is_folder(path) or storage.is_folder(location(path) / META_FOLDER):
        return False
    from bridge_data.plan.table_files import are_tables  # here: few folders are not prepared

    return are_tables(path)


def _open_tables(reference: Reference, opening: Opening) -> Source:
    from bridge_data.plan.table_files import open_tables  # here: few data sets are tables

    return open_tables(reference, opening.trusted_modules, trust_dataset_code=opening.trust_dataset_code)


def cut(source: Source, declared: Reference | DeclaredJoin) -> Source:
    """`source` with the chosen samples, the range of these, and the epochs of its scope."""
    if declared.scope.where:
        source = choose_samples(source, declared.scope.where)
    subset = declared.scope.subset
    try:
        found = source.cut(subset, declared.scope.epochs_per_shuffle)
    except ConfigError as error:
        raise declared.error(f"{error} [{source.name}]", "subset") from None
    if source.num_samples and not found.num_samples:
        raise declared.error(
            f"subset: range: {subset} leaves none of the {source.num_samples} samples of {source.name}", "subset"
        )
    return found


def split_parts(path: Location, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    """The split parts of the prepared folder, JSONL file, tables or metadataset at `path`, in its order.

    Raises:
        ConfigError: if there is none of these. DatasetError: if its metadata are damaged.
    """
    if has_tables(str(path)):
        from bridge_data.plan.table_files import table_parts  # here: few data sets are tables

        return table_parts(str(path))
    if has_raw_tars(str(path)):
        return [WHOLE]
    if storage.is_folder(path):
        return PreparedDataset.open(path, limits).split_parts()
    if not storage.is_file(path):
        raise ConfigError(f"{path}: no such folder or file")
    if is_jsonl(str(path)):
        from bridge_data.shards.jsonl_file import read_ranges  # here: few data sets are JSONL files

        return list(read_ranges(path, limits=limits) or [WHOLE])
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: expected a prepared folder, a metadataset .yaml or a .jsonl file")
    return list(read_splits(parse_yaml(storage.read_all(path), str(path), limits))[1])


def _open_folder(reference: Reference, opening: Opening) -> Source:
    path, scope, cache = reference.path, reference.scope, reference.scope.cache
    config_file, document = _dataset_yaml(reference)
    if document is None and not storage.is_folder(location(path) / META_FOLDER):
        raise reference.error(f"{why_unprepared(location(path))}, or give the path of a metadataset .yaml")
    if document is None:
        raise reference.error(
            f"{config_file}: no such file, so it is not known what the samples are: write it (for crude samples, "
            "`{__module__: megatron.energon, __class__: CrudeWebdataset}`), or run "
            f"`{bridge_command('prepare', path, '--force-overwrite')}`, which asks for class and split again",
            "dataset_config",
        )
    factory = find_factory(document, opening.trusted_modules)
    if factory is not None:
        return _factory_source(factory, document, reference, opening)
    config = read_sample_config(document, opening.trusted_modules, trust_dataset_code=opening.trust_dataset_code)
    part, split_config, makes_index = scope.split_part, split_config_of(reference), opening.makes_indexes
    try:
        dataset = cache.get(("folder", path), lambda: PreparedDataset.open(path, cache.limits, makes_index=makes_index))
        key = ("shards", path, part, split_config)
        shards = cache.get(key, lambda: dataset.split(part, split_config=split_config))
    except ConfigError as error:
        raise reference.error(str(error), "split_config") from None
    check_parts(document, config, shards)
    return Source(
        path=path,
        split_part=part,
        records=shards,
        sample_class=config.sample_class,
        field_map=config.field_map,
        parts=config.parts,
        subflavors={**config.subflavors, **scope.subflavors},
        config_file=config_file,
        maker=config.maker,
        limits=cache.limits,
    )


def split_config_of(reference: Reference) -> str | None:
    """The split file of the prepared folder that `reference` names: from its dataset.yaml, or else the reference; None
    for the default file."""
    _, document = _dataset_yaml(reference)
    entry = None if document is None else given(document.mapping("dataset.yaml"), "split_config")
    return reference.text("split_config") if entry is None else entry.text("split_config")


def _dataset_yaml(reference: Reference) -> tuple[str, Node | None]:
    """(the path of the dataset.yaml that `reference` chooses, its content if the file exists)."""
    path = str(location(reference.path) / META_FOLDER / (reference.text("dataset_config") or DATASET_YAML))
    return path, reference.scope.cache.document(path)


def _open_jsonl(reference: Reference) -> Source:
    """The source of a JSONL file: crude samples, each with the part `json`. There is no dataset.yaml."""
    from bridge_data.shards.jsonl_file import open_jsonl  # here: few data sets are JSONL files

    path, scope = reference.path, reference.scope
    if "dataset_config" in reference.entries:
        raise reference.error(
            f"dataset_config is for prepared folders, but {path} is a JSONL file, whose samples are crude",
            "dataset_config",
        )
    part, split_config = scope.split_part, reference.text("split_config")
    key = ("jsonl", path, part, split_config)
    try:
        records = scope.cache.get(
            key, lambda: open_jsonl(path, part, split_config=split_config, limits=scope.cache.limits)
        )
    except ConfigError as error:
        raise reference.error(str(error)) from None
    return Source(
        path=path,
        split_part=part,
        records=records,
        sample_class=CrudeSample,
        subflavors=scope.subflavors,
        config_file=path,
        limits=scope.cache.limits,
    )


def find_factory(root: Node, trusted_modules: Collection[str]) -> type[BaseCoreDatasetFactory[Any]] | None:
    """The user's factory that the dataset.yaml `root` names by `__module__` and `__class__`; None if these name a
    sample class, or a class of this package."""
    entries = root.mapping("dataset.yaml")
    if not all(key in entries for key in _FACTORY_KEYS) or is_our_module(entries["__module__"].text("__module__")):
        return None
    found = find_object(entries["__module__"], entries["__class__"], trusted_modules)
    return found if isinstance(found, type) and issubclass(found, BaseCoreDatasetFactory) else None


def _factory_source(
    factory: type[BaseCoreDatasetFactory[Any]], root: Node, reference: Reference, opening: Opening
) -> Source:
    """The source that `factory` makes with the settings in the dataset.yaml `root` and those of the reference."""
    scope, settings = reference.scope, _settings(root, trust_dataset_code=opening.trust_dataset_code)
    inherited = {
        "split_part": scope.split_part,
        "training": opening.training,
        "split_config": reference.text("split_config"),
    }
    try:
        made: Any = factory
        source: Source = made(location(reference.path), **{**inherited, **settings}).source()
    except (ConfigError, TypeError) as error:
        raise root.error(f"{factory.__name__}: {error}") from error
    return dataclasses.replace(source, subflavors={**source.subflavors, **scope.subflavors}, config_file=root.file)


def _settings(root: Node, *, trust_dataset_code: bool) -> Mapping[str, Any]:
    settings: dict[str, Any] = {}
    for key, node in root.mapping("dataset.yaml").items():
        if key in _FUNCTIONS and isinstance(node.value, str):
            settings[key] = read_function(node, key, trust_dataset_code)
        elif key not in _FACTORY_KEYS and node.value is not None:
            settings[key] = node.plain()
    return settings
