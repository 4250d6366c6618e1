"""The formats of data that are read where they are, in one table: `find_format` tells what is at a path.

Reads a path. Returns its `Format`: what its split parts are called, and its samples as a `Source`. Raises `ConfigError`
if there are no data; with file and line, for settings that a format has no use for.

A format is a class derived from `Format`. Those of the core are in `FORMATS`. A plug-in, or another package, offers one
as an extension of the kind `formats`, whose name is how paths of such data end (`.parquet`), or any other word for one
that is asked of each folder that nobody prepared; it is imported only if the path may be that of one.
"""

import abc
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from bridge_data import storage
from bridge_data.data import PreparedDataset, Records
from bridge_data.data.index_file import BridgeIndex
from bridge_data.data.jsonl_file import open_jsonl, read_ranges
from bridge_data.data.metadata import DATASET_YAML, JSONL_SUFFIX, META_FOLDER, why_unprepared
from bridge_data.data.plain_data import Node, given
from bridge_data.data.prepared import MakeIndex
from bridge_data.data.sample_keys import NO_MEMBER
from bridge_data.errors import ConfigError, bridge_command
from bridge_data.extensions import Feature, Seam
from bridge_data.limits import Limits
from bridge_data.plan.dataset_yaml import (
    TABLE_KEYS,
    SampleConfig,
    check_parts,
    find_object,
    is_our_module,
    read_sample_config,
)
from bridge_data.plan.declared import Reference
from bridge_data.plan.factories import BaseCoreDatasetFactory, read_function
from bridge_data.plan.folder_contents import (
    KINDS,
    TEXTS,
    check_one_kind,
    files_below,
    in_words,
    kind_of_file,
    kinds_of,
    why_no_lines,
)
from bridge_data.plan.source import Source
from bridge_data.samples import CrudeSample
from bridge_data.storage import Location, location

WHOLE = "train"
"""The only split part of data that have no split."""

_SETTINGS = {
    "dataset_config": "prepared folders",
    "split_config": "prepared folders and JSONL files",
    **dict.fromkeys(TABLE_KEYS, "Parquet files and data sets of Hugging Face"),
}
"""Settings that not all formats take, and the data that each is for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Settings for all data sets of a plan: whether it is for training, and which code may run: modules named in YAML
    files, and Python files next to the data. With `makes_indexes`, data that Energon prepared get our index."""

    training: bool = True
    trusted_modules: Collection[str] = ()
    trust_dataset_code: bool = False
    makes_indexes: bool = False


class Format(abc.ABC):
    """A format of data. It is stateless; a path may be a URL."""

    name: ClassVar[str]
    settings: ClassVar[Collection[str]] = ()
    """Which of `_SETTINGS` it takes."""
    always_decoded: ClassVar[bool] = False
    """See `Source`."""

    @abc.abstractmethod
    def matches(self, path: str) -> bool:
        """Whether `path`, which may be that of such data by its line in the table, is."""

    @abc.abstractmethod
    def describe(self, path: str) -> str:
        """What is at `path`, to end a sentence about a setting that such data do not take."""

    def splits(self, path: Location, limits: Limits) -> list[str]:
        """The split parts, in their order.

        Raises:
            ConfigError: if they are not declared as they should be.
            DatasetError: if metadata are damaged.
        """
        return [WHOLE]

    @abc.abstractmethod
    def open(self, reference: Reference, opening: Opening) -> Source:
        """The source that `reference` names; see `source`. An error without file and line gets those of `reference`.

        Raises:
            ConfigError: for settings that do not fit the data.
            DatasetError: if these are damaged.
        """

    def with_keys(self, reference: Reference) -> Records:
        """The samples as a member of a join, whose index is made of their keys alone.

        Raises:
            ConfigError: if they cannot be one.
            DatasetError: if they are damaged.
        """
        raise ConfigError(f"{NO_MEMBER}, but {reference.path} {self.describe(reference.path)}")

    def source(
        self,
        reference: Reference,
        records: Records,
        config: SampleConfig | None = None,
        config_file: str | None = None,
        values: Collection[str] = (),
    ) -> Source:
        """The source of `records`: as `config` of `config_file` says, or of crude samples with all their parts.
        `values` are the parts that are not decoded."""
        scope, config = reference.scope, config or SampleConfig(sample_class=CrudeSample)
        return Source(
            path=reference.path,
            split_part=scope.split_part,
            records=records,
            sample_class=config.sample_class,
            field_map=config.field_map,
            parts=config.parts,
            subflavors={**config.subflavors, **scope.subflavors},
            config_file=config_file or reference.path,
            sample_loader=config.sample_loader,
            limits=scope.cache.limits,
            values=values,
            format=self.name,
            always_decoded=self.always_decoded,
        )


INDEX_OF_ENERGON = Feature[MakeIndex]("index_of_energon")
OTHER_FORMATS = Seam[type[Format]]("formats")
"""The formats of plug-ins, by an ending of paths or another word."""

_FACTORY_KEYS = frozenset({"__module__", "__class__"})
_FUNCTIONS = ("sample_loader", "part_filter")


class PreparedFolder(Format):
    """A folder of tars that was prepared."""

    name = "folder"
    settings = ("dataset_config", "split_config")

    def matches(self, path: str) -> bool:
        return storage.is_folder(location(path) / META_FOLDER)

    def describe(self, path: str) -> str:
        return "has it in its dataset.yaml"

    def splits(self, path: Location, limits: Limits) -> list[str]:
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
        part, split_config = scope.split_part, _split_config(reference, document)
        make_index = _index_of_energon if opening.makes_indexes else None
        dataset = cache.get(("folder", path), lambda: PreparedDataset.open(path, cache.limits, make_index=make_index))
        key = ("shards", path, part, split_config)
        shards = cache.get(key, lambda: dataset.split(part, split_config=split_config))
        check_parts(document, config, shards)
        return self.source(reference, shards, config, config_file)

    def with_keys(self, reference: Reference) -> Records:
        dataset = PreparedDataset.open(reference.path, reference.scope.cache.limits)
        _, document = _dataset_yaml(reference)
        return dataset.split(reference.scope.split_part, split_config=_split_config(reference, document))


def _index_of_energon(root: Path, shard_counts: dict[str, int], uuid: str | None) -> BridgeIndex | None:
    """Our index of a data set without one, if a plug-in makes it."""
    make = INDEX_OF_ENERGON.find()
    return None if make is None else make(root, shard_counts, uuid)


def _split_config(reference: Reference, document: Node | None) -> str | None:
    """The split file of the prepared folder that `reference` names: from its dataset.yaml `document`, or else the
    reference; None for the default file."""
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
    if not entries.keys() >= _FACTORY_KEYS or is_our_module(entries["__module__"].text("__module__")):
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


class JsonlFile(Format):
    """A JSONL file with its index, and perhaps a split."""

    name = "jsonl"
    settings = ("split_config",)
    always_decoded = True

    def matches(self, path: str) -> bool:
        return storage.is_file(path)

    def describe(self, path: str) -> str:
        return "is a JSONL file, whose samples are crude"

    def splits(self, path: Location, limits: Limits) -> list[str]:
        return list(read_ranges(path, limits=limits) or [WHOLE])

    def open(self, reference: Reference, opening: Opening) -> Source:
        return self.source(reference, self.with_keys(reference))

    def with_keys(self, reference: Reference) -> Records:
        path, part, cache = reference.path, reference.scope.split_part, reference.scope.cache
        split_config = reference.text("split_config")
        key = ("jsonl", path, part, split_config)
        return cache.get(key, lambda: open_jsonl(path, part, split_config=split_config, limits=cache.limits))


FORMATS: Mapping[str, type[Format]] = {JSONL_SUFFIX: JsonlFile, "": PreparedFolder}
"""The formats of the core, by how the paths of such data end. The format of a path is the first that matches: of those
with its ending, or else of those in folders; those of our plug-ins come before these, those of other packages after
them. So a file is not looked for in a folder, and a prepared folder is not listed."""


def find_format(path: str) -> Format | None:
    """The format of the data at `path`; None if there are none. A metadataset is not data.

    Raises:
        ConfigError: for a folder with data of two kinds, such as tars and Parquet files.
    """
    found = _first_match(path, _by_ending(path))
    if found is None and storage.is_folder(path):
        found = _first_match(path, _in_folders())
        if found is not None and not storage.is_remote(path):  # there, only tables: the check is where they are listed
            check_one_kind(path, files_below(path))
    return found


def _by_ending(path: str) -> Iterator[type[Format] | None]:
    """The formats of paths that end like this one."""
    yield from map(OTHER_FORMATS.find, _ending(path, OTHER_FORMATS.names))
    yield from (FORMATS[ending] for ending in _ending(path, FORMATS))
    yield from map(OTHER_FORMATS.find, _ending(path, OTHER_FORMATS.names_of_others))


def _in_folders() -> Iterator[type[Format] | None]:
    """The formats of data that may be in any folder."""
    yield from (OTHER_FORMATS.find(name) for name in OTHER_FORMATS.names if not name.startswith("."))
    yield from (OTHER_FORMATS.find(name) for name in OTHER_FORMATS.names_of_others if not name.startswith("."))


def _ending(path: str, names: Iterable[str]) -> list[str]:
    """Which of `names` are endings of this path; the empty one is of any."""
    return [name for name in names if name[:1] in (".", "") and path.endswith(name)]


def _first_match(path: str, kinds: Iterable[type[Format] | None]) -> Format | None:
    for kind in kinds:
        if kind is not None and kind().matches(path):
            return kind()
    return None


def format_of(path: str) -> Format:
    """The format of the data at `path`.

    Raises:
        ConfigError: if there are none, naming what there is instead.
    """
    found = find_format(path)
    if found is not None:
        return found
    if (complaint := why_no_lines(path)) is not None:
        raise ConfigError(complaint)
    _check_installed(path)
    if storage.is_folder(path):
        raise ConfigError(f"{why_unprepared(location(path))}, or give the path of a metadataset .yaml")
    if not storage.is_file(path):
        raise ConfigError(f"{path}: no such folder or file")
    names = (*OTHER_FORMATS.names, *OTHER_FORMATS.names_of_others, *FORMATS)
    endings = dict.fromkeys(name for name in names if name.startswith("."))
    if path.endswith((".yaml", ".yml")):
        raise ConfigError(f"{path}: a metadataset, or other settings: name the data sets themselves here")
    if path.lower().endswith(".json") or kind_of_file(path) in TEXTS:
        command = bridge_command("convert", path, "DST")
        raise ConfigError(f"{path}: is not read in place: `{command}` makes a data set of it")
    raise ConfigError(
        f"{path}: expected a folder of tars or tables, a metadataset .yaml or a file "
        f"{', '.join(endings)}, got another file"
    )


def _check_installed(path: str) -> None:
    """Check that there are no data of a known kind at `path` whose format is a plug-in that is not installed."""
    is_folder = storage.is_folder(path)
    for kind, files in kinds_of(files_below(path) if is_folder else [path]).items():
        if kind not in TEXTS and not (is_folder and kind == "webdataset"):  # which can be prepared
            OTHER_FORMATS.get(KINDS[kind].endings[0], needed_by=f"{path} ({in_words({kind: files})})")


def open_source(reference: Reference, opening: Opening) -> Source:
    """The source that `reference` names.

    Raises:
        ConfigError: naming file and line, if there are no such data, or settings do not fit them.
        DatasetError: if they are damaged.
    """
    with reference.placed("split_config"):
        found: Format = reference.format or format_of(reference.path)
        for key, fit in _SETTINGS.items():
            if key in reference.entries and key not in found.settings:
                raise reference.error(f"{key} is for {fit}, but {reference.path} {found.describe(reference.path)}", key)
        return found.open(reference, opening)
