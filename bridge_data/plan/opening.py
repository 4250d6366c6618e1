"""Opening data sets: what is at one path, or all that a metadataset or a dict like its YAML names, as a `Plan`.

Reads a path or a dict, and the name of a split part; only metadata, once per data set. Returns a `Plan` of opened
sources (`load_plan`); or a `DatasetLoaderInterface`, whose split parts can be planned (`get_datasets`), listed without
opening anything (`traverse`) or prepared (`prepare`): `get_train_dataset` and `get_val_dataset` take it instead of a
path, and its names are Energon's. Raises `ConfigError`, with file and line, before the first sample is read: for
mistakes in a YAML file, and for references or field maps that do not fit the data.
"""

import abc
import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self, TypeAlias

from bridge_data import storage
from bridge_data.data import SubsetRange
from bridge_data.data.plain_data import Node, as_node, parse_yaml
from bridge_data.errors import ConfigError
from bridge_data.extensions import Feature
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.options import checked_names
from bridge_data.plan.auxiliary import checked_aux
from bridge_data.plan.blending import Branch, Plan, Tree, changes, leaves, phase_words, plan_of, weight_at
from bridge_data.plan.declared import (
    WHERE,
    Clause,
    Declared,
    DeclaredBlend,
    DeclaredNode,
    LoadCache,
    Reference,
    Scope,
    declare,
    declare_split,
    given_clauses,
    read_splits,
    references,
)
from bridge_data.plan.factories import BaseCoreDatasetFactory
from bridge_data.plan.formats import Format, Opening, format_of, open_source
from bridge_data.plan.in_memory import Items
from bridge_data.plan.source import EpochsPerShuffle, Source, check_epochs, multiplied
from bridge_data.samples import CrudeSample
from bridge_data.storage import Location, absolute, is_remote
from bridge_data.topology import WorkerConfig

AnyPath: TypeAlias = str | os.PathLike[str]

JOIN_INDEXES = Feature[Callable[..., list[Any]]]("join_indexes")
"""Makes the indexes of the joins of the metadataset at a path, and returns them."""

MAX_OPENING = 16
"""Data sets in object stores opened at the same time."""


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
        EmptySplitError: if the part is declared and has no samples.
        ConfigError: for other mistakes.
        DatasetError: if the data differ from their metadata.
    """
    location = absolute(path)
    opening = Opening(training=training, trusted_modules=trusted_modules, trust_dataset_code=trust_dataset_code)
    scope = Scope(split_part=split_part, cache=LoadCache(limits), where=given_clauses(where, columns))
    declared = declare(Reference(path=location, scope=scope))
    return open_plan(declared, opening, f"{location}: the split part {split_part!r}")


def open_plan(declared: Declared, opening: Opening, what: str) -> Plan:
    """The plan of the declared tree, which messages call `what`."""
    return plan_of(_open(declared, opening), training=opening.training, what=what)


def _open(declared: Declared, opening: Opening) -> Tree:
    if isinstance(declared, Reference):
        return open_reference(declared, opening)
    if isinstance(declared, DeclaredBlend):
        return _open_blend(declared, opening)
    members = [open_reference(member, opening) for member in declared.members]
    return narrowed(declared.open(opening, members), declared)


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
    for drawn in sorted({0} | changes(declared.weights)):
        if children and not any(weight_at(weight, drawn) for weight in declared.weights):
            raise declared.node.error(
                f"{kind}: all weights are 0 {phase_words(declared.unit)} {drawn:,} on, so nothing could be drawn; "
                "raise one of them"
            )
    weighted = tuple(zip(declared.weights, children, strict=True))
    return Branch(declared.label, weighted, epochized=declared.epochized, unit=declared.unit)


def open_reference(reference: Reference, opening: Opening) -> Source:
    """The source that `reference` names."""
    source = open_source(reference, opening)
    if reference.aux:
        if not issubclass(source.sample_class, CrudeSample):
            raise reference.error(
                f"aux is for crude samples, which are cooked, but {reference.path} has samples of the class "
                f"{source.sample_class.__name__}",
                "aux",
            )
        source = dataclasses.replace(source, aux=checked_aux(reference.aux, reference.entries["aux"]))
    return narrowed(source, reference)


def narrowed(source: Source, declared: Reference | DeclaredNode) -> Source:
    """`source` with the chosen samples, the range of these, and the epochs of its scope."""
    if declared.scope.where:
        source = WHERE.get(needed_by="where:").choose(source, declared.scope.where)
    source.withheld  # noqa: B018  errors come now, and in stores several lists are read at once
    subset = declared.scope.subset
    try:
        found = source.narrowed(subset, declared.scope.epochs_per_shuffle)
    except ConfigError as error:
        raise declared.error(f"{error} [{source.name}]", "subset") from None
    if source.num_samples and not found.num_samples:
        raise declared.error(
            f"subset: range: {subset} leaves none of the {source.num_samples} samples of {source.name}", "subset"
        )
    return found


def split_parts(path: Location, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    """The split parts of the data or the metadataset at `path`, in its order.

    Raises:
        ConfigError: if there is none of these.
        DatasetError: if metadata are damaged.
    """
    if path.suffix in (".yaml", ".yml") and storage.is_file(path):
        return list(read_splits(parse_yaml(storage.read_all(path), str(path), limits))[1])
    return format_of(str(path)).splits(path, limits)


@dataclasses.dataclass(frozen=True, slots=True)
class TraversedDatasetReference:
    """A data set in a metadataset: path, split part, paths of auxiliary data, sub-flavors from all metadatasets."""

    path: str
    split_part: str
    aux: dict[str, str]
    subflavors: dict[str, Any]


class DatasetLoaderInterface(abc.ABC):
    """A data set that makes plans; derive from it to make your own."""

    @abc.abstractmethod
    def get_datasets(
        self,
        *,
        training: bool,
        split_part: str,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: EpochsPerShuffle = 1,
        subset: SubsetRange | None = None,
    ) -> Plan:
        """The plan of a split part, its sources with their shares.

        Args:
            subflavors: for all samples; they override those of the data sets.
            shuffle_over_epochs_multiplier: multiplies that of the data sets (see `EpochsPerShuffle`).
            subset: a range of each data set.

        Raises:
            ConfigError: for mistakes in YAML files or settings.
            DatasetError: if the data differ from their metadata.
        """

    def traverse(self, *, split_part: str) -> list[TraversedDatasetReference]:
        """The data sets of a split part, in order; for a join, its members. None of them is opened.

        Raises:
            ConfigError: for mistakes in the YAML files.
        """
        raise NotImplementedError(f"{type(self).__name__} does not override traverse")

    def prepare(self) -> list[Any]:
        """Make and return the indexes of the joins in it.

        Raises:
            ConfigError, DatasetError: see `prepare_metadataset`.
        """
        return []


class _Declaring(DatasetLoaderInterface):
    """A loader that declares a tree, as YAML or as a reference."""

    path: str
    trusted_modules: Collection[str]
    trust_dataset_code: bool
    limits: Limits
    where: tuple[Clause, ...] = ()

    @abc.abstractmethod
    def _declare(self, scope: Scope) -> Declared: ...

    def get_datasets(
        self,
        *,
        training: bool,
        split_part: str,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: EpochsPerShuffle = 1,
        subset: SubsetRange | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> Plan:
        """See `DatasetLoaderInterface.get_datasets`; `worker_config` is for a loader of this plan."""
        scope = Scope(
            split_part=split_part,
            subflavors=dict(subflavors or {}),
            where=self.where,
            subset=subset,
            epochs_per_shuffle=check_epochs(shuffle_over_epochs_multiplier),
            cache=LoadCache(self.limits),
        )
        opening = Opening(
            training=training,
            trusted_modules=self.trusted_modules,
            trust_dataset_code=self.trust_dataset_code,
            makes_indexes=True,
        )
        plan = open_plan(self._declare(scope), opening, f"{self.path}: the split part {split_part!r}")
        return dataclasses.replace(plan, worker_config=worker_config)

    def traverse(self, *, split_part: str) -> list[TraversedDatasetReference]:
        return [
            TraversedDatasetReference(
                reference.path,
                reference.scope.split_part,
                {name: aux.path for name, aux in reference.aux.items()},
                dict(reference.scope.subflavors),
            )
            for reference in references(self._declare(Scope(split_part=split_part, cache=LoadCache(self.limits))))
        ]


class DatasetLoader(_Declaring):
    """The prepared folder or JSONL file at `path`.

    Args:
        split_part: the part of its split, which overrides the one passed to its methods.
        subflavors: for all samples; those given to `get_datasets` override them.
        shuffle_over_epochs_multiplier: epochs shuffled together; `get_datasets` multiplies it by its argument.
        dataset_config, split_config: files to use instead of `dataset.yaml` and `split.yaml`.
        sample_type, field_map: the class of the samples of tables, and which column gives each field.
        trusted_modules, trust_dataset_code, limits: see `DatasetOptions`.

    Raises:
        ConfigError: for wrong settings.
    """

    def __init__(
        self,
        path: AnyPath,
        split_part: str | None = None,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: EpochsPerShuffle = 1,
        dataset_config: str | None = None,
        split_config: str | None = None,
        *,
        sample_type: type[Any] | None = None,
        field_map: Mapping[str, str] | None = None,
        trusted_modules: Collection[str] = (),
        trust_dataset_code: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.path = absolute(path)
        self.sample_type, self.field_map = sample_type, field_map
        self.split_part = split_part
        self.subflavors = dict(subflavors or {})
        self.shuffle_over_epochs_multiplier = check_epochs(shuffle_over_epochs_multiplier)
        self.dataset_config, self.split_config = dataset_config, split_config
        self.trusted_modules = checked_names("trusted_modules", trusted_modules)
        self.trusted_modules += () if sample_type is None else (sample_type.__module__,)  # already imported
        self.trust_dataset_code, self.limits = trust_dataset_code, limits
        self._format: Format | None = None

    def _declare(self, scope: Scope) -> Reference:
        kind = self.sample_type
        class_ = None if kind is None else {"__module__": kind.__module__, "__class__": kind.__qualname__}
        given: dict[str, Any] = {"sample_type": class_, "field_map": self.field_map}
        given |= {"dataset_config": self.dataset_config, "split_config": self.split_config}
        inner = dataclasses.replace(
            scope,
            split_part=self.split_part or scope.split_part,
            subflavors=self.subflavors | dict(scope.subflavors),
            epochs_per_shuffle=multiplied(scope.epochs_per_shuffle, self.shuffle_over_epochs_multiplier),
        )
        entries = {key: as_node(name, self.path) for key, name in given.items() if name is not None}
        return Reference(path=self.path, scope=inner, entries=entries, format=self._format)

    def __str__(self) -> str:
        return f"DatasetLoader({self.path})"


class MetadatasetV2(_Declaring):
    """The metadataset at `path`, of the second format; or with the `splits` given here, structured like its YAML:
    `{"train": {"blend": [{"path": ..., "weight": 2}, ...]}}`. Paths are relative to the folder of `path`.

    Args:
        trusted_modules, trust_dataset_code, limits: see `DatasetOptions`.

    Raises:
        ConfigError: if it is no metadataset of this format.
    """

    _format = "MetadatasetV2"

    def __init__(
        self,
        path: AnyPath,
        splits: Mapping[str, Any] | None = None,
        *,
        trusted_modules: Collection[str] = (),
        trust_dataset_code: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._begin(absolute(path), trusted_modules, trust_dataset_code, limits)
        if splits is None:
            self._document = parse_yaml(storage.read_all(self.path), self.path, limits)
        else:
            head = {"__module__": "megatron.energon", "__class__": self._format}
            self._document, self._is_file = as_node({**head, "splits": splits}, str(self)), False
        is_first, _ = read_splits(self._document)
        if is_first != (self._format == "Metadataset"):
            other = "Metadataset" if is_first else "MetadatasetV2"
            raise ConfigError(f"{self.path} is a {other}; open it with load_dataset, which finds out")

    @classmethod
    def _of_document(cls, document: Node, **trust: Any) -> Self:
        """The metadataset that the YAML file of `document`, which is of this format, declares."""
        made = cls.__new__(cls)
        made._begin(document.file, **trust)
        made._document = document
        return made

    def _begin(self, path: str, trusted_modules: Collection[str], trust_dataset_code: bool, limits: Limits) -> None:
        self.path, self.limits = path, limits
        self.trusted_modules = checked_names("trusted_modules", trusted_modules)
        self.trust_dataset_code = trust_dataset_code
        self._is_file = True

    @property
    def splits(self) -> list[str]:
        """The names of its splits."""
        return list(read_splits(self._document)[1])

    def prepare(self) -> list[Any]:
        if not self._is_file:
            raise ConfigError(f"{self}: joins are prepared next to a YAML file; write the splits to one")
        made = JOIN_INDEXES.get(needed_by=f"{self}.prepare()")(self.path)
        self._document = parse_yaml(storage.read_all(self.path), self.path, self.limits)  # what joins were made from
        return made

    def _declare(self, scope: Scope) -> Declared:
        if not self._is_file:
            return declare_split(self._document, self.path, scope)
        scope.cache.get(("yaml", self.path), lambda: self._document)
        return declare(Reference(path=self.path, scope=scope))

    def __str__(self) -> str:
        return f"{self._format}({self.path})"


class Metadataset(MetadatasetV2):
    """The metadataset at `path`, of the first format; or with the `splits` given here:
    `{"train": {"datasets": [{"path": ..., "weight": 2}, ...]}}`. The arguments are those of `MetadatasetV2`."""

    _format = "Metadataset"


def load_dataset(
    path: AnyPath | Mapping[str, Any],
    *,
    split_part: str | None = None,
    subflavors: Mapping[str, Any] | None = None,
    shuffle_over_epochs_multiplier: EpochsPerShuffle = 1,
    dataset_config: str | None = None,
    split_config: str | None = None,
    sample_type: type[Any] | None = None,
    field_map: Mapping[str, str] | None = None,
    trusted_modules: Collection[str] = (),
    trust_dataset_code: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    where: str | None = None,
    columns: AnyPath | None = None,
) -> DatasetLoaderInterface:
    """The prepared folder, JSONL file, tables or metadataset at `path`; or a metadataset given as a dict, like its
    YAML, with paths relative to the working directory.

    Args:
        trusted_modules, trust_dataset_code, limits, where, columns: see `DatasetOptions`. The others: see
            `DatasetLoader`; not for metadatasets, which have these settings themselves.

    Raises:
        ConfigError: if nothing is there.
    """
    given: dict[str, Any] = {
        "split_part": split_part,
        "subflavors": subflavors,
        "shuffle_over_epochs_multiplier": shuffle_over_epochs_multiplier,
        "sample_type": sample_type,
        "field_map": field_map,
        "dataset_config": dataset_config,
        "split_config": split_config,
    }
    trust: dict[str, Any] = {
        "trusted_modules": trusted_modules,
        "trust_dataset_code": trust_dataset_code,
        "limits": limits,
    }
    made: _Declaring
    if isinstance(path, Mapping):
        location = os.path.join(os.getcwd(), "(dict)")
        document: Node | None = as_node(path, "metadataset given as a dict")
    else:
        location = absolute(path)
        document = LoadCache(limits).document(location) if location.endswith((".yaml", ".yml")) else None
    if document is None:
        made = DatasetLoader(location, **given, **trust)
        made._format = format_of(location)
    else:
        for name, value in given.items():
            if value is not None and not (name == "shuffle_over_epochs_multiplier" and value == 1):
                raise ConfigError(f"{name}={value!r} is for a single data set, but {location} is a metadataset")
        is_first, _ = read_splits(document)
        kind = Metadataset if is_first else MetadatasetV2
        if isinstance(path, Mapping):
            made = kind(location, document.mapping("metadataset")["splits"].plain(), **trust)
        else:
            made = kind._of_document(document, **trust)
    made.where = given_clauses(where, columns)
    return made


def traverse_metadataset(path: AnyPath, *, split_part: str) -> list[TraversedDatasetReference]:
    """The data sets of a split part of the metadataset at `path`; none of them is opened.

    Raises:
        ConfigError: if it is not a metadataset, or has mistakes.
    """
    if not isinstance(loader := load_dataset(path), MetadatasetV2):
        raise ConfigError(f"{path}: expected a metadataset .yaml, got a single data set")
    return loader.traverse(split_part=split_part)


Data: TypeAlias = AnyPath | Mapping[str, Any] | Plan | BaseCoreDatasetFactory[Any] | DatasetLoaderInterface | Items
"""A path to data, or one of the objects that may be given instead."""
