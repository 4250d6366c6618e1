"""The formats of data that are read where they are: one table, and nobody else looks at a path to tell what is there.

Reads a path. Returns its `Format`: what its split parts are called, and its samples as a `Source`. Raises `ConfigError`
if there are no data; with file and line, for settings that a format has no use for.

A format is a class derived from `Format`, in a module of its own, and a line of `FORMATS`. The module is imported only
if the path may be that of such data.
"""

import abc
import dataclasses
import importlib
import itertools
from collections.abc import Collection
from typing import ClassVar, NamedTuple

from bridge_data import storage
from bridge_data.errors import ConfigError
from bridge_data.limits import Limits
from bridge_data.plan.dataset_yaml import SampleConfig
from bridge_data.plan.declared import Reference
from bridge_data.plan.document import TABLE_KEYS
from bridge_data.plan.source import Source
from bridge_data.samples import CrudeSample
from bridge_data.shards import Records
from bridge_data.shards.metadata import JSONL_SUFFIX, TABLE_FILES, why_unprepared
from bridge_data.shards.records import NO_MEMBER
from bridge_data.shards.tar_files import GZIP_SUFFIXES
from bridge_data.storage import Location, location

WHOLE = "train"
"""The only split part of data that have no split."""

_SETTINGS = {
    **dict.fromkeys(("dataset_config", "split_config"), "prepared folders"),
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
    """Those of `_SETTINGS` that it takes."""

    @abc.abstractmethod
    def matches(self, path: str) -> bool:
        """Whether `path`, which may be that of such data by its line in the table, is."""

    @abc.abstractmethod
    def describe(self, path: str) -> str:
        """What is at `path`, to end a sentence about a setting that such data do not take."""

    def parts(self, path: Location, limits: Limits) -> list[str]:
        """The split parts, in their order.

        Raises:
            ConfigError: if they are not declared as they should be. DatasetError: if metadata are damaged.
        """
        return [WHOLE]

    @abc.abstractmethod
    def open(self, reference: Reference, opening: Opening) -> Source:
        """The source that `reference` names; see `source`. An error without file and line gets those of `reference`.

        Raises:
            ConfigError: for settings that do not fit the data. DatasetError: if these are damaged.
        """

    def with_keys(self, reference: Reference) -> Records:
        """The samples as a member of a join, whose index is made of their keys alone.

        Raises:
            ConfigError: if they cannot be one. DatasetError: if they are damaged.
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
            maker=config.maker,
            limits=scope.cache.limits,
            values=values,
            format=self.name,
        )


class FormatLine(NamedTuple):
    """A format: its class, a module of this package and a name in it; how the paths of such data end; and whether any
    other unprepared folder may hold some."""

    place: str
    endings: tuple[str, ...]
    in_folders: bool = False

    def format(self) -> Format:
        """The format; its module is imported."""
        module, name = self.place.split(".")
        found: Format = getattr(importlib.import_module(f"bridge_data.plan.{module}"), name)()
        return found


FORMATS = (
    FormatLine("table_files.Tables", tuple(TABLE_FILES), in_folders=True),
    FormatLine("jsonl_source.JsonlFile", (JSONL_SUFFIX,)),
    FormatLine("raw_tar_source.UnpreparedTars", (".tar", *GZIP_SUFFIXES), in_folders=True),
    FormatLine("prepared_source.PreparedFolder", ("",)),
)
"""The format of a path is the first that matches: of those with its ending, or else of those in folders. So a file is
not looked for in a folder, and a prepared folder is not listed."""


def find_format(path: str) -> Format | None:
    """The format of the data at `path`; None if there are none. A metadataset is not data."""
    by_ending = (line.format() for line in FORMATS if path.endswith(line.endings))
    in_folder = (line.format() for line in FORMATS if line.in_folders and storage.is_folder(path))
    return next((found for found in itertools.chain(by_ending, in_folder) if found.matches(path)), None)


def format_of(path: str) -> Format:
    """The format of the data at `path`.

    Raises:
        ConfigError: if there are none, naming what there is instead.
    """
    found = find_format(path)
    if found is not None:
        return found
    if storage.is_folder(path):
        raise ConfigError(f"{why_unprepared(location(path))}, or give the path of a metadataset .yaml")
    if not storage.is_file(path):
        raise ConfigError(f"{path}: no such folder or file")
    endings = dict.fromkeys(ending for line in FORMATS for ending in line.endings if ending)
    raise ConfigError(
        f"{path}: expected a folder of tars or tables, a metadataset .yaml or a file "
        f"{', '.join(endings)}, got another file"
    )


def open_source(reference: Reference, opening: Opening) -> Source:
    """The source that `reference` names.

    Raises:
        ConfigError: naming file and line, if there are no such data, or settings do not fit them. DatasetError: if they
            are damaged.
    """
    with reference.placed("split_config"):
        found = format_of(reference.path)
        for key, fit in _SETTINGS.items():
            if key in reference.entries and key not in found.settings:
                raise reference.error(f"{key} is for {fit}, but {reference.path} {found.describe(reference.path)}", key)
        return found.open(reference, opening)
