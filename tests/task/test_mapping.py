import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch

from bridge_data import Batch, ConfigError, DefaultTaskEncoder, TextSample, batch_list, batch_stack, edataclass
from bridge_data.task.mapping import as_type, batch_as


@dataclasses.dataclass
class Point:
    x: torch.Tensor
    name: str
    weight: float = 1.0


class Pair(NamedTuple):
    x: torch.Tensor
    name: str


@edataclass
class Texts(Batch):
    text: list[str]


POINTS = [Point(torch.ones(n), f"p{n}") for n in (1, 2)]


def test_fields_are_mapped_between_dicts_named_tuples_and_dataclasses() -> None:
    fields = {"x": torch.ones(1), "name": "a"}
    assert as_type(fields, Point).weight == 1.0
    assert as_type(Pair(**fields), dict) == fields
    assert as_type(as_type(fields, Pair), Point).name == "a"
    point = POINTS[0]
    assert as_type(point, None) is as_type(point, Point) is point
    ordered = as_type(point, collections.OrderedDict)
    assert isinstance(ordered, collections.OrderedDict)
    assert list(ordered) == ["x", "name", "weight"]


@pytest.mark.parametrize(
    ("value", "target", "message"),
    [
        (POINTS[0], Pair, "Point into Pair: Pair has no weight"),
        ({"x": 1, "y": 2}, Pair, "Pair has no y; Pair also needs name"),
        ({"x": 1}, int, "int is no type that fields can be mapped to"),
        (3, dict, "cannot turn a int into dict: it has no named fields"),
    ],
)
def test_what_cannot_be_mapped_is_an_error_that_names_the_fields(value: Any, target: type, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_type(value, target)


def test_samples_are_batched_by_field_each_with_its_own_action() -> None:
    batch = batch_as(POINTS, dict, {"x": batch_list})
    assert [tensor.tolist() for tensor in batch["x"]] == [[1], [1, 1]]
    assert batch["name"] == ["p1", "p2"]
    assert batch_as(POINTS, dict, {})["x"].tolist() == [[1, 0], [1, 1]]
    assert batch_as(POINTS, dict, {}, batch_list)["x"] == [point.x for point in POINTS]
    with pytest.raises(ConfigError, match="cannot batch int by field"):
        batch_as([1, 2], dict, {})


def test_a_batch_class_makes_its_batch_itself() -> None:
    samples = [TextSample(__key__=str(n), text=f"t{n}") for n in range(2)]
    assert batch_as(samples, Texts, {}).text == ["t0", "t1"]


def test_hooks_of_yours_may_batch_by_field_as_in_energon() -> None:
    class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
        def batch(self, samples: list[Point]) -> Any:
            return self._batch(samples, Pair, actions={"x": batch_stack})

    with pytest.raises(ConfigError, match="has no weight"):
        Encoder().batch([Point(torch.ones(2), "a")])
    batch = Encoder().batch([Pair(torch.ones(2), "a"), Pair(torch.zeros(2), "b")])  # type: ignore[list-item]
    assert batch.x.tolist() == [[1, 1], [0, 0]]
