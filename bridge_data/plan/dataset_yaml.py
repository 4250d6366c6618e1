"""`dataset.yaml`: what the samples of a prepared data set are.

Two forms are read. Today's:

    sample_type: {__module__: megatron.energon, __class__: CaptioningSample}
    field_map: {image: jpg, caption: "json[caption]"}
    subflavors: {language: en}

and the older one, with `__module__` and `__class__: CaptioningWebdataset` at the top, which crude data have to this day
(`__class__: CrudeWebdataset`, with no field map).
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.index import ShardSet
from bridge_data.plan.document import Node, nearest
from bridge_data.plan.field_map import FieldAccess, parse_access
from bridge_data.plan.sample_class import SampleClass, check_fields, find_class
from bridge_data.samples import CrudeSample

_KEYS = ("sample_type", "__module__", "__class__", "field_map", "subflavors", "part_filter", "sample_loader")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """How a sample is built: its class, where its fields come from (nothing, if crude), the parts to read (None for
    all), and the sub-flavors of the data set."""

    sample_class: SampleClass
    field_map: Mapping[str, FieldAccess]
    parts: frozenset[str] | None
    subflavors: dict[str, Any]


def read_sample_config(root: Node, trusted_modules: Collection[str]) -> SampleConfig:
    """What a dataset.yaml says.

    Raises:
        ConfigError: naming file and line.
    """
    entries = root.mapping("dataset.yaml", _KEYS)
    if "sample_loader" in entries:
        raise entries["sample_loader"].error(
            "sample_loader is not supported by this version: describe the samples by a field_map, or make them crude "
            "(__class__: CrudeWebdataset) and cook them in the task encoder"
        )
    holder = entries.get("sample_type", root)
    reference = entries
    if holder is not root:
        reference = holder.mapping("sample_type", ("__module__", "__class__"))
        for key in ("__module__", "__class__"):
            if key in entries:
                raise entries[key].error(f"{key} at the top says the same as sample_type; remove one of them")
    for key in ("__module__", "__class__"):
        if key not in reference:
            raise holder.error(
                f"{key} is missing; expected `sample_type: {{__module__: megatron.energon, __class__: "
                "CaptioningSample}` or another sample class"
            )
    sample_class = find_class(reference["__module__"], reference["__class__"], trusted_modules)
    subflavors = entries["subflavors"].mapping("subflavors") if _given(entries, "subflavors") else {}
    crude = issubclass(sample_class, CrudeSample)
    field_map = {} if crude else _field_map(root, entries, sample_class)
    return SampleConfig(
        sample_class=sample_class,
        field_map=field_map,
        parts=_part_filter(entries) if crude else _needed(entries, field_map),
        subflavors={name: node.plain() for name, node in subflavors.items()},
    )


def check_parts(root: Node, config: SampleConfig, shards: ShardSet) -> None:
    """See that the field map in `root` names parts that the shards have, as far as our index knows them.

    Raises:
        ConfigError: naming the field, file and line, if no shard has any of its parts.
    """
    if shards.index is None or not config.field_map:
        return
    known: dict[str, None] = {"__key__": None}
    names = iter(shards.names)
    for field, access in config.field_map.items():
        while not any(part in known for part in access.parts):
            shard = next(names, None)
            if shard is None:
                if not shards.num_samples:
                    return
                node = root.mapping("dataset.yaml")["field_map"].mapping("field_map")[field]
                raise node.error(
                    f"field_map: {field}: no shard of split part {shards.split_part!r} has a part "
                    f"{' or '.join(map(repr, access.parts))}{nearest(access.part, list(known)[1:])}"
                )
            known.update(dict.fromkeys(shards.index.segment(shard).names))


def _given(entries: Mapping[str, Node], key: str) -> bool:
    return key in entries and entries[key].value is not None


def _field_map(root: Node, entries: Mapping[str, Node], sample_class: SampleClass) -> dict[str, FieldAccess]:
    if not _given(entries, "field_map"):
        raise root.error(f"field_map is missing: say which part gives each field of {sample_class.__name__}")
    check_fields(sample_class, entries["field_map"])
    accesses = {}
    for name, node in entries["field_map"].mapping("field_map").items():
        text = node.text(f"field_map: {name}")
        try:
            accesses[name] = parse_access(text)
        except ConfigError as error:
            raise node.error(str(error)) from None
    return accesses


def _needed(entries: Mapping[str, Node], field_map: Mapping[str, FieldAccess]) -> frozenset[str]:
    if "part_filter" in entries:
        raise entries["part_filter"].error("part_filter is for crude samples; a field_map says which parts it needs")
    return frozenset(part for access in field_map.values() for part in access.parts)


def _part_filter(entries: Mapping[str, Node]) -> frozenset[str] | None:
    if _given(entries, "field_map"):
        raise entries["field_map"].error("crude samples have no field_map: remove it, or name another sample class")
    if not _given(entries, "part_filter"):
        return None
    node = entries["part_filter"]
    if isinstance(node.value, str):
        raise node.error("part_filter: a function is not supported by this version; give a list of part names")
    return frozenset(part.text("part_filter") for part in node.sequence("part_filter"))
