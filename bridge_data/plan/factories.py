"""Factories: prepared data sets described in Python, where otherwise their dataset.yaml does it.

Enters: a folder and what its samples are. Leaves: a `Source`, or a `Plan` of it, which `get_train_dataset` and
`get_val_dataset` take in place of a path. A class of yours that derives from one of these and overrides `load_sample`
makes its samples itself; a dataset.yaml may name it, if its module is trusted. The names and the settings are those of
Energon.
"""

import abc
import copy
import enum
import os
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypedDict, TypeVar, Unpack

from bridge_data.errors import ConfigError
from bridge_data.ignored import warn_ignored
from bridge_data.plan.blending import Plan, plan_of
from bridge_data.plan.dataset_code import ChosenParts, load_function, made
from bridge_data.plan.dataset_yaml import needed_parts, read_field_map
from bridge_data.plan.document import as_node
from bridge_data.plan.field_map import FieldAccess
from bridge_data.plan.sample_class import SampleClass
from bridge_data.plan.source import Parts, Source
from bridge_data.plan.weights import EpochsPerShuffle, check_epochs
from bridge_data.samples import CrudeSample, Sample
from bridge_data.shards import Records, Subset, SubsetRange, open_shards
from bridge_data.shards.names import META_FOLDER
from bridge_data.storage import Location, location

T_sample = TypeVar("T_sample")

Decode = Callable[[Parts], Parts]


class Decoding(enum.Enum):
    """What decodes samples, where no decoder is given."""

    OF_THE_ENCODER = "the decoder of the task encoder"


class WebdatasetSettings(TypedDict, total=False):
    """What is said of a prepared folder of tars, whatever its samples are; see `BaseWebdatasetFactory`."""

    split_part: str
    training: bool
    worker_config: Any
    shuffle_over_epochs: EpochsPerShuffle
    parallel_shard_iters: int | None
    max_samples_per_sequence: int | None
    subset: SubsetRange | None
    split_config: str | None


class GenericSettings(WebdatasetSettings, total=False):
    """What is said besides of how its samples are built; see `DefaultGenericWebdatasetFactory`."""

    subflavors: Mapping[str, Any] | None
    field_map: Mapping[str, str] | None
    sample_loader: str | Callable[[Parts], Any] | None
    part_filter: str | Sequence[str] | Callable[[str], bool] | None


class DecoderSettings(GenericSettings, total=False):
    """What is said besides of decoding; see `DefaultDecoderWebdatasetFactory`."""

    decoder: Decode | Decoding | None


class BaseCoreDatasetFactory(abc.ABC, Generic[T_sample]):
    """A single data set, described; `subflavors` are given to its samples, of the class `__sample_type__`."""

    __sample_type__: ClassVar[SampleClass]
    training: bool = True
    subflavors: dict[str, Any]

    @abc.abstractmethod
    def source(self) -> Source:
        """The data set, opened.

        Raises:
            ConfigError: if it is not as described. DatasetError: if the data are not what their metadata say.
        """

    def build(self) -> Plan:
        """The plan that is this data set alone, for training or validation, as `training` says.

        Raises:
            ConfigError: if it is not as described, or has no samples. DatasetError: if the data are not what their
            metadata say.
        """
        source = self.source()
        return plan_of(source, training=self.training, what=f"{source.path}: the split part {source.split_part!r}")

    def __len__(self) -> int:
        return self.source().num_samples


class BaseWebdatasetFactory(BaseCoreDatasetFactory[T_sample]):
    """The part `split_part` of the prepared folder of tars `path`; derive from it to make samples of bytes.

    Args:
        shuffle_over_epochs: how many epochs are shuffled together (see `bridge_data.plan.weights`).
        subset: a range of the samples.
        split_config: the file in `.nv-meta` that says which shards the part has; `split.yaml` if None.
        part_filter: says of a part's name whether it is read; all are if None.
        worker_config, parallel_shard_iters, max_samples_per_sequence: taken without effect (see `bridge_data.ignored`).

    Raises:
        ConfigError: for wrong settings.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str = "train",
        training: bool = True,
        worker_config: Any = None,
        shuffle_over_epochs: EpochsPerShuffle = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: SubsetRange | None = None,
        split_config: str | None = None,
        part_filter: Callable[[str], bool] | None = None,
    ) -> None:
        if not issubclass(getattr(self, "__sample_type__", type(None)), (Sample, CrudeSample)):
            raise ConfigError(f"{type(self).__name__}: __sample_type__ is missing: name a class derived from Sample")
        warn_ignored(
            worker_config=worker_config,
            parallel_shard_iters=parallel_shard_iters,
            max_samples_per_sequence=max_samples_per_sequence,
        )
        self.path = location(path).absolute()
        self.split_part, self.split_config, self.training = split_part, split_config, training
        self.shuffle_over_epochs = check_epochs(shuffle_over_epochs)
        self.subset = subset
        self.subflavors = {}
        self._parts: Container[str] | None = None if part_filter is None else ChosenParts(part_filter)

    @property
    def paths(self) -> list[Location]:
        """The folder."""
        return [self.path]

    @abc.abstractmethod
    def load_sample(self, sample: Parts) -> T_sample:
        """A sample of its parts, which are bytes, with `__key__`, `__shard__`, `__sources__` and `__restore_key__`.

        It may raise `SkipSample`, and must not draw random numbers.
        """

    def source(self) -> Source:
        """The data set, opened, whose samples `load_sample` makes; see `BaseCoreDatasetFactory.source`."""
        return self._source({}, self)

    def maker(self, decode: Decode | None, subflavors: dict[str, Any]) -> Callable[[Parts], T_sample]:
        """`load_sample` with these sub-flavors; `decode` is not used by this class."""
        bound = copy.copy(self)
        bound.subflavors = subflavors
        return bound.load_sample

    def _source(self, field_map: Mapping[str, FieldAccess], maker: "BaseWebdatasetFactory[Any] | None") -> Source:
        records: Records = open_shards(self.path, self.split_part, split_config=self.split_config)
        if self.subset is not None:
            records = Subset(records, *self.subset.resolve(records.num_samples))
        return Source(
            path=str(self.path),
            split_part=self.split_part,
            records=records,
            sample_class=self.__sample_type__,
            field_map=field_map,
            parts=self._parts,
            subflavors=self.subflavors,
            config_file=f"{type(self).__name__} of {self.path}",
            maker=maker,
            epochs_per_shuffle=self.shuffle_over_epochs,
        )

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.path} [{self.split_part}])"


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory[T_sample]):
    """A prepared folder whose samples get their fields from bytes, by a field map or a function.

    Args:
        field_map: which part gives each field, such as `{"image": "jpg", "caption": "json[caption]"}`.
        sample_loader: a function of the parts that returns the fields, in place of the field map; as text,
            `file.py:function` in the folder's `.nv-meta`, which is run.
        part_filter: for a sample_loader, and for crude samples: the parts to read, by name or by a function.
        settings: those of `BaseWebdatasetFactory`.

    Raises:
        ConfigError: for wrong settings.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        subflavors: Mapping[str, Any] | None = None,
        field_map: Mapping[str, str] | None = None,
        sample_loader: str | Callable[[Parts], Any] | None = None,
        part_filter: str | Sequence[str] | Callable[[str], bool] | None = None,
        **settings: Unpack[WebdatasetSettings],
    ) -> None:
        super().__init__(path, **settings)
        self.subflavors = dict(subflavors or {})
        self._sample_loader = self._function(sample_loader, "sample_loader")
        self._field_map: dict[str, FieldAccess] = {}
        if issubclass(self.__sample_type__, CrudeSample):
            if field_map is not None or sample_loader is not None:
                raise self._error("crude samples have no field_map and no sample_loader")
        elif (field_map is None) == (sample_loader is None):
            raise self._error(
                f"expected one of field_map and sample_loader, got {'none' if field_map is None else 'both'}"
            )
        if field_map is not None:
            if part_filter is not None:
                raise self._error("part_filter: a field_map says which parts it needs; remove one of them")
            self._field_map = read_field_map(as_node(field_map, str(self)), self.__sample_type__)
            self._parts = needed_parts(self._field_map)
        elif part_filter is not None:
            chosen = self._function(part_filter, "part_filter")
            self._parts = ChosenParts(chosen) if callable(chosen) else frozenset(chosen)

    def load_sample(self, sample: Parts) -> T_sample:
        """The sample whose fields the field map or the sample_loader gives of the parts, which stay as they are."""
        fields: Any = sample
        if self._sample_loader is not None:
            fields = self._sample_loader(sample)
        elif self._field_map:
            fields = {name: access.get(sample) for name, access in self._field_map.items()}
        result: T_sample = made(self.__sample_type__, fields, sample, self.subflavors, f"{self}: sample_loader")
        return result

    def _function(self, given: Any, what: str) -> Any:
        return load_function(given, what, str(self.path / META_FOLDER)) if isinstance(given, str) else given

    def _error(self, message: str) -> ConfigError:
        return ConfigError(f"{self}: {message}")


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory[T_sample]):
    """A prepared folder whose samples are decoded first.

    Args:
        decoder: what decodes them: the task encoder's by default; None for nothing.
        settings: those of `DefaultGenericWebdatasetFactory`.

    Raises:
        ConfigError: for wrong settings.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        decoder: Decode | Decoding | None = Decoding.OF_THE_ENCODER,
        **settings: Unpack[GenericSettings],
    ) -> None:
        super().__init__(path, **settings)
        self._decoder = decoder

    def load_sample(self, sample: Parts) -> T_sample:
        """The sample whose fields the field map or the sample_loader gives of the decoded parts."""
        decoder = self._decoder
        return super().load_sample(sample if decoder is None or isinstance(decoder, Decoding) else decoder(sample))

    def maker(self, decode: Decode | None, subflavors: dict[str, Any]) -> Callable[[Parts], T_sample]:
        """`load_sample` with these sub-flavors, and this decoder, if there is no other."""
        bound = copy.copy(self)
        bound.subflavors = subflavors
        bound._decoder = decode if isinstance(self._decoder, Decoding) else self._decoder
        return bound.load_sample

    def source(self) -> Source:
        """The data set, opened; see `BaseCoreDatasetFactory.source`."""
        is_plain = type(self).load_sample is DefaultDecoderWebdatasetFactory.load_sample
        if is_plain and self._sample_loader is None and isinstance(self._decoder, Decoding):
            return self._source(self._field_map, None)  # the common way, which reads and decodes no more than it must
        return self._source({}, self)


class StandardWebdatasetFactory(DefaultDecoderWebdatasetFactory[T_sample]):
    """A prepared folder with samples of the class `sample_type`; the other settings are those of
    `DefaultDecoderWebdatasetFactory`.

    Raises:
        ConfigError: for wrong settings.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, sample_type: SampleClass, **settings: Unpack[DecoderSettings]
    ) -> None:
        self.__sample_type__ = sample_type  # type: ignore[misc]  # the class of this data set alone
        super().__init__(path, **settings)
