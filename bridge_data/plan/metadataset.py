"""Loading a plan: from a prepared folder or a metadataset YAML to the tree of its sources.

Enters: a path and the name of a split part. Leaves: a `Plan`. Guarantee: whatever is wrong in any of the YAML files is
found here, before the first sample is read, and is named with its file and line.

Source: the `MetadatasetV2` format, https://nvidia.github.io/Megatron-Energon/basic/metadataset.html
"""

import dataclasses
import math
import os
from collections.abc import Collection, Mapping
from typing import Any

from bridge_data import storage
from bridge_data.errors import ConfigError
from bridge_data.index import open_shards
from bridge_data.index.names import DATASET_YAML, META_FOLDER
from bridge_data.plan.blending import Branch, Plan, Tree, leaves, normalised, repetitions
from bridge_data.plan.dataset_yaml import check_parts, read_sample_config
from bridge_data.plan.document import Node, nearest, parse_yaml
from bridge_data.plan.sample_class import OUR_MODULES
from bridge_data.plan.source import Source

_REFERENCE_KEYS = ("path", "split_part", "subflavors", "dataset_config", "split_config")
_MULTIPLIER = "shuffle_over_epochs_multiplier"
_KEY_OF_KIND = {"blend": "weight", "blend_epochized": "repetitions"}
_LATER = ("join", "joiner", "nonmatch", "aux", "subset", _MULTIPLIER)


class EmptySplitError(ConfigError):
    """The split part is declared, and has no samples."""


def load_plan(
    path: str | os.PathLike[str],
    *,
    split_part: str = "train",
    training: bool = True,
    trusted_modules: Collection[str] = (),
) -> Plan:
    """The plan for `split_part` of the prepared folder or the metadataset YAML at `path`.

    With `training`, sources are blended by their weights; otherwise they come one after the other, and those without
    samples are left out. Sample classes are taken from `trusted_modules` only, besides our own.

    Raises:
        EmptySplitError: if the part is declared and has no samples. ConfigError: for whatever is wrong otherwise.
        DatasetError: if the data are not what their metadata say.
    """
    location = os.fspath(path)
    if "://" not in location:  # a worker may be started elsewhere
        location = os.path.abspath(location)
    tree = _resolve(location, {}, _Context(training=training, trusted_modules=trusted_modules, split_part=split_part))
    found = [(source, share) for source, share in leaves(tree) if source.num_samples]
    if not found:
        raise EmptySplitError(
            f"{location}: the split part {split_part!r} is declared and has no samples; "
            "give it some shards, or name another part"
        )
    weights = normalised([share for _, share in found]) if training else None
    times: tuple[float, ...] | None = None
    if training and isinstance(tree, Branch) and tree.epochized:
        times = tuple(number for source, number in repetitions(tree) if source.num_samples)
    return Plan(tree, tuple(source for source, _ in found), weights, times)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What holds on the way down: the part asked for, the sub-flavors given from outside, and the metadatasets that
    are being read, outermost first."""

    training: bool
    trusted_modules: Collection[str]
    split_part: str
    subflavors: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    above: tuple[str, ...] = ()


def _resolve(path: str, reference: Mapping[str, Node], context: _Context) -> Tree:
    """What lies at `path`, to which a metadataset refers by `reference` (empty: the caller of `load_plan`)."""
    fail = reference["path"].error if reference else ConfigError
    if "://" in path:
        raise fail(f"{path}: only local paths can be read; mount the store, or copy the data to a disk")
    if os.path.isdir(path):
        return _prepared(path, reference, context)
    if not os.path.isfile(path):
        raise fail(f"{path}: no such folder or file")
    if path.endswith(".jsonl"):
        raise fail(f"{path}: jsonl data sets are not supported by this version; pack them into tars")
    if not path.endswith((".yaml", ".yml")):
        raise fail(f"{path}: expected a prepared folder or a metadataset .yaml, got another file")
    for key in ("dataset_config", "split_config"):
        if key in reference:
            raise reference[key].error(f"{key} is for prepared folders, but {path} is a metadataset")
    own = os.path.realpath(path)
    if own in context.above:
        raise fail(f"{path} refers to itself: {' -> '.join((*context.above, own))}")
    return _metadataset(path, dataclasses.replace(context, above=(*context.above, own)))


def _prepared(path: str, reference: Mapping[str, Node], context: _Context) -> Source:
    fail = reference["path"].error if reference else ConfigError
    if not os.path.isdir(os.path.join(path, META_FOLDER)):
        raise fail(
            f"{path}: not a prepared data set, it has no {META_FOLDER} folder; run `bridge-data prepare {path}`, "
            "or give the path of a metadataset .yaml"
        )
    names = {key: reference[key].text(key) for key in ("dataset_config", "split_config") if key in reference}
    config_file = os.path.join(path, META_FOLDER, names.get("dataset_config", DATASET_YAML))
    if not os.path.isfile(config_file):
        raise fail(
            f"{config_file}: no such file, so it is not known what the samples are; run `bridge-data prepare {path}` "
            "without --skip-dataset-yaml, or write the file"
        )
    document = _document(config_file)
    config = read_sample_config(document, context.trusted_modules)
    try:
        shards = open_shards(path, context.split_part, split_config=names.get("split_config"))
    except ConfigError as error:
        raise fail(str(error)) from None
    check_parts(document, config, shards)
    return Source(
        path=path,
        split_part=context.split_part,
        shards=shards,
        sample_class=config.sample_class,
        field_map=config.field_map,
        parts=config.parts,
        subflavors={**config.subflavors, **context.subflavors},
        config_file=config_file,
    )


def _metadataset(path: str, context: _Context) -> Tree:
    root = _document(path)
    entries = root.mapping("metadataset", ("__module__", "__class__", "splits"))
    for key in ("__class__", "__module__", "splits"):
        if key not in entries:
            raise root.error(
                f"{key} is missing; a metadataset has `__module__: megatron.energon`, `__class__: MetadatasetV2` "
                "and `splits:`"
            )
    module, kind = entries["__module__"].text("__module__"), entries["__class__"].text("__class__")
    if module not in OUR_MODULES:
        raise entries["__module__"].error(f"__module__: got {module!r}, expected {OUR_MODULES[0]!r}")
    if kind == "Metadataset":
        raise entries["__class__"].error(
            "the first metadataset format is not supported by this version: write `__class__: MetadatasetV2`, and "
            "`blend:` instead of `datasets:`"
        )
    if kind != "MetadatasetV2":
        raise entries["__class__"].error(f"__class__: {kind!r} is no metadataset{nearest(kind, ['MetadatasetV2'])}")
    splits = entries["splits"].mapping("splits")
    if context.split_part not in splits:
        part = context.split_part
        raise entries["splits"].error(f"splits: no split {part!r} is declared{nearest(part, splits)}")
    split = splits[context.split_part]
    if split.value is None:
        return Branch(f"{path} [{context.split_part}]", ())
    return _node(split, f"split {context.split_part!r}", path, context)


def _node(node: Node, what: str, file: str, context: _Context, extra_keys: tuple[str, ...] = ()) -> Tree:
    """A reference (`path:`) or a blend (`blend:`) in the metadataset `file`; keys without a value do not count."""
    entries = {key: entry for key, entry in node.mapping(what).items() if entry.value is not None}
    for key in _LATER:
        if key in entries and not (key == _MULTIPLIER and entries[key].value == 1):
            raise entries[key].error(f"{key} is not supported by this version")
    for kind in ("blend", "blend_epochized"):
        if kind in node.mapping(what):
            node.mapping(what, (kind, *extra_keys))
            return _blend(node, kind, file, context)
    if "path" not in entries:
        raise node.error(f"{what}: expected `path:`, `blend:` or `blend_epochized:`, got {node.shown()}")
    node.mapping(what, (*_REFERENCE_KEYS, *_LATER, *extra_keys))
    own = entries["subflavors"].mapping("subflavors") if "subflavors" in entries else {}
    part = entries["split_part"].text("split_part") if "split_part" in entries else context.split_part
    path = entries["path"].text("path")
    return _resolve(
        path if "://" in path else os.path.normpath(os.path.join(os.path.dirname(file), path)),
        entries,
        dataclasses.replace(
            context, split_part=part, subflavors={key: v.plain() for key, v in own.items()} | dict(context.subflavors)
        ),
    )


def _blend(node: Node, kind: str, file: str, context: _Context) -> Branch:
    """A `blend` by weights, or a `blend_epochized` by repetitions of whole data sets."""
    blend, key = node.mapping(kind)[kind], _KEY_OF_KIND[kind]
    items = blend.sequence(kind) if blend.value is not None else []
    children = tuple((_weight(item, key), _node(item, "item of a blend", file, context, (key,))) for item in items)
    for item, (_, child) in zip(items, children, strict=True):
        if isinstance(child, Branch) and child.children and child.epochized != (kind == "blend_epochized"):
            raise item.error(
                f"a {kind} cannot hold a {'blend' if child.epochized is False else 'blend_epochized'}: weights count "
                "draws, repetitions count epochs. Use one kind throughout."
            )
    empty = [not any(source.num_samples for source, _ in leaves(child)) for _, child in children]
    if context.training and any(empty) and not all(empty):
        raise items[empty.index(True)].error(
            f"this item of the blend has no samples in split part {context.split_part!r}, so its weight cannot be "
            "kept; give it some shards, or remove it from the blend"
        )
    return Branch(f"{kind} in {file} [{context.split_part}]", children, epochized=kind == "blend_epochized")


def _weight(item: Node, key: str) -> float:
    weight = item.mapping("item of a blend").get(key)
    if weight is None or weight.value is None:
        return 1.0
    number = weight.number(key)
    if not (number > 0 and math.isfinite(number)):
        raise weight.error(
            f"{key}: expected a number above 0, got {number:g}; to leave a data set out of the blend, remove it"
        )
    return float(number)


def _document(path: str) -> Node:
    return parse_yaml(storage.read_all(path), path)
