"""`dataset.yaml`: how the samples of a prepared data set are built.

Two forms are read. The current one:

    sample_type: {__module__: megatron.energon, __class__: CaptioningSample}
    field_map: {image: jpg, caption: "json[caption]"}
    subflavors: {language: en}

and the older one, with `__module__` and `__class__: CaptioningWebdataset` at the top, which crude data still use
(`__class__: CrudeWebdataset`, without a field map). Instead of a field map there may be functions of a Python file next
to the dataset.yaml, which is only run if it is trusted:

    sample_loader: sample_loader.py:sample_loader
    part_filter: sample_loader.py:part_filter

`split_config: other_split.yaml` names another file for the split.

A field map says which part of a sample, and which value in it, fills a field; see `FieldAccess`.

`megatron.energon` and `bridge_data` stand for this package. Other modules are imported only if the caller trusts them,
since importing a module runs it.
"""

from __future__ import annotations

import dataclasses
import importlib.machinery
import sys
from collections.abc import Collection, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bridge_data import samples
from bridge_data.data.plain_data import Node, given, nearest
from bridge_data.data.records import count_samples, split_part_of
from bridge_data.errors import ConfigError
from bridge_data.plan.source import FieldAccess, SampleClass, SampleLoader, parse_access
from bridge_data.replacement import replacement
from bridge_data.samples import CrudeSample, Sample, required_fields

if TYPE_CHECKING:
    from bridge_data.data import Records

OUR_MODULES = ("megatron.energon", "bridge_data")
_IN_OURS = tuple(f"{name}." for name in OUR_MODULES)
_TRUSTED_MODULES = ("megatron.bridge",)
"""Packages trusted by default: data that Megatron-Bridge prepares names its own classes."""

_OUR_CLASSES: dict[str, SampleClass] = {
    name: value
    for name, value in vars(samples).items()
    if isinstance(value, type) and issubclass(value, (Sample, CrudeSample)) and value is not Sample
}
_OLD_SUFFIX = "Webdataset"
TABLE_KEYS = ("sample_type", "field_map", "part_filter")
"""Settings of the samples of tables, which have no dataset.yaml."""
_CLASS_KEYS = ("__module__", "__class__")
_STANDARD_FACTORY = "StandardWebdatasetFactory"
_ELSEWHERE = {
    "split_part": "name the part where the data set is used",
    "subset": "give the range in a metadataset",
    "shuffle_over_epochs": "give shuffle_over_epochs_multiplier in a metadataset",
    "max_samples_per_sequence": "give it to get_train_dataset",
    "parallel_shard_iters": "it has no effect; leave it out",
    "training": "get_train_dataset and get_val_dataset decide it",
}
"""Arguments of Energon's factories that its dataset.yaml may set, and what to do instead."""

_KEYS = (
    "sample_type",
    *_CLASS_KEYS,
    "field_map",
    "part_filter",
    "sample_loader",
    "subflavors",
    "subflavor",
    "split_config",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """How a sample is built: its class, the source of its fields (empty, if crude), the parts to read (None for all),
    the sub-flavors of the data set, and a loader of samples that replaces the field map."""

    sample_class: SampleClass
    field_map: Mapping[str, FieldAccess] = dataclasses.field(default_factory=dict)
    parts: Container[str] | None = None
    subflavors: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sample_loader: SampleLoader | None = None


def read_sample_config(
    root: Node, trusted_modules: Collection[str], *, trust_dataset_code: bool = False, columns: Sequence[str] = ()
) -> SampleConfig:
    """The settings in a dataset.yaml; `columns` are those of the table that it is for, if it is for one."""
    entries = root.mapping("dataset.yaml")
    for key, instead in _ELSEWHERE.items():
        if key in entries:
            raise entries[key].error(f"{key} is not for a dataset.yaml here: {instead}")
    root.mapping("dataset.yaml", _KEYS)
    holder, reference = entries.get("sample_type", root), entries
    if holder is not root:
        reference = holder.mapping("sample_type", _CLASS_KEYS)
        for key in _CLASS_KEYS:
            if key in entries and not _is_standard_factory(entries):
                raise entries[key].error(f"{key} at the top says the same as sample_type; remove one of them")
    for key in _CLASS_KEYS:
        if key not in reference:
            raise holder.error(
                f"{key} is missing; expected `sample_type: {{__module__: megatron.energon, __class__: "
                "CaptioningSample}` or another sample class"
            )
    sample_class = find_class(reference["__module__"], reference["__class__"], trusted_modules)
    sample_loader, field_map, parts = None, {}, None
    if issubclass(sample_class, CrudeSample):
        for key in ("field_map", "sample_loader"):
            if node := given(entries, key):
                raise node.error(f"crude samples have no {key}: remove it, or name another sample class")
        parts = _part_filter(entries, trust_dataset_code)
    elif loader := given(entries, "sample_loader"):
        if node := given(entries, "field_map"):
            raise node.error("field_map: there is a sample_loader too; remove one of them")
        from bridge_data.plan.factories import LoadedBy, read_function  # imported here: a field map needs no code

        sample_loader = LoadedBy(sample_class, read_function(loader, "sample_loader", trust_dataset_code))
        parts = _part_filter(entries, trust_dataset_code)
    else:
        node = given(entries, "field_map")
        if node is None:
            which = f"column ({', '.join(columns)})" if columns else "part"
            raise root.error(f"field_map is missing: say which {which} gives each field of {sample_class.__name__}")
        if "part_filter" in entries:
            raise entries["part_filter"].error(
                "part_filter is for crude samples and for a sample_loader; a field_map says which parts it needs"
            )
        field_map = read_field_map(node, sample_class, columns)
        parts = needed_parts(field_map)
    return SampleConfig(
        sample_class=sample_class,
        field_map=field_map,
        parts=parts,
        subflavors=read_subflavors(entries),
        sample_loader=sample_loader,
    )


def check_parts(root: Node, config: SampleConfig, records: Records) -> None:
    """Check that the samples have the parts in the field map of `root`, as far as an index lists them."""
    known: dict[str, None] = {"__key__": None}
    reader, shards = records.reader(), iter(range(len(records.shards)))
    for field, access in config.field_map.items():
        while access.names.isdisjoint(known):
            shard = next(shards, None)
            if shard is None:
                if not count_samples(records):
                    return
                node = root.mapping("dataset.yaml")["field_map"].mapping("field_map")[field]
                raise node.error(
                    f"field_map: {field}: no shard of split part {split_part_of(records)!r} has a part "
                    f"{' or '.join(map(repr, access.parts))}{nearest(access.part, list(known)[1:])}"
                )
            names = reader.part_names(shard)
            if names is None:
                return
            known.update(dict.fromkeys(names))


def read_field_map(field_map: Node, sample_class: SampleClass, columns: Sequence[str] = ()) -> dict[str, FieldAccess]:
    """The access that fills each field of `sample_class`; messages name the `columns` of a table."""
    check_fields(sample_class, field_map, columns)
    accesses = {}
    for name, node in field_map.mapping("field_map").items():
        text = node.text(f"field_map: {name}")
        try:
            accesses[name] = parse_access(text)
        except ConfigError as error:
            raise node.error(str(error)) from None
    return accesses


def needed_parts(field_map: Mapping[str, FieldAccess]) -> frozenset[str]:
    """The names of the parts that fill the fields, also of those that mean the same."""
    return frozenset[str]().union(*[access.names for access in field_map.values()])


def read_subflavors(entries: Mapping[str, Node]) -> dict[str, Any]:
    """The sub-flavors; the single one in older files is called `__subflavor__`."""
    one, several = given(entries, "subflavor"), given(entries, "subflavors")
    found = {} if one is None else {"__subflavor__": one.text("subflavor")}
    if several is not None:
        found |= {name: node.plain() for name, node in several.mapping("subflavors").items()}
    return found


def _is_standard_factory(entries: Mapping[str, Node]) -> bool:
    """Whether the factory named at the top is the default one of a `sample_type`."""
    module, name = (given(entries, key) for key in _CLASS_KEYS)
    return (
        module is not None
        and name is not None
        and is_our_module(module.text("__module__"))
        and name.text("__class__") == _STANDARD_FACTORY
    )


def _part_filter(entries: Mapping[str, Node], trust_dataset_code: bool) -> Container[str] | None:
    node = given(entries, "part_filter")
    if node is None:
        return None
    if isinstance(node.value, str):
        from bridge_data.plan.factories import ChosenParts, read_function

        return ChosenParts(read_function(node, "part_filter", trust_dataset_code))
    return frozenset(part.text("part_filter") for part in node.sequence("part_filter"))


def is_our_module(name: str) -> bool:
    """Whether the module `name` is `megatron.energon`, `bridge_data` or a submodule of one."""
    return f"{name}.".startswith(_IN_OURS)


def find_class(module: Node, name: Node, trusted_modules: Collection[str]) -> SampleClass:
    """The sample class `name` of `module`. Names in older files, such as `CaptioningWebdataset`, mean the sample class,
    and a module that no longer exists stands for this package, as in Energon."""
    module_name, class_name = module.text("__module__"), name.text("__class__")
    if is_our_module(module_name) or (class_name in _OUR_CLASSES and _is_missing(module_name)):
        found = _OUR_CLASSES.get(class_name) or _OUR_CLASSES.get(class_name.removesuffix(_OLD_SUFFIX) + "Sample")
        if found is None:
            raise name.error(f"unknown sample class {class_name!r}{nearest(class_name, _OUR_CLASSES)}")
        return found
    found = find_object(module, name, trusted_modules)
    if not (isinstance(found, type) and issubclass(found, (Sample, CrudeSample))):
        raise name.error(f"__class__: {module_name}.{class_name} is {found!r}; expected a class derived from Sample")
    return found


def _is_missing(module: str) -> bool:
    """Whether there is no such module. Nothing is imported."""
    searched: Any = None
    names = module.split(".")
    for number in range(1, len(names) + 1):
        name = ".".join(names[:number])
        if name in sys.modules:
            searched = getattr(sys.modules[name], "__path__", [])
            continue
        spec = importlib.machinery.PathFinder.find_spec(name, searched)
        if spec is None:
            return True
        searched = spec.submodule_search_locations or []
    return False


def find_object(module: Node, name: Node, trusted_modules: Collection[str]) -> Any:
    """The object `name` of `module`, which is imported; None if there is no such name. Megatron-Bridge is trusted.

    Raises:
        ConfigError: for a module that is not trusted, or cannot be imported.
    """
    module_name = module.text("__module__")
    trusted_modules = (*trusted_modules, *replacement().trusted_modules, *_TRUSTED_MODULES)
    if not any(module_name == trusted or module_name.startswith(f"{trusted}.") for trusted in trusted_modules):
        raise module.error(
            f"__module__: {module_name!r} would be imported, which runs its code, and is not trusted; "
            f"pass trusted_modules=({module_name!r},) if it is yours, to replace_energon in a program for "
            f"Energon; or use a class of {OUR_MODULES[0]}"
        )
    try:
        return getattr(importlib.import_module(module_name), name.text("name"), None)
    except ImportError as error:
        missing = error.name or ""
        is_other = missing and not f"{module_name}.".startswith(f"{missing}.")
        fix = f"; install {missing}, or use a machine that has it" if is_other else ""
        raise module.error(f"__module__: {module_name!r} cannot be imported: {error}{fix}") from error


def check_fields(sample_class: SampleClass, field_map: Node, columns: Sequence[str] = ()) -> None:
    """Check that `field_map` has the fields that the class requires, and no unknown ones."""
    names = [f.name for f in dataclasses.fields(sample_class) if f.init and not f.name.startswith("__")]
    entries = field_map.mapping(f"field_map of {sample_class.__name__}", names)
    for name in required_fields(sample_class):
        if not name.startswith("__") and name not in entries:
            fix = f"add a line such as `{name}: jpg` or `{name}: json[{name}]`"
            if columns:
                fix = f"add {name!r} with one of the columns {', '.join(columns)}"
            raise field_map.error(f"field_map: {name!r} is missing, which {sample_class.__name__} requires; {fix}")
