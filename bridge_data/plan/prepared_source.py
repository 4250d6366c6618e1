"""Prepared folders as a format: tars with `.nv-meta`, whose dataset.yaml says what the samples are."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from bridge_data import storage
from bridge_data.errors import ConfigError, bridge_command
from bridge_data.limits import Limits
from bridge_data.plan.dataset_yaml import check_parts, find_object, is_our_module, read_sample_config
from bridge_data.plan.declared import Reference
from bridge_data.plan.document import Node, given
from bridge_data.plan.factories import BaseCoreDatasetFactory, read_function
from bridge_data.plan.formats import Format, Opening
from bridge_data.plan.source import Source
from bridge_data.shards import PreparedDataset, Records
from bridge_data.shards.cached_index import index_of_energon
from bridge_data.shards.metadata import DATASET_YAML, META_FOLDER
from bridge_data.storage import Location, location

_FACTORY_KEYS = ("__module__", "__class__")
_FUNCTIONS = ("sample_loader", "part_filter")


class PreparedFolder(Format):
    """A folder of tars that was prepared."""

    name = "folder"
    settings = ("dataset_config", "split_config")

    def matches(self, path: str) -> bool:
        return storage.is_folder(location(path) / META_FOLDER)

    def describe(self, path: str) -> str:
        return "has it in its dataset.yaml"

    def parts(self, path: Location, limits: Limits) -> list[str]:
        return PreparedDataset.open(path, limits).split_parts()

    def open(self, reference: Reference, opening: Opening) -> Source:
        path, scope, cache = reference.path, reference.scope, reference.scope.cache
        config_file, document = _dataset_yaml(reference)
        if document is None:
            raise reference.error(
                f"{config_file}: no such file, so it is not known what the samples are: write it (for crude samples, "
                "`{__module__: megatron.energon, __class__: CrudeWebdataset}`), or run "
                f"`{bridge_command('prepare', path, '--force-overwrite')}`, which asks for class and split again",
                "dataset_config",
            )
        factory = _find_factory(document, opening.trusted_modules)
        if factory is not None:
            return _factory_source(factory, document, reference, opening)
        config = read_sample_config(document, opening.trusted_modules, trust_dataset_code=opening.trust_dataset_code)
        part, split_config = scope.split_part, _split_config(reference)
        make_index = index_of_energon if opening.makes_indexes else None
        dataset = cache.get(("folder", path), lambda: PreparedDataset.open(path, cache.limits, make_index=make_index))
        key = ("shards", path, part, split_config)
        shards = cache.get(key, lambda: dataset.split(part, split_config=split_config))
        check_parts(document, config, shards)
        return self.source(reference, shards, config, config_file)

    def with_keys(self, reference: Reference) -> Records:
        dataset = PreparedDataset.open(reference.path, reference.scope.cache.limits)
        return dataset.split(reference.scope.split_part, split_config=_split_config(reference))


def _split_config(reference: Reference) -> str | None:
    """The split file of the prepared folder that `reference` names: from its dataset.yaml, or else the reference; None
    for the default file."""
    _, document = _dataset_yaml(reference)
    entry = None if document is None else given(document.mapping("dataset.yaml"), "split_config")
    return reference.text("split_config") if entry is None else entry.text("split_config")


def _dataset_yaml(reference: Reference) -> tuple[str, Node | None]:
    """(the path of the dataset.yaml that `reference` chooses, its content if the file exists)."""
    path = str(location(reference.path) / META_FOLDER / (reference.text("dataset_config") or DATASET_YAML))
    return path, reference.scope.cache.document(path)


def _find_factory(root: Node, trusted_modules: Collection[str]) -> type[BaseCoreDatasetFactory[Any]] | None:
    """The user's factory that the dataset.yaml `root` names by `__module__` and `__class__`; None if these name a
    sample class, or a class of this package."""
    entries = root.mapping("dataset.yaml")
    if not all(key in entries for key in _FACTORY_KEYS) or is_our_module(entries["__module__"].text("__module__")):
        return None
    found = find_object(entries["__module__"], entries["__class__"], trusted_modules)
    return found if isinstance(found, type) and issubclass(found, BaseCoreDatasetFactory) else None


def _factory_source(
    factory: type[BaseCoreDatasetFactory[Any]], root: Node, reference: Reference, opening: Opening
) -> Source:
    """The source that `factory` makes with the settings in the dataset.yaml `root` and those of the reference."""
    scope, settings = reference.scope, _settings(root, trust_dataset_code=opening.trust_dataset_code)
    inherited = {
        "split_part": scope.split_part,
        "training": opening.training,
        "split_config": reference.text("split_config"),
    }
    try:
        made: Any = factory
        source: Source = made(location(reference.path), **{**inherited, **settings}).source()
    except (ConfigError, TypeError) as error:
        raise root.error(f"{factory.__name__}: {error}") from error
    return dataclasses.replace(source, subflavors={**source.subflavors, **scope.subflavors}, config_file=root.file)


def _settings(root: Node, *, trust_dataset_code: bool) -> Mapping[str, Any]:
    settings: dict[str, Any] = {}
    for key, node in root.mapping("dataset.yaml").items():
        if key in _FUNCTIONS and isinstance(node.value, str):
            settings[key] = read_function(node, key, trust_dataset_code)
        elif key not in _FACTORY_KEYS and node.value is not None:
            settings[key] = node.plain()
    return settings
