"""The classes that YAML files name by `__module__` and `__class__`.

`megatron.energon` and `bridge_data` stand for this package. Another module is imported only if the caller trusts it,
since importing a module runs it.
"""

import dataclasses
import importlib
from collections.abc import Collection
from typing import Any, TypeAlias

from bridge_data import samples
from bridge_data.plan.document import Node, nearest
from bridge_data.samples import CrudeSample, Sample

SampleClass: TypeAlias = type[Any]
"""A class derived from `Sample` or `CrudeSample`."""

OUR_MODULES = ("megatron.energon", "bridge_data")
_OUR_CLASSES: dict[str, SampleClass] = {
    name: value
    for name, value in vars(samples).items()
    if isinstance(value, type) and issubclass(value, (Sample, CrudeSample)) and value is not Sample
}
_OLD_SUFFIX = "Webdataset"


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
