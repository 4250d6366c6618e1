import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data import (
    ConfigError,
    DefaultTaskEncoder,
    Packing,
    SkipSample,
    TextSample,
    WorkerConfig,
    edataclass,
    get_loader,
    get_train_dataset,
    stateless,
)
from bridge_data.samples import Sample
from bridge_data.task.packers import PACKERS, greedy
from tests.prepared import write_texts

CAPACITY = 20


def packing(**changes: Any) -> Packing:
    return Packing(**{"length": len, "capacity": CAPACITY, "overlong": "alone"} | changes)


@given(st.lists(st.integers(0, 30), max_size=40), st.sampled_from([*PACKERS, greedy]), st.booleans())
def test_every_sample_is_in_one_pack_or_left_and_packs_hold_their_capacity(
    lengths: list[int], packer: Any, carry_over: bool
) -> None:
    samples = ["x" * length for length in lengths]
    boxes = [[sample] for sample in samples]  # told apart by identity, as the lane does
    packs = packing(length=lambda box: len(box[0]), packer=packer, carry_over=carry_over)(boxes)
    chosen = [id(box) for pack in packs for box in pack]
    assert len(chosen) == len(set(chosen))
    left = {id(box) for box in boxes} - set(chosen)
    assert carry_over or not left
    assert sum(len(box[0]) for box in boxes if id(box) in left) <= CAPACITY
    assert all(len(pack) == 1 or sum(len(box[0]) for box in pack) <= CAPACITY for pack in packs)
    assert packs or not boxes


def test_the_first_sample_is_never_left_so_none_waits_for_ever() -> None:
    """One that is shorter than all others would be in the emptiest pack of every buffer."""
    buffer = ["short" * 2] + ["x" * 15 for _ in range(5)]
    assert any("short" in pack[0] for pack in packing()(buffer))
    assert len(packing()(buffer)) == 5


def test_overlong_samples_are_dropped_cut_or_alone_as_declared() -> None:
    long = "x" * 25
    assert packing().admitted(long) == (long, False)
    with pytest.raises(SkipSample):
        packing(overlong="drop").admitted(long)
    cutting = packing(overlong="truncate", truncate=lambda sample, length: sample[:length])
    assert cutting.admitted(long) == ("x" * 20, True)
    assert cutting.admitted("short") == ("short", False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 0}, "capacity=0"),
        ({"overlong": "cut"}, "overlong='cut'.*'drop', 'truncate', 'alone'"),
        ({"packer": "best"}, "packer='best'.*'best_fit'"),
        ({"overlong": "truncate"}, "needs truncate="),
        ({"overlong": "drop", "truncate": str}, "other policies have no use for it"),
    ],
)
def test_wrong_settings_are_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        packing(**changes)


def test_a_cut_that_is_still_too_long_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"made a sample of length 25 out of one of 25, but a pack holds 20"):
        packing(overlong="truncate", truncate=lambda sample, length: sample).admitted("x" * 25)


@edataclass
class Pack(Sample):
    texts: list[str]


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.select_samples_to_pack = packing(length=lambda sample: len(sample.text), **settings)  # type: ignore[method-assign]

    @stateless
    def pack_selected_samples(self, samples: list[TextSample]) -> Pack:
        return Pack.derive_from(samples[0], texts=[sample.text for sample in samples])


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(
        tmp_path_factory.mktemp("data") / "texts", 200, lambda number: f"{number:03d}" * (1 + number % 9)
    )


def run(texts: Path, **settings: Any) -> tuple[list[list[str]], Any]:
    dataset = get_train_dataset(
        texts,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=2),
        batch_size=None,
        packing_buffer_size=30,
        shuffle_buffer_size=20,
        max_samples_per_sequence=None,
        task_encoder=Encoder(**settings),
        repeat=False,
    )
    loader = get_loader(dataset)
    return [pack.texts for pack in loader], loader


def test_every_sample_of_a_finite_run_is_packed_once_and_overlong_ones_are_counted(texts: Path) -> None:
    everything = {f"{number:03d}" * (1 + number % 9) for number in range(200)}
    overlong = {text for text in everything if len(text) > CAPACITY}

    def cut(sample: TextSample, length: int) -> TextSample:
        return TextSample.derive_from(sample, text=sample.text[:length])

    for overlong_policy, settings in (("alone", {}), ("drop", {}), ("truncate", {"truncate": cut})):
        packs, loader = run(texts, overlong=overlong_policy, **settings)
        packed = [text for pack in packs for text in pack]
        assert len(packed) == len(set(packed))
        dropped = len(overlong) if overlong_policy == "drop" else 0
        truncated = len(overlong) if overlong_policy == "truncate" else 0
        assert len(packed) == 200 - dropped
        assert {text for text in packed if len(text) <= CAPACITY} >= everything - overlong
        assert loader.skipped == ({"select_samples_to_pack": dropped} if dropped else {})
        assert loader.truncated == truncated
        assert all(len(pack) == 1 or sum(map(len, pack)) <= CAPACITY for pack in packs)


def test_a_run_goes_on_from_any_pack(texts: Path) -> None:
    whole, _ = run(texts, overlong="drop")
    _, loader = run(texts, overlong="drop")
    fresh = type(loader)(loader.dataset)
    it = iter(fresh)
    for step in range(0, len(whole) - 1, 7):
        for _ in range(7 if step else 1):
            next(it)
        again = type(loader)(loader.dataset)
        again.restore_state_rank(json.loads(json.dumps(fresh.save_state_rank())))
        assert next(iter(again)).texts == whole[step + 1]
