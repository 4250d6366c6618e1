"""What a metadataset declares: data sets and blends, each with the settings of the levels above it.

Reads the path of a metadataset, of the first format (`Metadataset`, with `datasets:`) or the second (`MetadatasetV2`,
with `blend:` and so on); only YAML files are read, no data set is opened. Returns a tree of `Reference` and
`DeclaredBlend`, and of `DeclaredNode` for the kinds of nodes that plug-ins add: an extension of the kind `nodes` has
the name of the key by which the node is known, and reads it. References to other metadatasets are replaced by their
declarations. Raises a `ConfigError` with file and line.

Source: the formats of Megatron-Energon, https://nvidia.github.io/Megatron-Energon/basic/metadataset.html
"""

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias, TypeVar

from bridge_data import storage
from bridge_data.data import Records, SubsetRange
from bridge_data.data.plain_data import Node, given, nearest, parse_yaml
from bridge_data.errors import ConfigError, did_you_mean, listed
from bridge_data.extensions import Feature, Seam
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan.auxiliary import AuxReference, read_aux
from bridge_data.plan.blending import SAMPLES, Weight, read_weight
from bridge_data.plan.dataset_yaml import OUR_MODULES, TABLE_KEYS, is_our_module, read_subflavors
from bridge_data.plan.source import EpochsPerShuffle, Source, check_epochs, multiplied
from bridge_data.storage import located

_MULTIPLIER = "shuffle_over_epochs_multiplier"
WHERE_KEYS = ("where", "columns")
"""What chooses samples, by a plug-in."""
SCOPE_KEYS = ("split_part", "subflavors", "subset", *WHERE_KEYS, _MULTIPLIER)
_REFERENCE_KEYS = ("path", "dataset_config", "split_config", "aux", *TABLE_KEYS, *SCOPE_KEYS)
_FIRST_FORMAT_KEYS = (
    "path",
    "split_part",
    "subflavor",
    "subflavors",
    "dataset_config",
    "split_config",
    _MULTIPLIER,
    "weight",
)
_KEY_OF_KIND = {"blend": "weight", "blend_epochized": "repetitions"}
_FORMATS = ("Metadataset", "MetadatasetV2")

T = TypeVar("T")


class OptionError(ConfigError):
    """An option, such as `where`, does not fit the data."""


class Clause(Protocol):
    """A condition that chooses samples; see the plug-in `where`."""

    @property
    def text(self) -> str:
        """The condition as written."""

    def error(self, message: str) -> ConfigError:
        """The error `message`, which names the clause."""


class SampleChooser(Protocol):
    """The plug-in that reads clauses, and chooses samples by them: those for which all clauses hold."""

    def read(self, entries: Mapping[str, Node], file: str) -> tuple[Clause, ...]:
        """See `read_clauses`."""

    def given(self, where: str | None, columns: str | os.PathLike[str] | None) -> tuple[Clause, ...]:
        """See `given_clauses`."""

    def choose(self, source: Source, clauses: Sequence[Clause]) -> Source:
        """`source` with the chosen samples."""

    def numbers(self, records: Records, clauses: Sequence[Clause]) -> Collection[int]:
        """The numbers of the chosen samples, perhaps of none."""

    def count(self, records: Records, clauses: Sequence[Clause]) -> int:
        """How many samples are chosen."""

    def shown(self, clauses: Sequence[Clause]) -> str:
        """The conditions, for messages."""


WHERE = Feature[SampleChooser]("where")


class LoadCache:
    """Everything one load has parsed and opened so far, by key, for all its threads: each file and data set once; and
    how many references it has followed, of those that `limits` allow."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self.num_references = 0
        self._lock = threading.Lock()
        self._made: dict[Hashable, Future[Any]] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`, which `make` makes on the first call.

        An error is raised in all threads that wait for the value, and is not kept: a later call tries again.
        """
        with self._lock:
            is_first = key not in self._made
            made: Future[T] = self._made.setdefault(key, Future())
        if is_first:
            try:
                made.set_result(make())
            except BaseException as error:
                with self._lock:
                    del self._made[key]
                made.set_exception(error)
        return made.result()

    def document(self, path: str) -> Node | None:
        """The YAML file at `path`, parsed; None if there is no such file."""

        def parse() -> Node | None:
            text = storage.read_if_there(path)
            return None if text is None else parse_yaml(text, path, self.limits)

        return self.get(("yaml", path), parse)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The settings of a data set from the levels above: its split part, its sub-flavors, what chooses its samples,
    their range, how many epochs are shuffled together, the unit of weights (None outside a blend), and the metadatasets
    being read, outermost first. `cache` is shared by all levels of a load."""

    split_part: str
    subflavors: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    where: tuple[Clause, ...] = ()
    subset: SubsetRange | None = None
    epochs_per_shuffle: EpochsPerShuffle = 1
    weight_unit: str | None = None
    above: tuple[str, ...] = ()
    cache: LoadCache = dataclasses.field(default_factory=LoadCache, repr=False, compare=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """A data set at `path`. `entries` are its keys in a metadataset; empty if the path comes from the caller."""

    path: str
    scope: Scope
    entries: Mapping[str, Node] = dataclasses.field(default_factory=dict)
    aux: Mapping[str, AuxReference] = dataclasses.field(default_factory=dict)
    format: Any = None
    """The `formats.Format` of the data; None if nobody has asked yet."""

    def error(self, message: str, key: str = "path") -> ConfigError:
        """An error at the line of `key`, or else of the path."""
        entry = self.entries.get(key) or self.entries.get("path")
        return ConfigError(message) if entry is None else entry.error(message)

    @contextlib.contextmanager
    def placed(self, key: str = "path") -> Iterator[None]:
        """Give errors that lack file and line those of `key`, or else of the path."""
        entry = self.entries.get(key) or self.entries.get("path")
        with contextlib.nullcontext() if entry is None else entry.placed():
            yield

    def text(self, key: str) -> str | None:
        """The text of `key`; None if there is no such key."""
        return self.entries[key].text(key) if key in self.entries else None


class DeclaredNode(Protocol):
    """A node of a plug-in, which is one source; range and epochs in `scope` are those of its samples."""

    @property
    def scope(self) -> Scope: ...

    @property
    def members(self) -> Sequence[Reference]:
        """The data sets that it names."""

    def open(self, opening: Any, members: Sequence[Any]) -> Any:
        """The source of these opened members, with the settings of a `formats.Opening`."""

    def error(self, message: str, key: str = "") -> ConfigError:
        """An error at the line of `key`, or else of the node."""


class ReadNode(Protocol):
    """Reads a node of the file `file` for messages that call it `what`; `extra_keys` are those of the level above."""

    def __call__(self, node: Node, what: str, file: str, scope: Scope, extra_keys: tuple[str, ...]) -> DeclaredNode: ...


NODES = Seam[ReadNode]("nodes")
"""By the key by which such a node is known."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeclaredBlend:
    """A blend by weights, or `epochized`, by repetitions; `node` is the list, `nodes` are its items. `unit` is what
    weights count."""

    label: str
    node: Node
    nodes: tuple[Node, ...] = ()
    weights: tuple[Weight, ...] = ()
    children: tuple["Declared", ...] = ()
    epochized: bool = False
    unit: str = SAMPLES
    split_part: str


Declared: TypeAlias = Reference | DeclaredNode | DeclaredBlend


def references(declared: Declared) -> Iterator[Reference]:
    """The data sets in a tree, in their order, with those that other nodes name."""
    if isinstance(declared, Reference):
        yield declared
        return
    for child in declared.children if isinstance(declared, DeclaredBlend) else declared.members:
        yield from references(child)


def declare(reference: Reference) -> Declared:
    """The reference itself, or the tree that the metadataset at its path declares."""
    path, scope = reference.path, reference.scope
    limits = scope.cache.limits
    scope.cache.num_references += 1
    if scope.cache.num_references > limits.max_references:
        raise reference.error(
            f"{path}: with what they name in turn, the metadatasets above name more than the {limits.max_references} "
            "data sets and metadatasets allowed (Limits(max_references))"
        )
    if not path.endswith((".yaml", ".yml")) or os.path.isdir(path):
        return reference
    document = scope.cache.document(path)
    if document is None:
        raise reference.error(f"{path}: no such folder or file")
    for key in ("dataset_config", "split_config", "aux", *TABLE_KEYS):
        if key in reference.entries:
            raise reference.error(f"{key} is for data sets, but {path} is a metadataset; write it there", key)
    own = path if storage.is_remote(path) else os.path.realpath(path)
    if own in scope.above:
        raise reference.error(f"{path} refers to itself: {' -> '.join((*scope.above, own))}")
    if len(scope.above) >= limits.max_metadataset_depth:
        raise reference.error(
            f"{path}: is named through more than the {limits.max_metadataset_depth} metadatasets allowed "
            f"(Limits(max_metadataset_depth)): {' -> '.join((*scope.above[:2], '...', own))}"
        )
    if "subset" in reference.entries:
        _check_share(reference.entries["subset"], scope)
    return declare_split(document, path, dataclasses.replace(scope, above=(*scope.above, own)))


def declare_split(root: Node, file: str, scope: Scope) -> Declared:
    """What the metadataset `root`, from the YAML file `file`, declares for the split part of `scope`."""
    first, splits = read_splits(root)
    part = scope.split_part
    if part not in splits:
        where = root.mapping("metadataset")["splits"]
        told = f"splits: no split {part!r} is declared{nearest(part, splits)}"
        is_misspelt = bool(did_you_mean(part, splits))
        raise where.error(told if is_misspelt else f"{told}. If there are no such data, say so: `{part}:` alone")
    split, what = splits[part], f"split {part!r}"
    if split.value is None:
        return DeclaredBlend(label=f"{file} [{part}]", node=split, split_part=part)
    return _first_format(split, what, file, scope) if first else _declared(split, what, file, scope)


def read_splits(root: Node) -> tuple[bool, Mapping[str, Node]]:
    """(whether it has the first format, its splits) of a metadataset."""
    if isinstance(root.value, dict) and "data" in root.value:
        raise root.error("this is the config of a run, no data set; expected the data that it reads, its data.path")
    if isinstance(root.value, dict) and {"splits", "__class__", "__module__"}.isdisjoint(root.value):
        raise root.error(
            "neither a metadataset, which has `splits:`, nor the config of a run, which has `data:` with `path:`; it "
            f"has {listed([str(key) for key in root.value]) or 'nothing'}"
        )
    entries = _group(root, "metadataset", ("__module__", "__class__", "splits"))
    headless = "__class__" not in entries and "__module__" not in entries
    for key in ("splits",) if headless else ("__class__", "__module__", "splits"):
        if key not in entries:
            raise root.error(
                f"{key} is missing; a metadataset has `__module__: megatron.energon`, `__class__: MetadatasetV2` "
                "and `splits:`"
            )
    kind = "Metadataset"
    if not headless:
        module, kind = entries["__module__"].text("__module__"), entries["__class__"].text("__class__")
        if not is_our_module(module):
            raise entries["__module__"].error(f"__module__: got {module!r}, expected {OUR_MODULES[0]!r}")
        if kind not in _FORMATS:
            raise entries["__class__"].error(f"__class__: {kind!r} is no metadataset{nearest(kind, _FORMATS)}")
    return kind == "Metadataset", entries["splits"].mapping("splits")


def _group(node: Node, what: str, allowed: Collection[str]) -> Mapping[str, Node]:
    """The entries of a mapping above several data sets."""
    for key, entry in node.mapping(what).items():
        if key in _REFERENCE_KEYS and key not in allowed:
            raise entry.error(
                f"{what}: {key} is for one data set: write it beside the `path:` of each data set that it is for"
            )
    return node.mapping(what, allowed)


def _first_format(split: Node, what: str, file: str, scope: Scope) -> DeclaredBlend:
    """A split of the first format: a list of data sets with weights."""
    entries = split.mapping(what)
    if "datasets" not in entries:
        raise split.error(
            f"{what}: expected `datasets:`, got {split.shown()}; `path:`, `blend:` and the like are of the second "
            "format: write `__module__: megatron.energon` and `__class__: MetadatasetV2` at the top"
        )
    _group(split, what, ("datasets",))
    items = _items(entries["datasets"], "datasets")
    for item in items:
        if not given(item.mapping("data set", _FIRST_FORMAT_KEYS), "path"):
            raise item.error(f"data set: expected `path:`, got {item.shown()}")
    scope = dataclasses.replace(scope, weight_unit=scope.weight_unit or SAMPLES)
    children = [declare(read_reference(item, file, scope)) for item in items]
    return _blend("datasets", entries["datasets"], children, file, scope)


def _declared(node: Node, what: str, file: str, scope: Scope, extra_keys: tuple[str, ...] = ()) -> Declared:
    """What a node of the second format declares; keys without a value are ignored."""
    entries = node.mapping(what)
    for kind, key in _KEY_OF_KIND.items():
        if kind in entries:
            _group(node, what, (kind, "subset", "weight_unit", *WHERE_KEYS, *extra_keys))
            unit = given(entries, "weight_unit")
            inner = dataclasses.replace(within(entries, file, scope), weight_unit=_weight_unit(unit, kind, scope))
            if subset := given(entries, "subset"):
                _check_share(subset, inner)
            items = _items(entries[kind], kind)
            children = [_declared(item, "item of a blend", file, inner, (key,)) for item in items]
            return _blend(kind, entries[kind], children, file, inner)
    special = next((name for name in NODES.names if given(entries, name)), None)
    if special is None and not given(entries, "path"):
        unknown = [name for name in entries if name not in _REFERENCE_KEYS and name not in extra_keys]
        special = next((name for name in unknown if NODES.find(name) is not None), None)  # of another package
        if special is None:
            keys = [f"`{name}:`" for name in ("path", *_KEY_OF_KIND, *NODES.names)]
            lacks = f". If a plug-in reads {' or '.join(unknown)}, {NODES.lacks}" if unknown else ""
            raise node.error(f"{what}: expected {', '.join(keys[:-1])} or {keys[-1]}, got {node.shown()}{lacks}")
    if special is not None:
        with node.placed():
            read = NODES.get(special, needed_by=f"{what}: {special}:")
        return read(node, what, file, scope, extra_keys)
    node.mapping(what, (*_REFERENCE_KEYS, *extra_keys))
    return declare(read_reference(node, file, scope))


def _weight_unit(node: Node | None, kind: str, scope: Scope) -> str:
    """The unit of the weights of a blend, given at `node` or above it; all blends of a tree have one."""
    if node is None:
        return scope.weight_unit or SAMPLES
    unit = node.text("weight_unit")
    if kind == "blend_epochized":
        raise node.error("weight_unit: blend_epochized counts epochs, not a cost: leave it out, or write `blend:`")
    if not unit.isidentifier():
        raise node.error(f"weight_unit: expected `samples`, `tokens` or another cost, got {node.shown()}")
    if scope.weight_unit not in (None, unit):
        raise node.error(
            f"weight_unit: {unit}, but weights of the blend above count {scope.weight_unit}: give it to the outermost "
            "blend, for all below"
        )
    return unit


def _blend(kind: str, node: Node, children: Sequence[Declared], file: str, scope: Scope) -> DeclaredBlend:
    items, unit = _items(node, kind), scope.weight_unit or SAMPLES
    return DeclaredBlend(
        label=f"{kind} in {file} [{scope.split_part}]",
        node=node,
        nodes=items,
        weights=tuple(_weight(item, _KEY_OF_KIND.get(kind, "weight"), unit) for item in items),
        children=tuple(children),
        epochized=kind == "blend_epochized",
        unit=unit,
        split_part=scope.split_part,
    )


def _items(blend: Node, kind: str) -> tuple[Node, ...]:
    return tuple(blend.sequence(kind)) if blend.value is not None else ()


def _weight(item: Node, key: str, unit: str) -> Weight:
    entries = item.mapping("item of a blend")
    weight, path = given(entries, key), entries.get("path")
    if weight is None:
        return 1.0
    return read_weight(weight, key, path.shown() if path is not None and not item.line else "", unit)


def read_reference(node: Node, file: str, scope: Scope) -> Reference:
    """The data set that a node of `file` names."""
    entries = {key: entry for key, entry in node.mapping("reference").items() if entry.value is not None}
    with entries["path"].placed():
        path = located(entries["path"].text("path"), file)
    return Reference(
        path=path,
        scope=within(node.mapping("reference"), file, scope),
        entries=entries,
        aux=read_aux(entries["aux"], file) if "aux" in entries else {},
    )


def within(entries: Mapping[str, Node], file: str, scope: Scope) -> Scope:
    """The scope below a node of `file` with these entries."""
    epochs = scope.epochs_per_shuffle
    if _MULTIPLIER in entries:
        with entries[_MULTIPLIER].placed():
            epochs = multiplied(epochs, check_epochs(entries[_MULTIPLIER].plain()))
    part, subset = given(entries, "split_part"), given(entries, "subset")
    return dataclasses.replace(
        scope,
        split_part=scope.split_part if part is None else part.text("split_part"),
        subflavors=read_subflavors(entries) | dict(scope.subflavors),
        where=scope.where if entries.keys().isdisjoint(WHERE_KEYS) else (*scope.where, *read_clauses(entries, file)),
        subset=scope.subset if subset is None else SubsetRange.parse(subset).within(scope.subset),
        epochs_per_shuffle=epochs,
    )


def read_clauses(entries: Mapping[str, Node], file: str) -> tuple[Clause, ...]:
    """The clauses of a node of the YAML file `file`, or of options: one or none.

    Raises:
        ConfigError: naming file and line, if there is no such clause, or no plug-in for it.
    """
    node = given(entries, "where") or given(entries, "columns")
    if node is None:
        return ()
    with node.placed():
        plugin = WHERE.get(needed_by="where:")
    return plugin.read(entries, file)


def given_clauses(where: str | None, columns: str | os.PathLike[str] | None) -> tuple[Clause, ...]:
    """The clause of the options `where` and `columns`; none without them."""
    if where is columns is None:
        return ()
    return WHERE.get(needed_by="where=...").given(where, columns)


def _check_share(subset: Node, scope: Scope) -> None:
    """Check that the range in `scope`, which all data sets below it share, is in percentages.

    Raises:
        ConfigError: naming file and line of `subset`, if it counts samples.
    """
    with subset.placed():
        SubsetRange().within(scope.subset)
