"""What a hook put into a batch, as the loader hands it out."""

import collections
import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from bridge_data import DefaultTaskEncoder, TextSample, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.samples.collation import with_tensors

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Boxes:
    corners: np.ndarray


class Arrays(DefaultTaskEncoder):
    """Makes batches of what numpy and Python have."""

    def batch(self, samples: list[Any]) -> Any:
        read_only = np.arange(3.0)
        read_only.flags.writeable = False
        return {
            "keys": [sample.text for sample in samples],
            "array": np.arange(6, dtype=np.int16).reshape(2, 3),
            "odd": [read_only, np.arange(3.0)[::-1], np.arange(3, dtype=">i4")],
            "scalars": (np.float32(1.5), np.bool_(True), np.int64(7)),
            "nested": {"deep": [{"x": np.zeros((0, 4), np.uint8)}]},
            "point": Point(np.ones(2), "y"),
            "ordered": collections.OrderedDict(a=np.ones(1)),
            "words": np.array(["a", "b"]),
            "objects": np.array([None, 1], object),
            "word": np.str_("a"),
            "times": np.array(["2026-01-01"], "datetime64[D]"),
            "boxes": Boxes(np.zeros(4)),
            "plain": ("a", 1, None, 2.5, b"x", [1, 2]),
        }


class Rows(DefaultTaskEncoder):
    """Makes samples of numpy, which are batches where there is no batch size."""

    def encode_sample(self, sample: Any) -> Any:
        return {"n": np.int64(sample.text), "__restore_key__": ()}


def loader_of(encoder: DefaultTaskEncoder, num_workers: int, batch_size: int | None = 2) -> Any:
    dataset = get_train_dataset(
        [TextSample(__key__=str(number), text=str(number)) for number in range(12)],
        batch_size=batch_size,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, num_workers),
        task_encoder=encoder,
    )
    return get_savable_loader(dataset)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_numbers_of_numpy_in_a_batch_are_tensors_with_and_without_workers(num_workers: int) -> None:
    with loader_of(Arrays(), num_workers) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's of read-only memory
        if num_workers:
            assert loader.wait_for_workers()
        batch = next(iter(loader))
    assert batch["array"].dtype == torch.int16 and batch["array"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [value.tolist() for value in batch["odd"]] == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]
    numbers = batch["scalars"]
    assert [number.dtype for number in numbers] == [torch.float32, torch.bool, torch.int64]
    assert [number.item() for number in numbers] == [1.5, True, 7] and type(numbers) is tuple
    assert batch["nested"]["deep"][0]["x"].shape == (0, 4)
    assert type(batch["point"]) is Point and torch.equal(batch["point"].x, torch.ones(2, dtype=torch.float64))
    assert type(batch["ordered"]) is collections.OrderedDict and torch.is_tensor(batch["ordered"]["a"])
    # as in Energon's loader, these stay
    assert [type(batch[name]) for name in ("words", "objects", "times")] == [np.ndarray] * 3
    assert type(batch["word"]) is np.str_ and type(batch["boxes"].corners) is np.ndarray
    assert batch["plain"] == ("a", 1, None, 2.5, b"x", [1, 2])


def test_a_sample_that_is_restored_has_what_the_loader_hands_out() -> None:
    loader = loader_of(Rows(), 0, batch_size=None)
    handed_out = next(iter(loader))
    assert torch.equal(handed_out["n"], loader.restore_sample(handed_out["__restore_key__"])["n"])


def test_odd_arrays_and_sequences_of_a_user_stay_usable() -> None:
    class Pair(list[Any]):
        def __init__(self, first: Any, second: Any) -> None:
            super().__init__([first, second])

    column = np.array([(1, 2.0), (3, 4.0)], [("a", "i1"), ("x", "f4")])["x"]  # its stride is no multiple of 4 bytes
    found = with_tensors({"column": column, "pair": Pair(np.int64(1), 2), "number": np.float32(3)})
    assert found["column"].tolist() == [2.0, 4.0] and found["number"].item() == 3.0
    assert type(found["pair"]) is Pair
