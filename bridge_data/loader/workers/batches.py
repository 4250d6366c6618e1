"""Data sets for workers, and the batches and errors that come back, as bytes (see `samples.pickling`).

Reads a data set, and any batch that cloudpickle can pickle. Returns their pickles, of a batch with its buffers. Classes
that came from the trainer's `__main__` come back as the trainer's own classes.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import threading
import traceback
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as _internals

from bridge_data.errors import WorkerError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.samples.pickling import ByName, ReferencePickler, pieces_of, reduce_object

_MAX_TRACEBACK_CHARS = 8_000


class _CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Also pickles functions and classes by value that the trainer cannot import."""

    def __init__(self, file: io.BytesIO, classes: ByName, **options: Any) -> None:
        super().__init__(file, protocol=5, **options)
        self._classes = classes

    def reducer_override(self, obj: Any) -> Any:
        reduced = reduce_object(obj, self._classes)
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


def pickle_dataset(dataset: LaneDataset) -> tuple[bytes, list[str]]:
    """The pickle of a dataset, with classes from `__main__` by value, and the modules that loading and reading it
    import.

    Raises:
        WorkerError: if it cannot be pickled.
    """
    stream = io.BytesIO()
    pickler = _DatasetPickler(stream)
    try:
        with _script_by_value():
            pickler.dump(dataset)
    except Exception as error:
        raise WorkerError(
            f"the dataset cannot be sent to worker processes: {type(error).__name__}: {error}. "
            "Create what cannot be pickled (locks, open files, connections) when it is first used, "
            "and keep it out of global variables that your functions read; or use num_workers=0."
        ) from error
    return stream.getvalue(), [*dataset.modules, *pickler.modules]


@contextlib.contextmanager
def _script_by_value() -> Iterator[None]:
    """Let cloudpickle pickle by value what is in `__mp_main__`: that is `__main__` in processes that multiprocessing
    spawns. One thread at a time, as that holds for the process."""
    script = sys.modules.get("__mp_main__")
    with _REGISTRY:
        if script is None or script.__name__ in cloudpickle.list_registry_pickle_by_value():
            yield
            return
        cloudpickle.register_pickle_by_value(script)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(script)


_REGISTRY = threading.Lock()


class BatchPickler:
    """Pickles the batches and errors of a worker. Create it after the worker has loaded the dataset."""

    def __init__(self) -> None:
        # Classes of `__main__` came with the dataset by value. Sent back by value, each batch would be slow and large,
        # and would overwrite the methods of the trainer's class; cloudpickle's own ids lead back to that class.
        tracked = _internals._DYNAMIC_CLASS_TRACKER_BY_CLASS
        self._trainer_classes: ByName = {cls: (_trainer_class, (number,)) for cls, number in tracked.items()}
        self._pickler: type[ReferencePickler] | type[_CloudPickler] = ReferencePickler

    def pieces_of(self, batch: Any) -> list[pickle.PickleBuffer]:
        """`batch` in pieces: its pickle first, then the memory of each tensor and array."""
        if self._pickler is ReferencePickler:
            with contextlib.suppress(Exception):
                return pieces_of(batch, ReferencePickler, self._trainer_classes)
        pieces = pieces_of(batch, _CloudPickler, self._trainer_classes)
        self._pickler = _CloudPickler  # later batches will need it too
        return pieces

    def pickle_error(self, error: BaseException, where: str) -> tuple[bytes | None, str]:
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


def _trainer_class(tracker_id: str) -> type:
    """The class to which cloudpickle gave this id when the dataset was pickled in this process."""
    found: type = _internals._DYNAMIC_CLASS_TRACKER_BY_ID[tracker_id]
    return found
