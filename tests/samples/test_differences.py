"""Two values that hooks made differ, whatever their kind, or are the same though one was pickled."""

import collections
import datetime
import decimal
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bridge_data.samples.differences import first_difference

MAKERS: dict[str, Callable[[float], Any]] = {
    "bfloat16": lambda value: torch.tensor([value, float("nan")], dtype=torch.bfloat16),
    "sparse": lambda value: torch.tensor([[0.0, value]]).to_sparse(),
    "nested": lambda value: torch.nested.nested_tensor([torch.ones(1), torch.tensor([1.0, value])]),
    "jagged": lambda value: torch.nested.nested_tensor(
        [torch.ones(1), torch.tensor([1.0, value])], layout=torch.jagged
    ),
    "arrays in an array": lambda value: np.array([np.arange(3), np.arange(int(value))], dtype=object),
    "strings in an array": lambda value: np.array(["a", str(value)]),
    "bytearray": lambda value: bytearray([int(value)]),
    "deque of arrays": lambda value: collections.deque([np.arange(3), np.array([value])]),
    "range": lambda value: range(int(value)),
    "slice": lambda value: slice(int(value)),
    "date": lambda value: datetime.date(2026, 1, int(value)),
    "Decimal": decimal.Decimal,
    "dict of NaN": lambda value: {"a": [float("nan")], "b": value},
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_values_of_any_kind_are_told_apart(make: Callable[[float], Any]) -> None:
    kept = pickle.loads(pickle.dumps(make(5.0)))
    assert first_difference(kept, make(5.0)) is None
    assert first_difference(kept, make(6.0))
