"""`dataset.yaml`: how the samples of a prepared data set are built.

Two forms are read. The current one:

    sample_type: {__module__: megatron.energon, __class__: CaptioningSample}
    field_map: {image: jpg, caption: "json[caption]"}
    subflavors: {language: en}

and the older one, with `__module__` and `__class__: CaptioningWebdataset` at the top, which crude data still use
(`__class__: CrudeWebdataset`, without a field map). Instead of a field map there may be functions of a Python file
beside the dataset.yaml, which is only run if it is trusted:

    sample_loader: sample_loader.py:sample_loader
    part_filter: sample_loader.py:part_filter

`split_config: other_split.yaml` names another file for the split.

`megatron.energon` and `bridge_data` stand for this package. Another module is imported only if the caller trusts it,
since importing a module runs it.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Collection, Container, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from bridge_data import samples
from bridge_data.errors import ConfigError
from bridge_data.plan.document import Node, nearest
from bridge_data.plan.field_map import FieldAccess, parse_access
from bridge_data.samples import CrudeSample, Sample

if TYPE_CHECKING:
    from bridge_data.plan.source import SampleMaker
    from bridge_data.shards import Records

SampleClass: TypeAlias = type[Any]
"""A class derived from `Sample` or `CrudeSample`."""

OUR_MODULES = ("megatron.energon", "bridge_data")
_OUR_CLASSES: dict[str, SampleClass] = {
    name: value
    for name, value in vars(samples).items()
    if isinstance(value, type) and issubclass(value, (Sample, CrudeSample)) and value is not Sample
}
_OLD_SUFFIX = "Webdataset"
_KEYS = (
    *("sample_type", "__module__", "__class__"),
    *("field_map", "part_filter", "sample_loader", "subflavors", "subflavor", "split_config"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """How a sample is built: its class, the source of its fields (empty, if crude), the parts to read (None for all),
    the sub-flavors of the data set, a maker of samples that replaces the field map, and the file of its split (None:
    the usual one)."""

    sample_class: SampleClass
    field_map: Mapping[str, FieldAccess]
    parts: Container[str] | None
    subflavors: dict[str, Any]
    maker: SampleMaker | None = None
    split_config: str | None = None


def read_sample_config(
    root: Node, trusted_modules: Collection[str], *, trust_dataset_code: bool = False
) -> SampleConfig:
    """The settings in a dataset.yaml.

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
        split_config=entries["split_config"].text("split_config") if _given(entries, "split_config") else None,
    )


def check_parts(root: Node, config: SampleConfig, records: Records) -> None:
    """Check that the samples have the parts that the field map in `root` names, as far as an index lists them.

    Raises:
        ConfigError: naming the field, file and line, if no shard has any of its parts.
    """
    known: dict[str, None] = {"__key__": None}
    shards = iter(range(len(records.names)))
    for field, access in config.field_map.items():
        while not any(part in known for part in access.parts):
            shard = next(shards, None)
            if shard is None:
                if not records.num_samples:
                    return
                node = root.mapping("dataset.yaml")["field_map"].mapping("field_map")[field]
                raise node.error(
                    f"field_map: {field}: no shard of split part {records.split_part!r} has a part "
                    f"{' or '.join(map(repr, access.parts))}{nearest(access.part, list(known)[1:])}"
                )
            names = records.part_names(shard)
            if names is None:
                return
            known.update(dict.fromkeys(names))


def _given(entries: Mapping[str, Node], key: str) -> bool:
    return key in entries and entries[key].value is not None


def read_field_map(field_map: Node, sample_class: SampleClass) -> dict[str, FieldAccess]:
    """The access that fills each field of `sample_class`.

    Raises:
        ConfigError: naming the field, if it is missing, unknown, or its access cannot be parsed.
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
    """The sub-flavors; the single one in older files is called `__subflavor__`."""
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


def is_our_module(name: str) -> bool:
    """Whether the module `name` is `megatron.energon`, `bridge_data` or a submodule of one."""
    return any(name == ours or name.startswith(f"{ours}.") for ours in OUR_MODULES)


def find_class(module: Node, name: Node, trusted_modules: Collection[str]) -> SampleClass:
    """The sample class `name` of `module`. Names in older files, such as `CaptioningWebdataset`, mean the class of the
    samples.

    Raises:
        ConfigError: for a module that is not trusted, and for an unknown class.
    """
    module_name, class_name = module.text("__module__"), name.text("__class__")
    if is_our_module(module_name):
        found = _OUR_CLASSES.get(class_name) or _OUR_CLASSES.get(class_name.removesuffix(_OLD_SUFFIX) + "Sample")
        if found is None:
            raise name.error(f"unknown sample class {class_name!r}{nearest(class_name, _OUR_CLASSES)}")
        return found
    found = find_object(module, name, trusted_modules)
    if not (isinstance(found, type) and issubclass(found, (Sample, CrudeSample))):
        raise name.error(f"__class__: {module_name}.{class_name} is {found!r}; expected a class derived from Sample")
    return found


def find_object(module: Node, name: Node, trusted_modules: Collection[str]) -> Any:
    """The object `name` of `module`, which is imported; None if there is no such name.

    Raises:
        ConfigError: for a module that is not trusted, or cannot be imported.
    """
    module_name = module.text("__module__")
    if not any(module_name == trusted or module_name.startswith(f"{trusted}.") for trusted in trusted_modules):
        raise module.error(
            f"__module__: {module_name!r} would be imported, which runs its code, and is not trusted; "
            f"pass trusted_modules=({module_name!r},) if it is yours, or use a class of {OUR_MODULES[0]}"
        )
    try:
        return getattr(importlib.import_module(module_name), name.text("name"), None)
    except ImportError as error:
        raise module.error(f"__module__: {module_name!r} cannot be imported: {error}") from error


def check_fields(sample_class: SampleClass, field_map: Node) -> None:
    """Check that `field_map` has the fields that the class requires, and no unknown ones.

    Raises:
        ConfigError: naming the field.
    """
    fields = [f for f in dataclasses.fields(sample_class) if f.init and not f.name.startswith("__")]
    entries = field_map.mapping(f"field_map of {sample_class.__name__}", [f.name for f in fields])
    for field in fields:
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in entries:
            raise field_map.error(
                f"field_map: {field.name!r} is missing, which {sample_class.__name__} requires; "
                f"add a line such as `{field.name}: jpg` or `{field.name}: json[{field.name}]`"
            )
