"""The file stores that the cookers of a source are given.

Enters: a source and the task encoder's decoder. Leaves: a store for each of its auxiliary data, by name, and one of its
own data set. What is read from them is decoded by the extensions of their names, as the parts of samples are.
"""

from typing import Any

from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError
from bridge_data.plan import Source
from bridge_data.plan.document import is_jsonl
from bridge_data.task.stores.dataset_store import JsonlFileStore, WebdatasetFileStore
from bridge_data.task.stores.file_store import DecodeFileStore, FileStore
from bridge_data.task.stores.folder import SystemFileStore


def open_aux(source: Source, decoder: SampleDecoder | None) -> dict[str, FileStore[Any]]:
    """The stores of the auxiliary data of `source`; without a decoder, they give bytes.

    Raises:
        ConfigError: if one is not there. DatasetError: if it cannot be read.
    """
    stores: dict[str, FileStore[Any]] = {}
    for name, reference in source.aux.items():
        kind = SystemFileStore if reference.kind == "folder" else WebdatasetFileStore
        stores[name] = _decoded(kind(reference.path, name=name), decoder)
    return stores


def open_primary(source: Source, decoder: SampleDecoder | None) -> FileStore[Any]:
    """The store of the data set that `source` is a part of; without a decoder, it gives bytes.

    Raises:
        ConfigError: if its parts cannot be found by their names: it is joined, or has no index of its keys.
    """
    if source.joined is not None:
        raise ConfigError(
            f"{source.path}: its samples are joined of several data sets, so there is no primary one; name those to be "
            "read in `aux`"
        )
    kind = JsonlFileStore if is_jsonl(source.path) else WebdatasetFileStore
    return _decoded(kind(source.path), decoder)


def _decoded(store: FileStore[Any], decoder: SampleDecoder | None) -> FileStore[Any]:
    return store if decoder is None else DecodeFileStore(store, decoder=decoder)
