"""The same data in several branches of a blend: told in the plan, at the start, by `check --run`; never refused."""

import itertools
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset, get_val_dataset
from bridge_data.lanes import datasets
from bridge_data.plan import load_plan
from tests.cli.runner import run_command
from tests.prepared import write_texts

HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
TWICE = HEAD + "  {part}:\n    blend:\n      - {{weight: 3, path: replay.yaml}}\n      - {{weight: 1, {again}}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data sets `a` and `b`, of which `replay.yaml` is a blend."""
    for name in ("a", "b"):
        write_texts(tmp_path / name, 40, per_shard=10, ratio="3,1,0")
    (tmp_path / "replay.yaml").write_text(
        "".join(
            (HEAD if part == "train" else "") + f"  {part}:\n    blend:\n"
            f"      - {{weight: 1, path: a, split_part: {part}}}\n      - {{weight: 1, path: b, split_part: {part}}}\n"
            for part in ("train", "val")
        )
    )
    os.symlink("a", tmp_path / "link")
    (tmp_path / "c").mkdir()
    return tmp_path


def plan_with(folder: Path, again: str, part: str = "train") -> Path:
    file = folder / "top.yaml"
    file.write_text(TWICE.format(again=again, part=part))
    return file


@pytest.mark.parametrize(
    "again",
    [
        "path: a",
        "path: ./c/../a",
        "path: link",
        "path: a, subflavors: {kind: other}",
        "path: a, shuffle_over_epochs_multiplier: 3",
        "path: replay.yaml",
    ],
)
def test_a_data_set_that_two_branches_reach_is_told_with_its_shares(folder: Path, again: str) -> None:
    plan = load_plan(plan_with(folder, again))
    notes = [line for line in str(plan).splitlines() if line.startswith("note: ")]
    assert len(notes) == (2 if "replay" in again else 1)
    assert f"{folder}/a [train] is read by 2 branches" in notes[0]
    assert ("different subflavors" in notes[0]) == ("subflavors" in again)
    shares = "37.50% and 12.50%, together 50.00%" if "replay" in again else "37.50% and 25.00%, together 62.50%"
    assert shares in notes[0]


@pytest.mark.parametrize(
    "again",
    [
        "path: a, split_part: val",
        "path: a, subset: {range: [0%, 50%]}",
        "path: a, where: \"__key__ != '000005'\"",
        "path: c/other",
    ],
)
def test_other_samples_are_not_the_same_data(folder: Path, again: str) -> None:
    write_texts(folder / "c" / "other", 40, per_shard=10, ratio="3,1,0")
    assert "note: " not in str(load_plan(plan_with(folder, again)))


def test_branches_that_follow_one_another_are_not_read_together(folder: Path) -> None:
    steps = "weight: [{from_sample: 0, weight: %d}, {from_sample: 100, weight: %d}]"
    file = folder / "stages.yaml"
    for last, is_told in ((0, False), (1, True)):
        file.write_text(
            HEAD + f"  train:\n    blend:\n      - {{path: a, {steps % (1, last)}}}\n"
            f"      - {{path: link, {steps % (0, 3)}}}\n      - {{path: b, weight: 1}}\n"
        )
        assert ("together 80.00%" in str(load_plan(file))) == is_told


@pytest.mark.parametrize("part", ["train", "val"])
def test_it_is_logged_once_when_a_run_starts_on_the_first_rank_alone(
    folder: Path, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    datasets._tell_once.cache_clear()
    file = plan_with(folder, "path: a" + (", split_part: val" if part == "val" else ""), part)
    make = get_val_dataset if part == "val" else get_train_dataset
    shuffling = {} if part == "val" else {"shuffle_buffer_size": 10, "max_samples_per_sequence": 10}
    with caplog.at_level(logging.WARNING, "bridge_data"):
        for rank in (1, 0, 0):
            make(file, worker_config=WorkerConfig(rank=rank, world_size=2, num_workers=0), batch_size=4, **shuffling)
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith(f"{folder}/a [{part}] is read by 2 branches")


def test_check_run_notes_it(folder: Path) -> None:
    done = run_command("check", "--run", plan_with(folder, "path: link"), "--json")
    findings = {one["code"]: one for one in json.loads(done.stdout)["findings"]}
    assert "together 62.50%" in findings["data-repeated"]["what"] and findings["data-repeated"]["level"] == "note"


@pytest.mark.parametrize("again", ["path: a", "path: link", "path: replay.yaml"])
def test_a_state_of_a_blend_with_a_data_set_twice_restores(folder: Path, again: str) -> None:
    def texts(state: dict[str, Any] | None = None) -> tuple[list[list[str]], dict[str, Any]]:
        config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=2)
        shuffle = {"shuffle_buffer_size": 10, "max_samples_per_sequence": 5}
        dataset = get_train_dataset(plan_with(folder, again), worker_config=config, batch_size=2, **shuffle)
        with get_savable_loader(dataset) as loader:
            if state is not None:
                loader.restore_state_rank(state)
            found = [batch.text for batch in itertools.islice(loader, 6)]
            return found, json.loads(json.dumps(loader.save_state_rank()))

    _, state = texts()
    after, later = texts(state)
    assert texts(state) == (after, later) and after != texts()[0]
