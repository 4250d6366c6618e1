"""Factories of prepared folders of tars: the classes to derive from, and one for each sample class.

`CaptioningWebdataset(path, field_map=...)` describes in Python what a dataset.yaml would. The names and the
settings are those of Energon.
"""

import copy
import enum
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from bridge_data.data import Records, open_shards
from bridge_data.data.metadata import META_FOLDER
from bridge_data.data.plain_data import as_node
from bridge_data.energon.path_factory import FactorySettings, PathDatasetFactory
from bridge_data.errors import ConfigError
from bridge_data.plan.dataset_yaml import needed_parts, read_field_map
from bridge_data.plan.factories import ChosenParts, Decode, T_sample, load_function, made
from bridge_data.plan.source import FieldAccess, Parts, SampleClass, Source, other_names, renamed
from bridge_data.samples import (
    CaptioningSample,
    CrudeSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
)


class Decoding(enum.Enum):
    """The decoder of a factory without one of its own."""

    OF_THE_ENCODER = "the decoder of the task encoder"


class GenericSettings(FactorySettings, total=False):
    """Settings that also say how samples are built; see `DefaultGenericWebdatasetFactory`."""

    subflavors: Mapping[str, Any] | None
    field_map: Mapping[str, str] | None
    sample_loader: str | Callable[[Parts], Any] | None
    part_filter: str | Sequence[str] | Callable[[str], bool] | None


class DecoderSettings(GenericSettings, total=False):
    """Settings that also say how parts are decoded; see `DefaultDecoderWebdatasetFactory`."""

    decoder: Decode | Decoding | None


class BaseWebdatasetFactory(PathDatasetFactory[T_sample]):
    """The part `split_part` of the prepared folder of tars `path`; derive from it to make samples from bytes.

    The settings are those of `PathDatasetFactory`; `split_config` is a file in `.nv-meta`, `split.yaml` if None.
    """

    @classmethod
    def prepare_dataset(cls, parent_path: str | os.PathLike[str], paths: Sequence[str], **settings: Any) -> set[str]:
        """See `bridge_data.energon.preparing.prepare_dataset`."""
        from bridge_data.energon.preparing import prepare_dataset  # here: programs that train do not prepare

        return prepare_dataset(parent_path, paths, **settings)

    def _open(self) -> Records:
        return open_shards(self.path, self.split_part, split_config=self.split_config)


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory[T_sample]):
    """A prepared folder whose samples get their fields from bytes, by a field map or a function.

    Args:
        field_map: the part for each field, such as `{"image": "jpg", "caption": "json[caption]"}`.
        sample_loader: a function of the parts that returns the fields, instead of the field map; as text,
            `file.py:function` in the folder's `.nv-meta`, which is run.
        part_filter: for a sample_loader, and for crude samples: the parts to read, by name or by a function.
        settings: those of `PathDatasetFactory`.

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
        **settings: Unpack[FactorySettings],
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
            self._other_names = other_names(part for access in self._field_map.values() for part in access.parts)
        elif part_filter is not None:
            chosen = self._function(part_filter, "part_filter")
            self._parts = ChosenParts(chosen) if callable(chosen) else frozenset(chosen)

    def load_sample(self, sample: Parts) -> T_sample:
        """The sample with the fields that the field map or the sample_loader takes from the undecoded parts."""
        fields: Any = sample
        if self._sample_loader is not None:
            fields = self._sample_loader(sample)
        elif self._field_map:
            named = renamed(sample, self._other_names, str(sample.get("__key__", "(no key)")))
            fields = {name: access.get(named) for name, access in self._field_map.items()}
        result: T_sample = made(self.__sample_type__, fields, sample, self.subflavors, f"{self}: sample_loader")
        return result

    def _function(self, given: Any, what: str) -> Any:
        return load_function(given, what, str(self.path / META_FOLDER)) if isinstance(given, str) else given

    def _error(self, message: str) -> ConfigError:
        return ConfigError(f"{self}: {message}")


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory[T_sample]):
    """A prepared folder whose samples are decoded first.

    Args:
        decoder: decodes the parts; by default the task encoder's; None: no decoding.
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
        """The sample with the fields that the field map or the sample_loader takes from the decoded parts."""
        decoder = self._decoder
        return super().load_sample(sample if decoder is None or isinstance(decoder, Decoding) else decoder(sample))

    def load_function(self, decode: Decode | None, subflavors: dict[str, Any]) -> Callable[[Parts], T_sample]:
        """`load_sample` with these sub-flavors, and with `decode` unless the factory was given a decoder."""
        bound = copy.copy(self)
        bound.subflavors = subflavors
        bound._decoder = decode if isinstance(self._decoder, Decoding) else self._decoder
        return bound.load_sample

    def source(self) -> Source:
        is_plain = type(self).load_sample is DefaultDecoderWebdatasetFactory.load_sample
        if is_plain and self._sample_loader is None and isinstance(self._decoder, Decoding):
            return self._source(None, self._field_map)  # reads and decodes only the parts that are needed
        return self._source(self)


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


class CaptioningWebdataset(DefaultDecoderWebdatasetFactory[CaptioningSample]):
    """A prepared folder of images with captions.

    >>> from bridge_data import CaptioningSample, ShardWriter
    >>> from PIL import Image
    >>> fields = {"image": "png", "caption": "txt"}
    >>> with ShardWriter("pictures", sample_type=CaptioningSample, field_map=fields) as writer:
    ...     writer.write({"__key__": "0", "png": Image.new("RGB", (4, 4)), "txt": "a black square"})
    >>> CaptioningWebdataset("pictures", split_part="train", training=False, field_map=fields).build().num_samples
    1
    """

    __sample_type__ = CaptioningSample


class CrudeWebdataset(DefaultDecoderWebdatasetFactory[CrudeSample]):
    """A prepared folder of crude samples, which a cooker turns into others."""

    __sample_type__ = CrudeSample


class ImageClassificationWebdataset(DefaultDecoderWebdatasetFactory[ImageClassificationSample]):
    """A prepared folder of images with labels."""

    __sample_type__ = ImageClassificationSample


class ImageWebdataset(DefaultDecoderWebdatasetFactory[ImageSample]):
    """A prepared folder of images."""

    __sample_type__ = ImageSample


class InterleavedWebdataset(DefaultDecoderWebdatasetFactory[InterleavedSample]):
    """A prepared folder of documents in which texts and images take turns."""

    __sample_type__ = InterleavedSample


class MultiChoiceVQAWebdataset(DefaultDecoderWebdatasetFactory[MultiChoiceVQASample]):
    """A prepared folder of questions about images, with the answers to choose from."""

    __sample_type__ = MultiChoiceVQASample


class OCRWebdataset(DefaultDecoderWebdatasetFactory[OCRSample]):
    """A prepared folder of images of text."""

    __sample_type__ = OCRSample


class SimilarityInterleavedWebdataset(DefaultDecoderWebdatasetFactory[SimilarityInterleavedSample]):
    """A prepared folder of documents with texts and images, and how well they match."""

    __sample_type__ = SimilarityInterleavedSample


class TextWebdataset(DefaultDecoderWebdatasetFactory[TextSample]):
    """A prepared folder of texts."""

    __sample_type__ = TextSample


class VidQAWebdataset(DefaultDecoderWebdatasetFactory[VidQASample]):
    """A prepared folder of questions about videos."""

    __sample_type__ = VidQASample


class VQAOCRWebdataset(DefaultDecoderWebdatasetFactory[VQAOCRSample]):
    """A prepared folder of questions about images of text."""

    __sample_type__ = VQAOCRSample


class VQAWebdataset(DefaultDecoderWebdatasetFactory[VQASample]):
    """A prepared folder of questions about images."""

    __sample_type__ = VQASample
