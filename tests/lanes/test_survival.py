"""Filters: bad luck never stops a run, and a source of which nothing stays always does."""

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    DefaultTaskEncoder,
    FatalSampleError,
    LaneDataset,
    SkipSample,
    get_loader,
)
from bridge_data.lanes import survival
from bridge_data.lanes.survival import Survival, skips_of_empty
from bridge_data.order import Cursor, Geometry, Row
from tests.prepared import encoder_with, train_dataset, write_blend, write_texts


class Keeping(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Keeps the samples whose text `keeps` likes."""

    def __init__(self, keeps: Callable[[str], bool]) -> None:
        super().__init__()
        self.keeps = keeps

    def encode_sample(self, sample: Any) -> Any:
        if not self.keeps(sample.text):
            raise SkipSample(f"{sample.text.split('-')[0]} is not wanted")
        return sample


def blend_of(folder: Path, sizes: dict[str, int]) -> Path:
    for name, size in sizes.items():
        write_texts(folder / name, size, text=lambda number, name=name: f"{name}-{number}", per_shard=10_000)
    return write_blend(folder / "blend.yaml", dict.fromkeys(sizes, 1) | {"small": 9})


def dataset(path: Path, keeps: Callable[[str], bool], num_lanes: int = 8) -> LaneDataset:
    return train_dataset(path, num_lanes=num_lanes, batch_size=4, task_encoder=Keeping(keeps))


def run(made: LaneDataset, num_batches: int) -> None:
    for _ in itertools.islice(get_loader(made), num_batches):
        pass


@pytest.mark.seconds
def test_a_source_of_which_one_sample_in_a_thousand_stays_never_stops_a_run(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "rare", 2_000, per_shard=10_000)
    run(dataset(path, lambda text: text in ("17", "1017"), num_lanes=8), 6)


@pytest.mark.seconds
def test_a_source_of_which_nothing_stays_is_warned_of_early_and_then_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = blend_of(tmp_path, {"large": 500, "small": 5})
    made = dataset(path, lambda text: text.startswith("large"), num_lanes=2)
    with pytest.raises(FatalSampleError) as caught:
        run(made, 10_000)
    for text in (
        "the last 10000 samples of small/train were all left out",
        "10000 in encode_sample",
        "because small is not wanted",
        "seen 10000, of which 0 stayed",
        "Check the encoder's conditions",
    ):
        assert text in str(caught.value)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.split(" were ")[0] for text in warnings] == ["the last 1000 samples of small/train"] * 2
    assert {text.split("lane ")[1][0] for text in warnings} == {"0", "1"}
    assert "if none stays for 10000 in a row or more, it stops" in warnings[0]


def skip(self: Any, sample: Any) -> Any:
    raise SkipSample("it is too large")


def no_part(self: Any, sample: Any) -> Iterator[Any]:
    yield from ()


def one_each(self: Any, samples: list[Any]) -> list[list[Any]]:
    return [[sample] for sample in samples]


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("hooks", "what"),
    [
        ({"batch_group_criterion": skip}, r"samples or packs to be grouped .*1000 in batch_group_criterion"),
        ({"encode_batch": skip}, r"micro-batches .*1000 in encode_batch; the last because it is too large"),
        (
            {"select_samples_to_pack": one_each, "pack_selected_samples": skip},
            r"packs .*1000 in pack_selected_samples",
        ),
        (
            {"select_samples_to_pack": skip, "pack_selected_samples": skip},
            r"packing buffers .*1000 in select_samples_to_pack",
        ),
        ({"encode_sample": no_part}, r"samples of d/train .*encode_sample; the last because it yielded nothing"),
    ],
)
def test_each_hook_that_leaves_everything_out_is_an_error_and_not_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hooks: dict[str, Any], what: str
) -> None:
    """After a thousand here; the real limits are tested above and below."""
    monkeypatch.setattr(survival, "FEWEST_SKIPS", 1_000)
    monkeypatch.setattr(survival.Survival.__init__, "__defaults__", ((1_000, 1_000),))
    packing = 2 if "select_samples_to_pack" in hooks else None
    texts = write_texts(tmp_path / "d", 20)
    made = train_dataset(texts, num_lanes=2, packing_buffer_size=packing, task_encoder=encoder_with(**hooks))
    with pytest.raises(FatalSampleError, match=rf"the last 1000 {what}"):
        made.lane(0, made.new_state()).next()


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("num_samples", "num_lanes", "kept"),
    [(1_000, 1, {999}), (1_000, 64, {7}), (100_000, 8, set(range(0, 100_000, 1_000)))],
    ids=["1 of 1,000, one lane", "1 of 1,000, 64 lanes", "1 in 1,000 of 100,000"],
)
def test_survivors_come_in_time_in_a_lane_of_any_size(num_samples: int, num_lanes: int, kept: set[int]) -> None:
    geometry = Geometry.choose(
        [num_samples], num_lanes=num_lanes, max_samples_per_sequence=100, shuffle_buffer_size=100
    )
    cursor = Cursor([[Row([num_samples], geometry, key=1)]], None, 1 % num_lanes)
    survival = Survival("samples", 0, skips_of_empty(num_samples, num_lanes))
    for _ in range(0, min(2 * skips_of_empty(num_samples, num_lanes)[0], 200_000), 1_000):
        for _, ref in cursor.take(1_000):
            if ref.index in kept:
                survival.kept += 1
            else:
                survival.count_skip("encode_sample", "")
    assert survival.kept


def test_skips_of_empty_grow_with_the_source_up_to_a_million_and_then_with_the_share_of_the_lane() -> None:
    sizes = (1, 200, 1_000, 20_000, 100_000, 10**6, 10**9)
    assert [skips_of_empty(size, 8) for size in sizes] == [
        (10_000, 10_000),
        (10_000, 10_000),
        (50_000, 50_000),
        (50_000, 1_000_000),
        (200_000, 1_000_000),
        (1_000_000, 1_000_000),
        (250_000_000, 250_000_000),
    ]


def leave_out(survival: Survival, count: int) -> None:
    for _ in range(count):
        survival.count_skip("encode_sample", "")


@pytest.mark.parametrize(
    ("limits", "before", "without_error", "with_error"),
    [
        # what the rate rules out is no error before every sample has come many times
        (skips_of_empty(1_000, 8), [(0, 5_000)], 49_999, 1),
        # a random filter, which keeps one in 1,000, is judged by its rate and not by the size of the source
        ((1_000, 1_000), [(999, 1)] * 30, 120_000, 10_000),
        # a survivor ends a streak, and few survivors do not put off the error for ever
        ((1_000, 1_000), [(999, 1)], 199_900, 200),
    ],
)
def test_a_streak_is_an_error_where_neither_rate_nor_size_explain_it(
    limits: tuple[int, int], before: list[tuple[int, int]], without_error: int, with_error: int
) -> None:
    survival = Survival("samples of a", 0, limits)
    for skipped, kept in before:
        leave_out(survival, skipped)
        survival.kept += kept
    leave_out(survival, without_error)
    with pytest.raises(FatalSampleError, match=f"of which {survival.kept} stayed"):
        leave_out(survival, with_error)
