import collections
import dataclasses
import pickle
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from bridge_data.loader.workers.batches import BatchPickler, pickle_dataset
from bridge_data.samples import Batch, SourceInfo, TextSample, edataclass
from bridge_data.samples.pickling import from_pieces
from tests.loader.faults import AwkwardError
from tests.loader.streams import Streams, config, expected

TENSORS = {
    "float32": torch.randn(3, 4),
    "bfloat16": torch.randn(5, 2).to(torch.bfloat16),
    "float16": torch.randn(3).half(),
    "float8": torch.randn(4).to(torch.float8_e4m3fn),
    "bool": torch.tensor([[True, False], [False, True]]),
    "uint8": torch.arange(7, dtype=torch.uint8),
    "complex64": torch.randn(2, 2, dtype=torch.complex64),
    "conjugated": torch.randn(2, 2, dtype=torch.complex64).conj(),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.empty(0, 3, dtype=torch.bfloat16),
    "transposed": torch.randn(4, 6).t(),
    "strided": torch.arange(20)[::3],
    "permuted": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
    "one of a column": torch.arange(20).reshape(1, 20)[:, -1],
    "one of a strided volume": torch.arange(27).reshape(3, 3, 3)[:1, :1, :1],
    "expanded": torch.randn(1, 3).expand(4, 3),
    "part of a large one": torch.randn(1_000)[7:9],
    "with gradient": torch.randn(3, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.randn(2)),
    "sparse": torch.eye(3).to_sparse(),
}
ARRAYS = {
    "float64": np.random.default_rng(0).random((3, 2)),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "strided": np.arange(20)[::3],
    "scalar": np.array(3),
    "empty": np.empty((0, 2), np.float16),
    "objects": np.array(["a", None], dtype=object),
    "records": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
}


def travelled(value: Any) -> Any:
    """As through shared memory: the parts lie in one writable stretch."""
    parts = [bytearray(part.raw()) for part in BatchPickler().pieces_of(value)]
    return from_pieces(memoryview(part) for part in parts)


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_come_back_equal(name: str) -> None:
    tensor = TENSORS[name]
    back = travelled({"t": tensor})["t"]
    assert type(back) is type(tensor) and back.dtype == tensor.dtype and back.shape == tensor.shape
    assert back.requires_grad == tensor.requires_grad
    one, other = (x.to_dense() if x.is_sparse else x.resolve_conj() for x in (back.detach(), tensor.detach()))
    flat = other.reshape(-1).clone(memory_format=torch.contiguous_format)
    assert torch.equal(one.reshape(-1).view(torch.uint8), flat.view(torch.uint8))


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back_equal(name: str) -> None:
    back = travelled([ARRAYS[name]])[0]
    assert back.dtype == ARRAYS[name].dtype
    np.testing.assert_array_equal(back, ARRAYS[name])


Pair = collections.namedtuple("Pair", "left right")


def test_batches_of_any_make_keep_their_shape_and_shared_members() -> None:
    tensor = torch.arange(5)
    batch = {"batch": expected(2, 3, 16), "pair": Pair(tensor, [tensor, "text", 7]), "none": None}
    back = travelled(batch)
    assert back["batch"].name == "2/3" and torch.equal(back["batch"].tokens, batch["batch"].tokens)
    assert back["pair"].left is back["pair"].right[0] and back["pair"].right[1:] == ["text", 7]


SOURCES = tuple(
    SourceInfo(dataset_path="photos", index=index, shard_name=f"{index % 2}.tar", file_names=(f"{index}.png", "a"))
    for index in range(5)
)


@edataclass
class Tagged(Batch):
    tag: str


class Open(Batch):
    """Without slots: its instances have a `__dict__`, too."""


class Stating(Batch):
    """Says itself what is pickled of it."""

    def __getstate__(self) -> list[Any]:
        return [self.__key__, self.__sources__]

    def __setstate__(self, state: list[Any]) -> None:
        self.__key__, self.__sources__ = state
        self.__restore_key__, self.__subflavors__ = (), None


@pytest.mark.parametrize(
    "batch",
    [
        Tagged(__key__=["a"], __sources__=SOURCES, tag="x"),
        TextSample(__key__="a", text="x", __sources__=SOURCES[:1]),
        Tagged(__key__=["a"], __sources__=None, tag="x"),
        Stating(__key__=["a"], __sources__=SOURCES),
        {"__sources__": SOURCES, "list": [Open(__key__=[], __sources__=SOURCES), SOURCES[2]]},
    ],
)
def test_sources_come_back_equal_in_batches_of_any_make(batch: Any) -> None:
    back = travelled(batch)
    assert back == batch and type(back) is type(batch)


def test_what_has_no_name_travels_too_and_what_was_there_stays_as_it_was() -> None:
    batch = Open(__key__=["a"], __sources__=SOURCES)
    batch.more = lambda number: number + 1  # type: ignore[attr-defined]
    pickler = BatchPickler()
    for _ in range(2):
        back = from_pieces(bytearray(part.raw()) for part in pickler.pieces_of([batch, torch.ones(2)]))
        assert back[0].more(1) == 2 and back[0].__sources__ == SOURCES and back[1].sum() == 2
    assert batch.__sources__ is SOURCES


def test_what_cannot_be_pickled_is_an_error() -> None:
    with pytest.raises(TypeError, match="lock"):
        BatchPickler().pieces_of({"lock": threading.Lock()})


def test_an_error_is_sent_with_its_traceback() -> None:
    try:
        raise KeyError("image")
    except KeyError as error:
        data, text = BatchPickler().pickle_error(error, "in lane 3")
    assert data is not None
    back = pickle.loads(data)
    assert type(back) is KeyError and back.args == ("image",)
    assert back.__notes__ == [text] and text.startswith("in lane 3:\nTraceback") and "test_batches.py" in text


def test_an_error_that_does_not_survive_pickling_is_sent_as_text_of_bounded_length() -> None:
    data, text = BatchPickler().pickle_error(AwkwardError("shard_0/7", "x" * 1_000_000), "in lane 3")
    assert data is None and "AwkwardError: shard_0/7" in text and len(text) < 10_000


def test_the_modules_that_a_dataset_needs_are_found() -> None:
    data, modules = pickle_dataset(Streams(config(1), make=expected))
    assert {"bridge_data.topology", Streams.__module__} <= set(modules) and "__main__" not in modules
    assert dataclasses.is_dataclass(pickle.loads(data).worker_config)


def test_what_multiprocessing_has_of_the_script_travels_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    script = types.ModuleType("__mp_main__")
    exec(
        "import colorsys\nclass Job:\n    lanes, modules = 3, ()\n    def size(self):\n        return self.lanes",
        vars(script),
    )
    exec("def hue():\n    return colorsys.rgb_to_hsv(0, 0, 1)[0]\nJob.hue = staticmethod(hue)", vars(script))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__mp_main__", script)
        data, modules = pickle_dataset(script.Job())
    assert "__mp_main__" not in modules and pickle.loads(data).size() == 3
    assert "colorsys" in modules and pickle.loads(data).hue() > 0


def test_loaders_that_are_made_in_several_threads_all_have_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    script = types.ModuleType("__mp_main__")
    exec("class Job:\n    modules = ()\n    def __getstate__(self):\n        return self.wait()", vars(script))
    monkeypatch.setitem(sys.modules, "__mp_main__", script)
    is_within, other_is_done = threading.Event(), threading.Event()

    def wait() -> dict[str, Any]:
        is_within.set()
        other_is_done.wait(0.5)  # in vain, if the other waits for this one
        return {"late": script.Late}

    exec("class Late:\n    pass", vars(script))
    first, other = script.Job(), script.Job()
    first.wait, other.wait = wait, dict
    with ThreadPoolExecutor(1) as executor:
        pickled = executor.submit(pickle_dataset, first)
        assert is_within.wait(10)
        pickle_dataset(other)
        other_is_done.set()
        data, _ = pickled.result()
    monkeypatch.delitem(sys.modules, "__mp_main__")
    assert pickle.loads(data).late.__name__ == "Late", "it needs no module"
    assert not cloudpickle.list_registry_pickle_by_value()


def test_what_the_user_has_registered_stays_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    script = types.ModuleType("__mp_main__")
    exec("class Job:\n    modules = ()", vars(script))
    monkeypatch.setitem(sys.modules, "__mp_main__", script)
    cloudpickle.register_pickle_by_value(script)
    try:
        pickle_dataset(script.Job())
        assert cloudpickle.list_registry_pickle_by_value() == {"__mp_main__"}
    finally:
        cloudpickle.unregister_pickle_by_value(script)
