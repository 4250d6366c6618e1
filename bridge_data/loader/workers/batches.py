"""Batches and errors as bytes, with tensors and arrays as buffers of their own.

Enters: any batch that cloudpickle can pickle. Leaves: its pickle and the buffers, which are not copied on arrival.
Guarantee: dense CPU tensors of any dtype and shape, and numpy arrays, come back equal, as views of the buffers they
are decoded from; classes that came from the trainer's `__main__` come back as the trainer's own classes.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import traceback
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
from cloudpickle import cloudpickle as _internals

from bridge_data.errors import WorkerError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.later import is_tensor, torch
from bridge_data.samples import Batch, Sample, SourceInfo
from bridge_data.samples.collation import is_plain

_MAX_TRACEBACK_CHARS = 8_000


class _Pickler(pickle.Pickler):
    """Pickles by reference, which is fast and enough for most batches."""

    def __init__(self, file: io.BytesIO, trainer_classes: Mapping[type, str], **options: Any) -> None:
        super().__init__(file, protocol=5, **options)
        self._trainer_classes = trainer_classes

    def reducer_override(self, obj: Any) -> Any:
        return _reduce(obj, self._trainer_classes)


class _CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Also pickles functions and classes by value that the trainer cannot import."""

    def __init__(self, file: io.BytesIO, trainer_classes: Mapping[type, str], **options: Any) -> None:
        super().__init__(file, protocol=5, **options)
        self._trainer_classes = trainer_classes

    def reducer_override(self, obj: Any) -> Any:
        reduced = _reduce(obj, self._trainer_classes)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


class _DatasetPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Records the modules that unpickling will import."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.modules: dict[str, None] = {}

    def reducer_override(self, obj: Any) -> Any:
        module = getattr(obj, "__name__" if isinstance(obj, ModuleType) else "__module__", None)
        if isinstance(module, str) and module not in ("__main__", "__mp_main__"):
            self.modules[module] = None
        return super().reducer_override(obj)


def encode_dataset(dataset: LaneDataset) -> tuple[bytes, list[str]]:
    """The pickle of a dataset, with classes from `__main__` by value, and the modules that loading and reading it
    import.

    Raises:
        WorkerError: if it cannot be pickled.
    """
    stream = io.BytesIO()
    pickler = _DatasetPickler(stream)
    script = sys.modules.get("__mp_main__")  # `__main__` in processes that multiprocessing spawns
    if script is not None:
        cloudpickle.register_pickle_by_value(script)
    try:
        pickler.dump(dataset)
    except Exception as error:
        raise WorkerError(
            f"the dataset cannot be sent to worker processes: {type(error).__name__}: {error}. "
            "Create what cannot be pickled (locks, open files, connections) when it is first used, "
            "and keep it out of global variables that your functions read; or use num_workers=0."
        ) from error
    finally:
        if script is not None:
            cloudpickle.unregister_pickle_by_value(script)
    return stream.getvalue(), [*dataset.modules, *pickler.modules]


class Encoder:
    """Encodes the batches and errors of a worker. Create it after the worker has loaded the dataset."""

    def __init__(self) -> None:
        # Classes of `__main__` came with the dataset by value. Sent back by value, each batch would be slow and large,
        # and would overwrite the methods of the trainer's class; cloudpickle's own ids lead back to that class.
        self._trainer_classes: dict[type, str] = dict(_internals._DYNAMIC_CLASS_TRACKER_BY_CLASS)
        self._pickler: type[_Pickler] | type[_CloudPickler] = _Pickler

    def encode(self, batch: Any) -> list[pickle.PickleBuffer]:
        """`batch` in parts: its pickle first, then the memory of each tensor and array."""
        if self._pickler is _Pickler:
            with contextlib.suppress(Exception):
                return _parts_of(batch, _Pickler, self._trainer_classes)
        parts = _parts_of(batch, _CloudPickler, self._trainer_classes)
        self._pickler = _CloudPickler  # later batches will need it too
        return parts

    def encode_error(self, error: BaseException, where: str) -> tuple[bytes | None, str]:
        """An exception with its traceback as a note, pickled (None if it cannot be), and the traceback as text."""
        text = "".join(traceback.format_exception(error)).rstrip()
        if len(text) > _MAX_TRACEBACK_CHARS:
            text = f"{text[: _MAX_TRACEBACK_CHARS // 2]}\n...\n{text[-_MAX_TRACEBACK_CHARS // 2 :]}"
        text = f"{where}:\n{text}"
        with contextlib.suppress(Exception):
            error.add_note(text)
            stream = io.BytesIO()
            _CloudPickler(stream, self._trainer_classes).dump(error)
            if type(pickle.loads(stream.getvalue())) is type(error):
                return stream.getvalue(), text
        return None, text


def encode_by_reference(value: Any) -> list[pickle.PickleBuffer]:
    """`value` in parts, as `Encoder.encode` returns them, for another process that runs the same script."""
    return _parts_of(value, _Pickler, {})


def _parts_of(
    value: Any, pickler: type[_Pickler] | type[_CloudPickler], trainer_classes: Mapping[type, str]
) -> list[pickle.PickleBuffer]:
    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickler(stream, trainer_classes, buffer_callback=buffers.append).dump(value)
    return [pickle.PickleBuffer(stream.getbuffer()), *buffers]


def decode(parts: Iterable[Any]) -> Any:
    """The batch of these parts. Its tensors and arrays are views of them."""
    first, *buffers = parts
    return pickle.loads(first, buffers=buffers)


def _reduce_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.numel() == 0:
        return _empty_tensor, (tensor.dtype, tuple(tensor.shape), tensor.requires_grad)
    base, order = tensor.detach(), None
    if not base.is_contiguous():  # sent in memory order, and permuted back on arrival
        order = sorted(range(base.ndim), key=base.stride, reverse=True)
        base = base.permute(order)
    values = base.contiguous().as_strided((base.numel(),), (1,))  # a dimension of size 1 may have any stride
    memory = values.view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(memory.data), tensor.dtype, tuple(base.shape), tensor.requires_grad, order)


def _tensor(
    memory: Any, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool, order: list[int] | None
) -> torch.Tensor:
    tensor = torch.frombuffer(memory, dtype=dtype).reshape(shape)
    if order is not None:
        tensor = tensor.permute([order.index(dimension) for dimension in range(len(order))])
    return tensor.requires_grad_(requires_grad)


def _empty_tensor(dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, requires_grad=requires_grad)


def _reduce(obj: Any, trainer_classes: Mapping[type, str]) -> Any:
    """The result of `reducer_override` for an object of a batch."""
    kind = type(obj)
    if is_tensor(obj) and kind is torch.Tensor:
        return _reduce_tensor(obj) if is_plain(obj) else NotImplemented
    if kind is np.ndarray:
        if obj.flags.forc or obj.dtype.hasobject:
            return NotImplemented
        return np.ascontiguousarray(obj).__reduce_ex__(5)
    if kind is _Columns:
        return _sources, obj.columns
    if isinstance(obj, type):
        return (_trainer_class, (trainer_classes[obj],)) if obj in trainer_classes else NotImplemented
    by_attributes = kind in trainer_classes and not hasattr(kind, "__setstate__")
    with_sources = isinstance(obj, (Sample, Batch)) and obj.__sources__
    if not (by_attributes or with_sources):
        return NotImplemented
    reduced = obj.__reduce_ex__(5)
    if with_sources:
        reduced = _with_source_columns(reduced)
    return _reduce_to_attributes(reduced) if by_attributes else reduced


class _Columns:
    """The sources of a batch as columns: pickling a few lists is faster than pickling many objects."""

    def __init__(self, sources: tuple[SourceInfo, ...]) -> None:
        self.columns = (
            [source.dataset_path for source in sources],
            [source.index for source in sources],
            [source.shard_name for source in sources],
            [source.file_names for source in sources],
        )


def _sources(
    dataset_paths: list[str], indexes: list[int | str], shard_names: list[str], file_names: list[tuple[str, ...]]
) -> tuple[SourceInfo, ...]:
    sources = []
    for path, index, shard, names in zip(dataset_paths, indexes, shard_names, file_names, strict=True):
        source = object.__new__(SourceInfo)  # three times as fast as the constructor
        source.dataset_path, source.index, source.shard_name, source.file_names = path, index, shard, names
        sources.append(source)
    return tuple(sources)


def _with_source_columns(reduced: Any) -> Any:
    """`reduced` with the sources in the object's state as columns, if that state is a dict."""
    if isinstance(reduced, str) or len(reduced) < 3:
        return reduced
    state = reduced[2]
    parts = [_with_columns(part) for part in (state if isinstance(state, tuple) else (state,))]
    return *reduced[:2], tuple(parts) if isinstance(state, tuple) else parts[0], *reduced[3:]


def _with_columns(part: Any) -> Any:
    sources = part.get("__sources__") if isinstance(part, dict) else None
    if type(sources) is not tuple or any(type(source) is not SourceInfo for source in sources):
        return part
    return {**part, "__sources__": _Columns(sources)}


def _reduce_to_attributes(reduced: Any) -> Any:
    """`reduced` with its state set attribute by attribute: a class pickled by value loses its `__slots__`, so instances
    in the worker have a `__dict__` and those in the trainer have slots."""
    if isinstance(reduced, str) or len(reduced) < 3 or reduced[2] is None:
        return reduced
    return *reduced, *(None,) * (5 - len(reduced)), _set_attributes


def _set_attributes(obj: Any, state: Any) -> None:
    for part in state if isinstance(state, tuple) else (state,):
        for name, value in (part or {}).items():
            object.__setattr__(obj, name, value)


def _trainer_class(tracker_id: str) -> type:
    """The class to which cloudpickle gave this id when the dataset was pickled in this process."""
    found: type = _internals._DYNAMIC_CLASS_TRACKER_BY_ID[tracker_id]
    return found
