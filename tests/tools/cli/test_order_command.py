"""`bridge-data at`, `when` and `order` on small data, beside what loaders give."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.loader.checkpoint import save_states
from bridge_data.tools.oracle import run_reports
from tests.prepared import write_blend, write_texts
from tests.tools.cli.conftest import Run
from tests.tools.oracle.parts import Run as JobRun

OPTIONS = ("--batch-size", 2, "--num-lanes", 4, "--max-samples-per-sequence", 10)
SETTINGS: dict[str, Any] = {"batch_size": 2, "shuffle_buffer_size": 100, "max_samples_per_sequence": 10}


@pytest.fixture
def blend(tmp_path: Path) -> Path:
    write_texts(tmp_path / "a", 90)
    write_texts(tmp_path / "b", 40, per_shard=11)
    return write_blend(tmp_path / "m.yaml", {"a": 3, "b": 1})


def keys_of(path: Path, num_batches: int) -> list[str]:
    dataset = get_train_dataset(path, worker_config=WorkerConfig(0, 1, 0, num_lanes=4), **SETTINGS)
    return [
        key for _, batch in zip(range(num_batches), get_savable_loader(dataset), strict=False) for key in batch.__key__
    ]


def test_a_step_is_listed_with_sources_and_keys(run: Run, blend: Path) -> None:
    result = run("at", blend, 5, *OPTIONS, "--global-batch-size", 4)
    assert result.exit_code == 0, result.output
    keys = keys_of(blend, 12)[20:24]
    assert [line.split()[-1] for line in result.stdout.splitlines()[1:]] == keys
    assert "note" not in result.stderr


def test_a_key_is_listed_with_its_steps(run: Run, blend: Path) -> None:
    keys = keys_of(blend, 300)
    key = "data-0001.tar/000070"
    result = run("when", blend, key, "--until", 299, *OPTIONS)
    assert result.exit_code == 0, result.output
    steps = [int(line.split()[1]) for line in result.stdout.splitlines()[1:-1]]
    assert steps == [at // 2 for at, one in enumerate(keys) if one == key]
    assert f"{len(steps)} times in steps 0 to 299" in result.stdout
    by_index = run("when", blend, "--source", "a/train", "--index", 70, "--until", 299, *OPTIONS)
    assert by_index.stdout == result.stdout
    assert "not in steps 0 to 0" in run("when", blend, "data-0003.tar:000035", "--until", 0, *OPTIONS).stdout


def test_a_ledger_says_what_a_run_was_given(run: Run, blend: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    config = WorkerConfig(0, 1, 0, num_lanes=4, seed_offset=77)  # not the seed of the command line
    with get_savable_loader(get_train_dataset(blend, worker_config=config, **SETTINGS), ledger_path=ledger) as loader:
        keys = [key for _, batch in zip(range(12), loader, strict=False) for key in batch.__key__]
    assert keys != keys_of(blend, 12)
    options = (*OPTIONS, "--global-batch-size", 4, "--ledger", ledger)
    result = run("at", blend, 5, *options)
    assert [line.split()[-1] for line in result.stdout.splitlines()[1:]] == keys[20:24]
    found = run("when", blend, keys[-1], "--until", 5, *options)
    assert found.stdout.splitlines()[-2].split()[1] == "5", found.output
    for wrong in (
        run("at", tmp_path / "b", 2, *options),
        run("when", tmp_path / "b", "000003", "--until", 5, *options),
    ):
        assert (wrong.exit_code, "are of another run" in wrong.stderr, "b/train" in wrong.stderr) == (1, True, True)
    other = run("order", blend, "--steps", "0..5", "--differences", blend, blend, *options)
    assert "--ledger" in other.stderr
    assert other.exit_code != 0


def test_steps_are_written_as_json_lines(run: Run, blend: Path, tmp_path: Path) -> None:
    file = tmp_path / "order.jsonl"
    assert run("order", blend, "--steps", "3..9", "--out", file, *OPTIONS).exit_code == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["key"] for row in rows] == keys_of(blend, 10)[6:]
    assert rows[0].keys() >= {"source", "shard", "index", "epoch", "lane", "rank", "micro_batch", "step", "place"}
    assert run("order", blend, "--steps", "3..9", *OPTIONS).stdout == file.read_text()
    wrong = run("order", blend, "--steps", "9..3", *OPTIONS)
    assert (wrong.exit_code, "expected A..B" in wrong.stderr) == (1, True)
    for name in ("order.jsonl", "order.parquet"):
        unwritable = run("order", blend, "--steps", "3..9", "--out", tmp_path / "nowhere" / name, *OPTIONS)
        assert (unwritable.exit_code, f"{name}: cannot be written" in unwritable.stderr) == (1, True)


def test_steps_are_written_as_parquet(run: Run, blend: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow.parquet import read_table

    monkeypatch.setattr(run_reports, "_ROWS", 5)  # several row groups
    parquet, lines = tmp_path / "order.parquet", tmp_path / "order.jsonl"
    for file in (parquet, lines):
        result = run("order", blend, "--steps", "3..9", "--out", file, *OPTIONS)
        assert result.exit_code == 0, result.output
    table = read_table(parquet)
    assert table["key"].to_pylist() == keys_of(blend, 10)[6:]
    assert table.to_pylist() == [json.loads(line) for line in lines.read_text().splitlines()]


def test_without_pyarrow_the_extra_is_named(
    run: Run, blend: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run("order", blend, "--steps", "3..9", "--out", tmp_path / "order.parquet", *OPTIONS)
    assert (result.exit_code, 'pip install "bridge-data[parquet]"' in result.stderr) == (1, True)


def test_two_runs_differ_from_a_step_on_and_for_a_reason(run: Run, blend: Path, tmp_path: Path) -> None:
    other = write_blend(tmp_path / "other.yaml", {"a": 1, "b": 1})
    same = run("order", "--steps", "0..50", "--differences", blend, blend, *OPTIONS)
    assert (same.exit_code, same.stdout) == (0, "the same samples in steps 0 to 50\n")
    result = run("order", "--steps", "0..50", "--differences", blend, other, *OPTIONS)
    assert result.exit_code == 1
    assert "weights: the first has" in result.stdout
    step = int(result.stdout.split("differ from step ")[1].split()[0])
    keys = [keys_of(path, 51) for path in (blend, other)]
    assert step == next(at for at, pair in enumerate(zip(*keys, strict=True)) if pair[0] != pair[1]) // 2


DATA = {"micro_batch_size": 2, "global_batch_size": 4, "max_samples_per_sequence": 10}


def test_the_whole_config_of_a_recipe_says_the_settings(run: Run, blend: Path, tmp_path: Path) -> None:
    file, data = tmp_path / "recipe.yaml", {**DATA, "path": str(blend)}
    whole = {**data, "packing_buffer_size": None, "shuffle_buffer_size": 100, "seed": 0}
    file.write_text(yaml.safe_dump({"recipe": "text_sft", "data": whole, "loader": {"num_lanes": 4}}))
    assert run("at", file, 7).stdout == run("at", blend, 7, *OPTIONS, "--global-batch-size", 4).stdout
    file.write_text(yaml.safe_dump({"recipe": "text_sft", "data": data, "loader": {"num_lanes": 4}}))
    result = run("at", file, 7)
    assert result.exit_code == 1
    assert "data.packing_buffer_size" in result.stderr and "--print-config" in result.stderr


@pytest.mark.slow  # it imports what Lightning needs
def test_a_config_of_lightning_says_the_settings(run: Run, blend: Path, tmp_path: Path) -> None:
    file, data = tmp_path / "lightning.yaml", {**DATA, "path": str(blend), "num_lanes": 4}
    file.write_text(yaml.safe_dump({"data": {"class_path": "x.Y", "init_args": data}}))
    result = run("at", file, 7)
    assert result.exit_code == 0, result.output
    assert result.stdout == run("at", blend, 7, *OPTIONS, "--global-batch-size", 4).stdout
    file.write_text(yaml.safe_dump({"data": {**data, "num_lane": 4}}))
    assert "num_lane" in run("at", file, 7).stderr


@pytest.mark.processes  # it imports what Lightning needs
def test_packs_are_those_of_the_task_encoder_in_the_config(run: Run, tmp_path: Path) -> None:
    texts, encoder = write_texts(tmp_path / "texts", 90, str), "tests.tools.oracle.parts"
    file, data = tmp_path / "lightning.yaml", {**DATA, "path": str(texts), "num_lanes": 4, "packing_buffer_size": 8}
    file.write_text(yaml.safe_dump({"data": {**data, "task_encoder": {"class_path": f"{encoder}.Packing"}}}))
    result = run("at", file, 3)
    assert result.exit_code == 0, result.output
    packing = ("--global-batch-size", 4, "--packing-buffer-size", 8)
    assert result.stdout == run("at", texts, 3, *OPTIONS, *packing, "--task-encoder", f"{encoder}:Packing").stdout
    assert "in pack" in result.stdout
    assert "name it (--task-encoder package.module:Name)" in run("at", texts, 3, *OPTIONS, *packing).stderr


def test_the_states_of_a_run_are_followed(run: Run, blend: Path, tmp_path: Path) -> None:
    job = JobRun(SETTINGS)
    job.leg(blend, 2, 12, num_lanes=4)
    job.leg(blend, 3, 12)
    for step, state in zip((12, 24), job.states, strict=True):
        save_states(
            tmp_path / "run" / f"iter_{step:07d}", state.to_dict(), step=step, world_size=2 if step == 12 else 3
        )
    result = run("at", blend, 15, "--state", tmp_path / "run", "--batch-size", 2, "--max-samples-per-sequence", 10)
    assert result.exit_code == 0, result.output
    keys = [key for number in range(45, 48) for key in job.keys[number]]
    assert [line.split()[-1] for line in result.stdout.splitlines()[1:]] == keys
    first = tmp_path / "run" / "iter_0000012"
    later = run("order", blend, "--steps", "9..11", "--differences", first, first, *OPTIONS)
    assert (later.exit_code, later.stdout) == (0, "the same samples in steps 9 to 11\n")
