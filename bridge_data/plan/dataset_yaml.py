"""`dataset.yaml`: what the samples of a prepared data set are.

Two forms are read. Today's:

    sample_type: {__module__: megatron.energon, __class__: CaptioningSample}
    field_map: {image: jpg, caption: "json[caption]"}
    subflavors: {language: en}

and the older one, with `__module__` and `__class__: CaptioningWebdataset` at the top, which crude data have to this day
(`__class__: CrudeWebdataset`, with no field map). Instead of a field map there may be functions of a Python file beside
the dataset.yaml, which is only run if it is trusted:

    sample_loader: sample_loader.py:sample_loader
    part_filter: sample_loader.py:part_filter
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Container, Mapping
from typing import TYPE_CHECKING, Any

from bridge_data.errors import ConfigError
from bridge_data.plan.document import Node, nearest
from bridge_data.plan.field_map import FieldAccess, parse_access
from bridge_data.plan.sample_class import SampleClass, check_fields, find_class
from bridge_data.samples import CrudeSample

if TYPE_CHECKING:
    from bridge_data.plan.source import SampleMaker
    from bridge_data.shards import Records

_KEYS = (
    *("sample_type", "__module__", "__class__"),
    *("field_map", "part_filter", "sample_loader", "subflavors", "subflavor"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """How a sample is built: its class, where its fields come from (nothing, if crude), the parts to read (None for
    all), the sub-flavors of the data set, and what makes samples instead of the field map."""

    sample_class: SampleClass
    field_map: Mapping[str, FieldAccess]
    parts: Container[str] | None
    subflavors: dict[str, Any]
    maker: SampleMaker | None = None


def read_sample_config(
    root: Node, trusted_modules: Collection[str], *, trust_dataset_code: bool = False
) -> SampleConfig:
    """What a dataset.yaml says.

    Raises:
        ConfigError: naming file and line.
    """
    entries = root.mapping("dataset.yaml", _KEYS)
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
    maker, field_map, parts = None, {}, None
    if issubclass(sample_class, CrudeSample):
        for key in ("field_map", "sample_loader"):
            if _given(entries, key):
                raise entries[key].error(f"crude samples have no {key}: remove it, or name another sample class")
        parts = _part_filter(entries, trust_dataset_code)
    elif _given(entries, "sample_loader"):
        if _given(entries, "field_map"):
            raise entries["field_map"].error("field_map: there is a sample_loader too; remove one of them")
        from bridge_data.plan.dataset_code import LoadedBy, read_function  # here: a field map needs no code

        maker = LoadedBy(sample_class, read_function(entries["sample_loader"], "sample_loader", trust_dataset_code))
        parts = _part_filter(entries, trust_dataset_code)
    else:
        if not _given(entries, "field_map"):
            raise root.error(f"field_map is missing: say which part gives each field of {sample_class.__name__}")
        if "part_filter" in entries:
            raise entries["part_filter"].error(
                "part_filter is for crude samples and for a sample_loader; a field_map says which parts it needs"
            )
        field_map = read_field_map(entries["field_map"], sample_class)
        parts = needed_parts(field_map)
    return SampleConfig(
        sample_class=sample_class,
        field_map=field_map,
        parts=parts,
        subflavors=_subflavors(entries),
        maker=maker,
    )


def check_parts(root: Node, config: SampleConfig, records: Records) -> None:
    """See that the field map in `root` names parts that the samples have, as far as an index knows them.

    Raises:
        ConfigError: naming the field, file and line, if no stretch has any of its parts.
    """
    known: dict[str, None] = {"__key__": None}
    stretches = iter(range(len(records.names)))
    for field, access in config.field_map.items():
        while not any(part in known for part in access.parts):
            stretch = next(stretches, None)
            if stretch is None:
                if not records.num_samples:
                    return
                node = root.mapping("dataset.yaml")["field_map"].mapping("field_map")[field]
                raise node.error(
                    f"field_map: {field}: no shard of split part {records.split_part!r} has a part "
                    f"{' or '.join(map(repr, access.parts))}{nearest(access.part, list(known)[1:])}"
                )
            names = records.part_names(stretch)
            if names is None:
                return
            known.update(dict.fromkeys(names))


def _given(entries: Mapping[str, Node], key: str) -> bool:
    return key in entries and entries[key].value is not None


def read_field_map(field_map: Node, sample_class: SampleClass) -> dict[str, FieldAccess]:
    """What fills each field of `sample_class`.

    Raises:
        ConfigError: naming the field, if one is missing, unknown, or filled in a way that is not understood.
    """
    check_fields(sample_class, field_map)
    accesses = {}
    for name, node in field_map.mapping("field_map").items():
        text = node.text(f"field_map: {name}")
        try:
            accesses[name] = parse_access(text)
        except ConfigError as error:
            raise node.error(str(error)) from None
    return accesses


def needed_parts(field_map: Mapping[str, FieldAccess]) -> frozenset[str]:
    """The parts that fill the fields."""
    return frozenset(part for access in field_map.values() for part in access.parts)


def _subflavors(entries: Mapping[str, Node]) -> dict[str, Any]:
    """The sub-flavors; the one that older files have is called `__subflavor__`."""
    own = entries["subflavors"].mapping("subflavors") if _given(entries, "subflavors") else {}
    older = {"__subflavor__": entries["subflavor"].text("subflavor")} if _given(entries, "subflavor") else {}
    return older | {name: node.plain() for name, node in own.items()}


def _part_filter(entries: Mapping[str, Node], trust_dataset_code: bool) -> Container[str] | None:
    if not _given(entries, "part_filter"):
        return None
    node = entries["part_filter"]
    if isinstance(node.value, str):
        from bridge_data.plan.dataset_code import ChosenParts, read_function

        return ChosenParts(read_function(node, "part_filter", trust_dataset_code))
    return frozenset(part.text("part_filter") for part in node.sequence("part_filter"))
