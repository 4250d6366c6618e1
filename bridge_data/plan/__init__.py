"""What is to be read: sources with their weights, from YAML files whose every mistake is found here.

A name is imported when it is first used: a command that checks a field map needs no blend.
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.plan.blending import Branch, EmptySplitError, Plan
    from bridge_data.plan.factories import (
        BaseCoreDatasetFactory,
        BaseWebdatasetFactory,
        DefaultDecoderWebdatasetFactory,
        DefaultGenericWebdatasetFactory,
        StandardWebdatasetFactory,
    )
    from bridge_data.plan.field_map import FieldAccess, parse_access
    from bridge_data.plan.flavors import (
        CaptioningWebdataset,
        CrudeWebdataset,
        ImageClassificationWebdataset,
        ImageWebdataset,
        InterleavedWebdataset,
        MultiChoiceVQAWebdataset,
        OCRWebdataset,
        SimilarityInterleavedWebdataset,
        TextWebdataset,
        VidQAWebdataset,
        VQAOCRWebdataset,
        VQAWebdataset,
    )
    from bridge_data.plan.loaders import (
        DatasetLoader,
        DatasetLoaderInterface,
        Metadataset,
        MetadatasetV2,
        TraversedDatasetReference,
        load_dataset,
        traverse_metadataset,
    )
    from bridge_data.plan.metadataset import load_plan
    from bridge_data.plan.prepare_joins import prepare_metadataset
    from bridge_data.plan.source import Source

_PLACES = {
    "bridge_data.plan.blending": "Branch EmptySplitError Plan",
    "bridge_data.plan.factories": (
        "BaseCoreDatasetFactory BaseWebdatasetFactory DefaultDecoderWebdatasetFactory "
        "DefaultGenericWebdatasetFactory StandardWebdatasetFactory"
    ),
    "bridge_data.plan.field_map": "FieldAccess parse_access",
    "bridge_data.plan.flavors": (
        "CaptioningWebdataset CrudeWebdataset ImageClassificationWebdataset ImageWebdataset InterleavedWebdataset "
        "MultiChoiceVQAWebdataset OCRWebdataset SimilarityInterleavedWebdataset TextWebdataset VidQAWebdataset "
        "VQAOCRWebdataset VQAWebdataset"
    ),
    "bridge_data.plan.loaders": (
        "DatasetLoader DatasetLoaderInterface Metadataset MetadatasetV2 TraversedDatasetReference load_dataset "
        "traverse_metadataset"
    ),
    "bridge_data.plan.metadataset": "load_plan",
    "bridge_data.plan.prepare_joins": "prepare_metadataset",
    "bridge_data.plan.source": "Source",
}
"""The module of each public name: the same as above, for Python, as that is for those who read and check types."""

__all__ = [
    "BaseCoreDatasetFactory",
    "BaseWebdatasetFactory",
    "Branch",
    "CaptioningWebdataset",
    "CrudeWebdataset",
    "DatasetLoader",
    "DatasetLoaderInterface",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "EmptySplitError",
    "FieldAccess",
    "ImageClassificationWebdataset",
    "ImageWebdataset",
    "InterleavedWebdataset",
    "Metadataset",
    "MetadatasetV2",
    "MultiChoiceVQAWebdataset",
    "OCRWebdataset",
    "Plan",
    "SimilarityInterleavedWebdataset",
    "Source",
    "StandardWebdatasetFactory",
    "TextWebdataset",
    "TraversedDatasetReference",
    "VQAOCRWebdataset",
    "VQAWebdataset",
    "VidQAWebdataset",
    "load_dataset",
    "load_plan",
    "parse_access",
    "prepare_metadataset",
    "traverse_metadataset",
]

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, _PLACES)
