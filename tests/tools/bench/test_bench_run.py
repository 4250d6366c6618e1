from pathlib import Path
from typing import Any

import pytest

from bridge_data.errors import ConfigError
from bridge_data.tools.bench import BenchConfig, Profile, measure, profile
from bridge_data.tools.runs import BENCH_OPTIONS
from tests.prepared import CRUDE, write_blend, write_dataset, write_texts
from tests.tools.bench.encoders import Cooked, Hashing, OnlyOdd, Packed


def shares(found: Profile) -> dict[str, float]:
    """The share of each stage; they add up."""
    assert sum(stage.share for stage in found.stages) == pytest.approx(1)
    assert all(0 <= stage.waited <= 1 for stage in found.stages)
    return {stage.name: stage.share for stage in found.stages}


def config_of(path: Path, **settings: Any) -> BenchConfig:
    """A run of the data at `path`; its own settings, and options of a run."""
    own = {
        name: settings.pop(name) for name in ("task_encoder", "seconds", "num_batches", "step_s") if name in settings
    }
    return BenchConfig(path=path, options=BENCH_OPTIONS.with_options(**settings), **own)


def greatest(found: Profile) -> str:
    parts = shares(found)
    return max(parts, key=lambda name: parts[name])


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts", 40)


@pytest.mark.processes
@pytest.mark.parametrize(("length", "total"), [({"num_batches": 4}, 4), ({"seconds": 0.9}, 1)])
def test_progress_is_told_now_and_then(texts: Path, length: dict[str, Any], total: int) -> None:
    told: list[tuple[int, int | None]] = []
    config = config_of(path=texts, num_workers=0, micro_batch_size=4, step_s=0.3, **length)
    measure(config, lambda done, of: told.append((done, of)))
    assert told
    assert {of for _, of in told} == {total}
    assert all(0 <= done <= total for done, _ in told)


def test_the_bytes_of_a_sample(tmp_path: Path) -> None:
    texts = write_texts(tmp_path, 20, lambda number: "x" * 100)
    assert measure(config_of(path=texts, num_workers=0, micro_batch_size=4, num_batches=1)).sample_bytes == 100


def test_what_takes_longest_is_found_in_this_process(texts: Path) -> None:
    config = config_of(path=texts, num_workers=0, micro_batch_size=4, num_batches=8, task_encoder=Hashing())
    found = profile(config)
    assert greatest(found) == "encode"
    assert list(shares(found)) == ["read", "decode", "encode", "batch", "order", "transfer"]
    assert (found.num_samples, found.num_batches, found.idle_s, found.busy) == (32, 8, 0, 1)
    assert (found.trainer.waiting_s, found.trainer.step_s) == (0, 0)
    assert found.total_s <= found.trainer.seconds
    assert [source.num_samples for source in found.by_source] == [32]


@pytest.mark.processes
def test_workers_send_what_they_did(texts: Path) -> None:
    config = config_of(
        path=texts, num_workers=2, micro_batch_size=4, num_batches=8, task_encoder=Hashing(), step_s=0.001
    )
    found = profile(config)
    assert greatest(found) == "encode"
    assert (found.num_samples, found.num_batches, found.num_workers) == (32, 8, 2)
    assert [source.num_samples for source in found.by_source] == [32]
    assert 0 < found.busy <= 1
    trainer = found.trainer
    assert min(trainer.step_s, trainer.receiving_s) > 0
    assert trainer.step_s + trainer.receiving_s + trainer.waiting_s <= trainer.seconds * 1.001
    assert set(found.whats("transfer")) == {"transfer send", "transfer receive"}
    assert found.machine.delayed >= 0


def test_each_data_set_has_its_own(tmp_path: Path) -> None:
    write_texts(tmp_path / "odd", 20, lambda number: "odd")
    write_texts(tmp_path / "even", 20, lambda number: "even")
    blend = write_blend(tmp_path / "blend.yaml", {"even": 3, "odd": 1})
    found = profile(config_of(path=blend, num_workers=0, micro_batch_size=8, num_batches=5, task_encoder=OnlyOdd()))
    odd, even = found.by_source
    assert (odd.name, even.name, odd.number, even.number) == ("odd/train", "even/train", 1, 0)
    assert odd.num_samples + even.num_samples == 40
    assert 0 < odd.num_samples < even.num_samples
    assert list(odd.seconds) == list(even.seconds) == ["read", "decode", "encode"]
    assert odd.seconds["encode"] > even.seconds["encode"]
    assert odd.share + even.share <= 1


def test_a_folder_may_be_blended_twice(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts", 20)
    blend = tmp_path / "blend.yaml"
    write_blend(blend, {"texts": 1})
    blend.write_text(blend.read_text() + "      - {path: texts, weight: 1}\n")
    found = profile(config_of(path=blend, num_workers=0, num_batches=2))
    assert sorted(source.name for source in found.by_source) == ["texts/train", "texts/train (2)"]


def test_cooks_and_packs_are_found(tmp_path: Path, texts: Path) -> None:
    crude = write_dataset(
        tmp_path / "crude",
        [{"__key__": str(number), "txt": "text"} for number in range(12)],
        definition={"sample_type": CRUDE},
    )
    assert greatest(profile(config_of(path=crude, num_workers=0, num_batches=2, task_encoder=Cooked()))) == "cook"
    packed = config_of(
        path=texts, num_workers=0, micro_batch_size=2, packing_buffer_size=16, num_batches=4, task_encoder=Packed()
    )
    assert greatest(profile(packed)) == "pack"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seconds": 0}, "seconds=0: expected more than 0"),
        ({"seconds": float("nan")}, "seconds=nan: expected more than 0"),
        ({"num_batches": 0}, r"num_batches=0\): expected at least 1"),
        ({"step_s": -1}, "step_s=-1: expected 0 or more"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchConfig(path="somewhere", **settings)
