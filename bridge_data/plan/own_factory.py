"""A factory of the user's that a dataset.yaml names: `__module__: my_module`, `__class__: MyWebdataset`.

Enters: the dataset.yaml, whose other entries are the factory's settings. Leaves: its `Source`.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.plan.dataset_code import read_function
from bridge_data.plan.document import Node
from bridge_data.plan.factories import BaseCoreDatasetFactory
from bridge_data.plan.sample_class import find_object, is_our_module
from bridge_data.plan.source import Source
from bridge_data.storage import location

_HEAD = ("__module__", "__class__")
_FUNCTIONS = ("sample_loader", "part_filter")


def find_factory(root: Node, trusted_modules: Collection[str]) -> type[BaseCoreDatasetFactory[Any]] | None:
    """The factory that the dataset.yaml `root` names; None if it names a sample class, or a class of ours.

    Raises:
        ConfigError: naming file and line, if its module is not trusted, or cannot be imported.
    """
    entries = root.mapping("dataset.yaml")
    if not all(key in entries for key in _HEAD) or is_our_module(entries["__module__"].text("__module__")):
        return None
    found = find_object(entries["__module__"], entries["__class__"], trusted_modules)
    return found if isinstance(found, type) and issubclass(found, BaseCoreDatasetFactory) else None


def factory_source(
    factory: type[BaseCoreDatasetFactory[Any]],
    root: Node,
    path: str,
    given: Mapping[str, Any],
    subflavors: Mapping[str, Any],
    *,
    trust_dataset_code: bool,
) -> Source:
    """The source that `factory` makes of the folder `path` with the settings of the dataset.yaml `root` and those that
    are `given`; its sub-flavors with those from outside.

    Raises:
        ConfigError: naming the file, if the factory does not take these settings. DatasetError: if the data are not
        what their metadata say.
    """
    settings: dict[str, Any] = {}
    for key, node in root.mapping("dataset.yaml").items():
        if key in _FUNCTIONS and isinstance(node.value, str):
            settings[key] = read_function(node, key, trust_dataset_code)
        elif key not in _HEAD and node.value is not None:
            settings[key] = node.plain()
    try:
        made: Any = factory
        source = made(location(path), **given, **settings).source()
    except (ConfigError, TypeError) as error:
        raise root.error(f"{factory.__name__}: {error}") from error
    return dataclasses.replace(source, subflavors={**source.subflavors, **subflavors}, config_file=root.file)
