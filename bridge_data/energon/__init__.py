"""Data sets described in Python under Energon's names: loaders, and factories of each sample class."""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.energon.dataset_loaders import (
        DatasetLoader,
        DatasetLoaderInterface,
        Metadataset,
        MetadatasetV2,
        TraversedDatasetReference,
        load_dataset,
        traverse_metadataset,
    )
    from bridge_data.energon.jsonl_and_joined import (
        CrudeJsonlDatasetFactory,
        DefaultCrudeJsonlDatasetFactory,
        JoinedWebdatasetFactory,
    )
    from bridge_data.energon.replacing import replace_energon
    from bridge_data.energon.webdatasets import (
        BaseWebdatasetFactory,
        CaptioningWebdataset,
        CrudeWebdataset,
        DefaultDecoderWebdatasetFactory,
        DefaultGenericWebdatasetFactory,
        ImageClassificationWebdataset,
        ImageWebdataset,
        InterleavedWebdataset,
        MultiChoiceVQAWebdataset,
        OCRWebdataset,
        SimilarityInterleavedWebdataset,
        StandardWebdatasetFactory,
        TextWebdataset,
        VidQAWebdataset,
        VQAOCRWebdataset,
        VQAWebdataset,
    )
    from bridge_data.plan.factories import BaseCoreDatasetFactory
    from bridge_data.prepare.metadataset_joins import prepare_metadataset

_PLACES = {
    "bridge_data.energon.dataset_loaders": (
        "DatasetLoader DatasetLoaderInterface Metadataset MetadatasetV2 TraversedDatasetReference "
        "load_dataset traverse_metadataset"
    ),
    "bridge_data.energon.jsonl_and_joined": (
        "CrudeJsonlDatasetFactory DefaultCrudeJsonlDatasetFactory JoinedWebdatasetFactory"
    ),
    "bridge_data.energon.replacing": "replace_energon",
    "bridge_data.energon.webdatasets": (
        "BaseWebdatasetFactory CaptioningWebdataset CrudeWebdataset DefaultDecoderWebdatasetFactory "
        "DefaultGenericWebdatasetFactory ImageClassificationWebdataset ImageWebdataset InterleavedWebdataset "
        "MultiChoiceVQAWebdataset OCRWebdataset SimilarityInterleavedWebdataset StandardWebdatasetFactory "
        "TextWebdataset VidQAWebdataset VQAOCRWebdataset VQAWebdataset"
    ),
    "bridge_data.plan.factories": "BaseCoreDatasetFactory",
    "bridge_data.prepare.metadataset_joins": "prepare_metadataset",
}
"""The module of each public name: the same as above, for Python, as that is for those who read and check types."""

__all__ = [
    "BaseCoreDatasetFactory",
    "BaseWebdatasetFactory",
    "CaptioningWebdataset",
    "CrudeJsonlDatasetFactory",
    "CrudeWebdataset",
    "DatasetLoader",
    "DatasetLoaderInterface",
    "DefaultCrudeJsonlDatasetFactory",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "ImageClassificationWebdataset",
    "ImageWebdataset",
    "InterleavedWebdataset",
    "JoinedWebdatasetFactory",
    "Metadataset",
    "MetadatasetV2",
    "MultiChoiceVQAWebdataset",
    "OCRWebdataset",
    "SimilarityInterleavedWebdataset",
    "StandardWebdatasetFactory",
    "TextWebdataset",
    "TraversedDatasetReference",
    "VQAOCRWebdataset",
    "VQAWebdataset",
    "VidQAWebdataset",
    "load_dataset",
    "prepare_metadataset",
    "replace_energon",
    "traverse_metadataset",
]

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, _PLACES)
