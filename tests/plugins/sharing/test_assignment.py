import dataclasses
import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bridge_data import AugmentTaskEncoder, ConfigError, DefaultTaskEncoder
from bridge_data.plugins.sharing.assignment import (
    assign,
    check_cost,
    find_cost,
    frames,
    greatest_load,
    imbalance,
    least_possible,
    pixels,
    round_robin,
    tokens,
)

COSTS = st.one_of(st.integers(0, 10**9), st.floats(0, 1e12))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[float], int]:
    num_ranks, per_rank = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    return draw(st.lists(COSTS, min_size=num_ranks * per_rank, max_size=num_ranks * per_rank)), num_ranks


@given(problems())
def test_every_micro_batch_is_assigned_once_and_never_worse_than_round_robin(problem: tuple[list[float], int]) -> None:
    """All ranks get equally many, none of them better than possible, and equal costs give equal assignments."""
    costs, num_ranks = problem
    made = assign(costs, num_ranks)
    assert sorted(number for group in made for number in group) == list(range(len(costs)))
    assert [len(group) for group in made] == [len(costs) // num_ranks] * num_ranks
    assert all(group == sorted(group) for group in made)
    load = greatest_load(made, costs)
    assert load <= greatest_load(round_robin(len(costs), num_ranks), costs)
    assert load >= least_possible(costs, num_ranks) * (1 - 1e-12)
    assert assign(tuple(float(cost) for cost in costs), num_ranks) == made


@given(st.integers(2, 8), st.integers(1, 4), st.integers(0, 10**6))
def test_which_rank_has_read_what_changes_who_gets_it_and_nothing_else(
    num_ranks: int, per_rank: int, seed: int
) -> None:
    chance = random.Random(seed)
    costs = [chance.lognormvariate(0, 1) for _ in range(num_ranks * per_rank)]
    order = list(range(num_ranks))
    chance.shuffle(order)  # what rank r had read, rank order[r] has read
    moved = [0.0] * len(costs)
    for number, cost in enumerate(costs):
        place, rank = divmod(number, num_ranks)
        moved[place * num_ranks + order[rank]] = cost

    def loads(values: list[float]) -> list[float]:
        return sorted(math.fsum(values[n] for n in group) for group in assign(values, num_ranks))

    assert loads(moved) == pytest.approx(loads(costs))


def test_the_longest_tail_that_whole_micro_batches_can_balance_is_balanced() -> None:
    assert [sorted(group) for group in assign([8, 7, 1, 2, 3, 4, 5, 6], 2)] != round_robin(8, 2)
    assert imbalance(assign([8, 7, 1, 2, 3, 4, 5, 6], 2), [8, 7, 1, 2, 3, 4, 5, 6]) == 1
    chance = random.Random(1)
    for _ in range(30):
        costs = [min(chance.lognormvariate(0, 0.8), 5) for _ in range(64)]
        least = least_possible(costs, 8)
        assert greatest_load(assign(costs, 8), costs) <= 1.02 * least


def test_few_micro_batches_move_where_few_are_enough() -> None:
    assert assign([3] * 12, 4) == round_robin(12, 4)
    assert assign([0] * 12, 4) == round_robin(12, 4)
    assert imbalance(round_robin(12, 4), [0] * 12) == 1
    costs = [10, 1, 5, 5, 10, 1, 5, 5]  # rank 0 has two large ones, rank 1 two small ones
    made = assign(costs, 4)
    assert imbalance(made, costs) == pytest.approx(11 * 4 / 42)
    assert sum(number % 4 != rank for rank, group in enumerate(made) for number in group) == 2


def test_a_thousand_ranks_take_no_time() -> None:
    chance = random.Random(2)
    costs = [min(chance.lognormvariate(0, 1), 8) for _ in range(8_000)]
    made = assign(costs, 1_000)
    assert imbalance(made, costs) < 1.03 < 1.5 < imbalance(round_robin(8_000, 1_000), costs)


@dataclasses.dataclass
class Pictures:
    tokens: Tensor
    images: Any


class Weighing(DefaultTaskEncoder[Any, Any, Any, Any]):
    def batch_cost(self, batch: Any) -> float:
        return 2 * len(batch)


GRIDS = {"pixel_values": torch.zeros(8, 6), "image_grid_thw": torch.tensor([[1, 2, 2], [1, 2, 2]])}


@pytest.mark.parametrize(
    ("cost", "batch", "expected"),
    [
        (tokens, Pictures(torch.zeros(3, 7), None), 21),  # with their padding
        (tokens, {"input_ids": [torch.zeros(4), torch.zeros(0)]}, 4),
        (pixels, Pictures(torch.zeros(1), torch.zeros(2, 3, 4, 4)), 96),
        (pixels, Pictures(torch.zeros(1), [torch.zeros(3, 4, 4), [torch.zeros(3, 2, 2)], []]), 60),
        (pixels, {"media": GRIDS}, 48),
        (pixels, {"media": {}}, 0),
        (pixels, Pictures(torch.zeros(1), torch.zeros(0, 3, 4, 4)), 0),
        (frames, {"video": torch.zeros(2, 5, 3, 4, 4)}, 10),
        (frames, {"images": [torch.zeros(3, 4, 4), torch.zeros(2, 3, 4, 4)]}, 3),
        (frames, {"media": GRIDS | {"video_grid_thw": torch.tensor([[6, 2, 2]])}}, 8),
    ],
)
def test_a_batch_costs_its_tokens_pixels_or_frames(cost: Any, batch: Any, expected: int) -> None:
    assert cost(batch) == expected


@pytest.mark.parametrize("cost", [tokens, pixels, frames])
def test_a_batch_without_such_a_field_is_an_error_that_says_what_it_has(cost: Any) -> None:
    with pytest.raises(ConfigError, match=rf"balance='{cost.__name__}'.*labels, keys; expected one of .*batch_cost"):
        cost({"labels": torch.zeros(2), "keys": []})
    with pytest.raises(ConfigError, match=r"shape \(8, 6\).*use 'pixels'"):
        frames({"pixel_values": torch.zeros(8, 6)})


def test_a_cost_is_meant_by_name_by_a_function_or_by_the_encoder() -> None:
    encoder = Weighing()
    assert find_cost("pixels", encoder) is pixels
    assert find_cost(len, encoder)([1, 2]) == 2
    assert find_cost(True, encoder)([1, 2]) == 4
    assert find_cost(True, AugmentTaskEncoder(encoder))([1, 2]) == 4
    with pytest.raises(ConfigError, match="DefaultTaskEncoder, which does not override it"):
        find_cost(True, DefaultTaskEncoder())


@pytest.mark.parametrize("value", [-1, 1e300, math.nan, math.inf, "many", None])
def test_what_cannot_be_added_up_is_no_cost(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"the cost of a batch is .*from 0 to"):
        check_cost(value)
    assert check_cost(torch.tensor(3)) == 3.0
