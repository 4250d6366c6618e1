"""The names of `megatron.energon` under its paths, and data sets described in Python: loaders and factories.

`bridge_data.energon` and its modules answer to every import from `megatron.energon` 7.4.1 (see `module_paths`).
"""

from typing import TYPE_CHECKING, Any

import bridge_data
from bridge_data.energon import module_paths
from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.dataset_loaders import (
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

_NAMES_BY_MODULE = {
    "bridge_data.dataset_loaders": (
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
"""The module of each public name: the same as the imports above, which only type checkers read."""

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

__all__ += sorted(module_paths.public_names() - {*__all__})  # names defined elsewhere, for `import *`

_own = names_of(__name__, _NAMES_BY_MODULE)
_own_names = {name for names in _NAMES_BY_MODULE.values() for name in names.split()}


def __getattr__(name: str) -> Any:
    """A name of this package, else our counterpart of the name in `megatron.energon`.

    Raises:
        ImportError: if Energon has it and this package does not, saying what to use instead.
    """
    if name not in _own_names and (name in bridge_data.__all__ or name in module_paths.NAMES or name == "__version__"):
        return module_paths.value_of(name)
    try:
        return _own(name)
    except AttributeError:
        raise module_paths.missing("", name) from None


module_paths.add_paths()
