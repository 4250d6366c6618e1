"""The names of `megatron.energon` under its paths, and data sets described in Python: loaders and factories.

`bridge_data.energon` and its modules have every name that can be imported from `megatron.energon` 7.4.1. A name that is
left out on purpose raises an error when it is called, which says what to use instead.

    module_paths       each path of Energon's, and the names there
    engine_names       names of its engine: what works alone, and stand-ins that programs can import
    replacing          `replace_energon`: `megatron.energon` itself is this package, in programs that cannot be edited
    path_factory       what factories of a path share
    webdatasets        factories of prepared folders of tars
    jsonl_and_joined   factories of JSONL files, joins, and prepared data as their own files describe them
    dataset_wrappers   `MapDataset`, `FilterDataset`, `BatchDataset`: functions of the user around the encoder
    preparing, epath   preparing from Python, and paths, with the arguments of Energon's

A further name is a row in `module_paths.PATHS`, and in `ELSEWHERE` if it is not in `bridge_data`.
"""

from typing import TYPE_CHECKING, Any

from bridge_data.energon import module_paths
from bridge_data.energon.engine_names import has_stand_in, stand_in
from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.energon.jsonl_and_joined import CrudeJsonlDatasetFactory as CrudeJsonlDatasetFactory
    from bridge_data.energon.jsonl_and_joined import DefaultCrudeJsonlDatasetFactory as DefaultCrudeJsonlDatasetFactory
    from bridge_data.energon.jsonl_and_joined import JoinedWebdatasetFactory as JoinedWebdatasetFactory
    from bridge_data.energon.replacing import replace_energon as replace_energon
    from bridge_data.energon.webdatasets import BaseWebdatasetFactory as BaseWebdatasetFactory
    from bridge_data.energon.webdatasets import CaptioningWebdataset as CaptioningWebdataset
    from bridge_data.energon.webdatasets import CrudeWebdataset as CrudeWebdataset
    from bridge_data.energon.webdatasets import DefaultDecoderWebdatasetFactory as DefaultDecoderWebdatasetFactory
    from bridge_data.energon.webdatasets import DefaultGenericWebdatasetFactory as DefaultGenericWebdatasetFactory
    from bridge_data.energon.webdatasets import ImageClassificationWebdataset as ImageClassificationWebdataset
    from bridge_data.energon.webdatasets import ImageWebdataset as ImageWebdataset
    from bridge_data.energon.webdatasets import InterleavedWebdataset as InterleavedWebdataset
    from bridge_data.energon.webdatasets import MultiChoiceVQAWebdataset as MultiChoiceVQAWebdataset
    from bridge_data.energon.webdatasets import OCRWebdataset as OCRWebdataset
    from bridge_data.energon.webdatasets import SimilarityInterleavedWebdataset as SimilarityInterleavedWebdataset
    from bridge_data.energon.webdatasets import StandardWebdatasetFactory as StandardWebdatasetFactory
    from bridge_data.energon.webdatasets import TextWebdataset as TextWebdataset
    from bridge_data.energon.webdatasets import VidQAWebdataset as VidQAWebdataset
    from bridge_data.energon.webdatasets import VQAOCRWebdataset as VQAOCRWebdataset
    from bridge_data.energon.webdatasets import VQAWebdataset as VQAWebdataset
    from bridge_data.plan.factories import BaseCoreDatasetFactory as BaseCoreDatasetFactory
    from bridge_data.plan.opening import DatasetLoader as DatasetLoader
    from bridge_data.plan.opening import DatasetLoaderInterface as DatasetLoaderInterface
    from bridge_data.plan.opening import Metadataset as Metadataset
    from bridge_data.plan.opening import MetadatasetV2 as MetadatasetV2
    from bridge_data.plan.opening import TraversedDatasetReference as TraversedDatasetReference
    from bridge_data.plan.opening import load_dataset as load_dataset
    from bridge_data.plan.opening import traverse_metadataset as traverse_metadataset
    from bridge_data.plugins.joins.metadataset_joins import prepare_metadataset as prepare_metadataset


_own, _own_names = names_of(__name__)
__all__ = sorted({*_own_names} | module_paths.public_names())  # with names defined elsewhere, for `import *`


def __getattr__(name: str) -> Any:
    """A name of this package, else our counterpart of the name in `megatron.energon`.

    Raises:
        ImportError: if Energon has it and this package does not, saying what to use instead.
    """
    if name not in _own_names and (name in module_paths.PUBLIC or name in module_paths.NAMES or name == "__version__"):
        return module_paths.value_of(name)
    if has_stand_in("", name):
        return stand_in("", name, module_paths.message_of)
    try:
        return _own(name)
    except AttributeError:
        raise module_paths.missing("", name) from None


module_paths.add_paths()
