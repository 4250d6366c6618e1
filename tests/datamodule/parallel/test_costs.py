import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bridge_data import AugmentTaskEncoder, ConfigError, DefaultTaskEncoder
from bridge_data.datamodule.parallel.costs import check_cost, find_cost, frames, pixels, tokens


@dataclasses.dataclass
class Pictures:
    tokens: Tensor
    images: Any


class Weighing(DefaultTaskEncoder[Any, Any, Any, Any]):
    def batch_cost(self, batch: Any) -> float:
        return 2 * len(batch)


def test_tokens_are_counted_with_their_padding() -> None:
    assert tokens(Pictures(torch.zeros(3, 7), None)) == 21
    assert tokens({"input_ids": [torch.zeros(4), torch.zeros(0)]}) == 4


def test_pixels_are_those_of_all_pictures_in_tensors_lists_and_media() -> None:
    assert pixels(Pictures(torch.zeros(1), torch.zeros(2, 3, 4, 4))) == 96
    assert pixels(Pictures(torch.zeros(1), [torch.zeros(3, 4, 4), [torch.zeros(3, 2, 2)], []])) == 60
    assert pixels({"media": {"pixel_values": torch.zeros(8, 6), "image_grid_thw": torch.ones(1, 3)}}) == 48
    assert pixels({"media": {}}) == 0
    assert pixels(Pictures(torch.zeros(1), torch.zeros(0, 3, 4, 4))) == 0


def test_frames_are_counted_by_shape_or_by_grid() -> None:
    assert frames({"video": torch.zeros(2, 5, 3, 4, 4)}) == 10
    assert frames({"images": [torch.zeros(3, 4, 4), torch.zeros(2, 3, 4, 4)]}) == 3
    media = {"pixel_values": torch.zeros(8, 6), "image_grid_thw": torch.tensor([[1, 2, 2], [1, 2, 2]])}
    assert frames({"media": media | {"video_grid_thw": torch.tensor([[6, 2, 2]])}}) == 8
    with pytest.raises(ConfigError, match=r"shape \(8, 6\).*take 'pixels'"):
        frames({"pixel_values": torch.zeros(8, 6)})


@pytest.mark.parametrize("cost", [tokens, pixels, frames])
def test_a_batch_without_such_a_field_is_an_error_that_says_what_it_has(cost: Any) -> None:
    with pytest.raises(ConfigError, match=rf"balance='{cost.__name__}'.*labels, keys; expected one of .*batch_cost"):
        cost({"labels": torch.zeros(2), "keys": []})


def test_a_cost_is_meant_by_name_by_a_function_or_by_the_encoder() -> None:
    encoder = Weighing()
    assert find_cost("pixels", encoder) is pixels
    assert find_cost(len, encoder)([1, 2]) == 2
    assert find_cost(True, encoder)([1, 2]) == 4
    assert find_cost(True, AugmentTaskEncoder(encoder))([1, 2]) == 4
    with pytest.raises(ConfigError, match="DefaultTaskEncoder, which does not override it"):
        find_cost(True, DefaultTaskEncoder())
    with pytest.raises(ConfigError, match=r"balance=3: expected True"):
        find_cost(3, encoder)


@pytest.mark.parametrize("value", [-1, 1e300, math.nan, math.inf, "many", None])
def test_what_cannot_be_added_up_is_no_cost(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"the cost of a batch is .*from 0 to"):
        check_cost(value)


def test_a_cost_may_be_a_tensor() -> None:
    assert check_cost(torch.tensor(3)) == 3.0
