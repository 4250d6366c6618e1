"""What a metadataset declares: data sets, blends and joins, and what is said of each on the way down to it.

Enters: the path of a metadataset, of the first format (`Metadataset`, with `datasets:`) or the second (`MetadatasetV2`,
with `blend:`, `join:` and so on). Leaves: a tree of `Reference`, `DeclaredBlend` and `DeclaredJoin`, in which what
other metadatasets declare stands in place of the references to them. Guarantee: only YAML files are read, no data set
is opened.

Source: the formats of Megatron-Energon, https://nvidia.github.io/Megatron-Energon/basic/metadataset.html
"""

import dataclasses
import os
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias, TypeVar

from bridge_data import storage
from bridge_data.errors import ConfigError
from bridge_data.plan.auxiliary import AuxReference, read_aux
from bridge_data.plan.document import Node, located, nearest, parse_yaml
from bridge_data.plan.join import JOIN_KEYS, JoinNode, read_join
from bridge_data.plan.sample_class import OUR_MODULES, is_our_module
from bridge_data.plan.weights import EpochsPerShuffle, Weight, check_epochs, multiplied, read_weight
from bridge_data.shards import SubsetRange

_MULTIPLIER = "shuffle_over_epochs_multiplier"
_SCOPE_KEYS = ("split_part", "subflavors", "subset", _MULTIPLIER)
_REFERENCE_KEYS = ("path", "dataset_config", "split_config", "aux", *_SCOPE_KEYS)
_FIRST_FORMAT_KEYS = (
    *("path", "split_part", "subflavor", "subflavors", "dataset_config", "split_config"),
    *(_MULTIPLIER, "weight"),
)
_KEY_OF_KIND = {"blend": "weight", "blend_epochized": "repetitions"}
_FORMATS = ("Metadataset", "MetadatasetV2")

T = TypeVar("T")


class LoadCache:
    """What one load has parsed and opened so far, by key, for all threads of it: each file and data set once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._made: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`, which `make` makes on the first call. An error is not kept."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._made:
                self._made[key] = make()
            made: T = self._made[key]
            return made

    def document(self, path: str) -> Node | None:
        """The YAML file at `path`, parsed; None if there is no such file.

        Raises:
            ConfigError: naming file and line, if it is not readable as YAML.
        """

        def parse() -> Node | None:
            text = storage.read_if_there(path)
            return None if text is None else parse_yaml(text, path)

        return self.get(("yaml", path), parse)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the levels above say of a data set: the part of its split, its sub-flavors, the range to which it is cut,
    how many epochs are shuffled together, and the metadatasets that are being read, outermost first. `cache` is that of
    the load."""

    split_part: str
    subflavors: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    subset: SubsetRange | None = None
    epochs_per_shuffle: EpochsPerShuffle = 1
    above: tuple[str, ...] = ()
    cache: LoadCache = dataclasses.field(default_factory=LoadCache, repr=False, compare=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """A data set at `path`. `entries` are what a metadataset says here; empty if the path is the caller's own."""

    path: str
    scope: Scope
    entries: Mapping[str, Node] = dataclasses.field(default_factory=dict)
    aux: Mapping[str, AuxReference] = dataclasses.field(default_factory=dict)

    def error(self, message: str, key: str = "path") -> ConfigError:
        """The error that says `message` of what `key` says here, or else of the path."""
        entry = self.entries.get(key) or self.entries.get("path")
        return ConfigError(message) if entry is None else entry.error(message)

    def text(self, key: str) -> str | None:
        """What `key` says, if it is there."""
        return self.entries[key].text(key) if key in self.entries else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeclaredJoin:
    """A join in the metadataset `file`; what `scope` says of range and epochs is for the joined samples."""

    join: JoinNode
    members: tuple[Reference, ...]
    file: str
    scope: Scope

    def error(self, message: str, key: str = "join") -> ConfigError:
        """The error that says `message` of what `key` says here, or else of the join."""
        entries = self.join.node.mapping("join")
        return entries.get(key, entries["join"]).error(message)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeclaredBlend:
    """A blend by weights, or `epochized`, by repetitions; `node` holds the list, of which `nodes` are the items."""

    label: str
    node: Node
    nodes: tuple[Node, ...] = ()
    weights: tuple[Weight, ...] = ()
    children: tuple["Declared", ...] = ()
    epochized: bool = False
    split_part: str


Declared: TypeAlias = Reference | DeclaredJoin | DeclaredBlend


def declare(reference: Reference) -> Declared:
    """What `reference` stands for: itself, or what the metadataset at its path declares.

    Raises:
        ConfigError: naming file and line of whatever is wrong.
    """
    path, scope = reference.path, reference.scope
    if not path.endswith((".yaml", ".yml")) or os.path.isdir(path):
        return reference
    document = scope.cache.document(path)
    if document is None:
        raise reference.error(f"{path}: no such folder or file")
    for key in ("dataset_config", "split_config", "aux"):
        if key in reference.entries:
            raise reference.error(f"{key} is for data sets, but {path} is a metadataset; write it there", key)
    own = path if storage.is_remote(path) else os.path.realpath(path)
    if own in scope.above:
        raise reference.error(f"{path} refers to itself: {' -> '.join((*scope.above, own))}")
    if "subset" in reference.entries:
        _check_share(reference.entries["subset"], scope)
    return declare_split(document, path, dataclasses.replace(scope, above=(*scope.above, own)))


def declare_split(root: Node, file: str, scope: Scope) -> Declared:
    """What the metadataset `root`, which is or stands for the YAML file `file`, declares for the split part of `scope`.

    Raises:
        ConfigError: naming file and line of whatever is wrong.
    """
    first, splits = read_splits(root)
    part = scope.split_part
    if part not in splits:
        where = root.mapping("metadataset")["splits"]
        raise where.error(f"splits: no split {part!r} is declared{nearest(part, splits)}")
    split, what = splits[part], f"split {part!r}"
    if split.value is None:
        return DeclaredBlend(label=f"{file} [{part}]", node=split, split_part=part)
    return _first_format(split, what, file, scope) if first else _declared(split, what, file, scope)


def read_splits(root: Node) -> tuple[bool, Mapping[str, Node]]:
    """(whether it is of the first format, its splits) of a metadataset.

    Raises:
        ConfigError: naming file and line, if it is none.
    """
    entries = root.mapping("metadataset", ("__module__", "__class__", "splits"))
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


def _first_format(split: Node, what: str, file: str, scope: Scope) -> DeclaredBlend:
    """A split of the first format: a list of data sets with weights."""
    entries = split.mapping(what)
    if "datasets" not in entries:
        raise split.error(
            f"{what}: expected `datasets:`, got {split.shown()}; `path:`, `blend:` and the like are of the second "
            "format: write `__module__: megatron.energon` and `__class__: MetadatasetV2` at the top"
        )
    split.mapping(what, ("datasets",))
    items = _items(entries["datasets"], "datasets")
    for item in items:
        if "path" not in item.mapping("data set", _FIRST_FORMAT_KEYS):
            raise item.error(f"data set: expected `path:`, got {item.shown()}")
    return DeclaredBlend(
        label=f"datasets in {file} [{scope.split_part}]",
        node=entries["datasets"],
        nodes=items,
        weights=tuple(_weight(item, "weight") for item in items),
        children=tuple(declare(_reference(item, file, scope)) for item in items),
        split_part=scope.split_part,
    )


def _declared(node: Node, what: str, file: str, scope: Scope, extra_keys: tuple[str, ...] = ()) -> Declared:
    """What a node of the second format declares; keys without a value do not count."""
    entries = node.mapping(what)
    for kind, key in _KEY_OF_KIND.items():
        if kind in entries:
            node.mapping(what, (kind, "subset", *extra_keys))
            items, inner = _items(entries[kind], kind), _within(entries, scope)
            if _given(entries, "subset"):
                _check_share(entries["subset"], inner)
            return DeclaredBlend(
                label=f"{kind} in {file} [{scope.split_part}]",
                node=entries[kind],
                nodes=items,
                weights=tuple(_weight(item, key) for item in items),
                children=tuple(_declared(item, "item of a blend", file, inner, (key,)) for item in items),
                epochized=kind == "blend_epochized",
                split_part=scope.split_part,
            )
    if _given(entries, "join"):
        node.mapping(what, (*JOIN_KEYS, *_SCOPE_KEYS, *extra_keys))
        join, inner = read_join(node), _within(entries, scope)
        below = dataclasses.replace(inner, subset=None, epochs_per_shuffle=1)
        members = tuple(_reference(member, file, below) for member in join.members)
        return DeclaredJoin(join=join, members=members, file=file, scope=inner)
    if not _given(entries, "path"):
        raise node.error(f"{what}: expected `path:`, `blend:`, `blend_epochized:` or `join:`, got {node.shown()}")
    node.mapping(what, (*_REFERENCE_KEYS, *extra_keys))
    return declare(_reference(node, file, scope))


def _items(blend: Node, kind: str) -> tuple[Node, ...]:
    return tuple(blend.sequence(kind)) if blend.value is not None else ()


def _weight(item: Node, key: str) -> Weight:
    entries = item.mapping("item of a blend")
    weight, path = entries.get(key), entries.get("path")
    if weight is None or weight.value is None:
        return 1.0
    return read_weight(weight, key, path.shown() if path is not None and not item.line else "")


def _reference(node: Node, file: str, scope: Scope) -> Reference:
    entries = {key: entry for key, entry in node.mapping("reference").items() if entry.value is not None}
    return Reference(
        path=located(entries["path"], "path", file),
        scope=_within(node.mapping("reference"), scope),
        entries=entries,
        aux=read_aux(entries["aux"], file) if "aux" in entries else {},
    )


def _within(entries: Mapping[str, Node], scope: Scope) -> Scope:
    """What holds below a node with these entries."""
    own = entries["subflavors"].mapping("subflavors") if _given(entries, "subflavors") else {}
    subflavors = {key: value.plain() for key, value in own.items()}
    if _given(entries, "subflavor"):
        subflavors = {"__subflavor__": entries["subflavor"].text("subflavor")} | subflavors
    epochs = scope.epochs_per_shuffle
    if _MULTIPLIER in entries:
        try:
            epochs = multiplied(epochs, check_epochs(entries[_MULTIPLIER].plain()))
        except ConfigError as error:
            raise entries[_MULTIPLIER].error(str(error)) from None
    subset = scope.subset
    if _given(entries, "subset"):
        subset = SubsetRange.parse(entries["subset"]).within(scope.subset)
    return dataclasses.replace(
        scope,
        split_part=entries["split_part"].text("split_part") if _given(entries, "split_part") else scope.split_part,
        subflavors=subflavors | dict(scope.subflavors),
        subset=subset,
        epochs_per_shuffle=epochs,
    )


def _check_share(subset: Node, scope: Scope) -> None:
    """See that the range that `subset` gave `scope`, which is not for a single data set, counts in percentages.

    Raises:
        ConfigError: naming file and line, if it does not.
    """
    try:
        SubsetRange().within(scope.subset)
    except ConfigError as error:
        raise subset.error(str(error)) from None


def _given(entries: Mapping[str, Node], key: str) -> bool:
    return key in entries and entries[key].value is not None
