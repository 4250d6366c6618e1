"""`bridge-data at`, `when` and `order` on small data, beside what loaders give."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge_data import (
    Cooker,
    DefaultTaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
)
from bridge_data.loader.checkpoint import save_states
from bridge_data.prepare.tombstone_writing import forget_samples
from bridge_data.tools import oracle
from tests.prepared import CRUDE, write_blend, write_dataset, write_texts
from tests.tools.cli.conftest import Run
from tests.tools.oracle.parts import Filtering
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
    assert "right if no sample was left out" in result.stderr, "nobody said which hooks the run has"


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

    monkeypatch.setattr(oracle, "_ROWS", 5)  # several row groups
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
    result = run("at", blend, 15, "--state", tmp_path / "run", "--global-batch-size", 6)
    assert result.exit_code == 0, result.output
    keys = [key for number in range(45, 48) for key in job.keys[number]]
    assert [line.split()[-1] for line in result.stdout.splitlines()[1:]] == keys
    first = tmp_path / "run" / "iter_0000012"
    later = run("order", blend, "--steps", "9..11", "--differences", first, first, *OPTIONS)
    assert (later.exit_code, later.stdout) == (0, "the same samples in steps 9 to 11\n")


def keys_in(result: Any) -> list[str]:
    assert result.exit_code == 0, result.output
    return [sample["key"] for sample in json.loads(result.stdout)["samples"]]


def saved_run(job: JobRun, folder: Path, steps: Sequence[int], world_sizes: Sequence[int]) -> None:
    for step, state, world_size in zip(steps, job.states, world_sizes, strict=True):
        save_states(folder / f"iter_{step:07d}", state.to_dict(), step=step, world_size=world_size)


def test_settings_are_those_of_the_states_and_others_are_refused(run: Run, blend: Path, tmp_path: Path) -> None:
    job = JobRun({"batch_size": 3, "shuffle_buffer_size": 40, "max_samples_per_sequence": 7})
    job.leg(blend, 2, 12, num_lanes=4)
    job.leg(blend, 2, 20)
    saved_run(job, tmp_path / "run/checkpoints", (6, 16), (2, 2))  # two micro-batches a rank and step
    for step in (3, 12):
        wanted = [key for number in range(4 * step, 4 * step + 4) for key in job.keys[number]]
        for state in ("checkpoints", "checkpoints/iter_0000016"):
            assert keys_in(run("at", blend, step, "--state", tmp_path / "run" / state, "--json")) == wanted
        assert keys_in(run("at", tmp_path / "run", step, "--data", blend, "--json")) == wanted
    for option, value, has in (
        ("--batch-size", 2, 3),
        ("--max-samples-per-sequence", 10, 7),
        ("--shuffle-buffer-size", 100, 40),
        ("--seed", 5, 0),
        ("--num-lanes", 8, 4),
    ):
        result = run("at", blend, 3, "--state", tmp_path / "run", option, value)
        assert result.exit_code == 1
        assert f"{option} {value}" in result.stderr and f"had {has}" in result.stderr
    same = ("--batch-size", 3, "--seed", 0, "--num-lanes", 4)
    assert len(keys_in(run("at", blend, 3, "--state", tmp_path / "run", *same, "--json"))) == 12
    without = run("at", blend, 3)
    assert (without.exit_code, "--batch-size" in without.stderr) == (1, True)
    folder = run("at", tmp_path / "run", 3)
    assert (folder.exit_code, "--data" in folder.stderr) == (1, True)


def test_steps_that_no_state_says_are_refused(run: Run, blend: Path, tmp_path: Path) -> None:
    job = JobRun(SETTINGS)
    job.leg(blend, 2, 12, num_lanes=4)
    job.leg(blend, 3, 12)
    saved_run(job, tmp_path / "run", (12, 24), (2, 3))
    result = run("at", tmp_path / "run", 15, "--data", blend)
    assert (result.exit_code, "--global-batch-size" in result.stderr) == (1, True)
    result = run("at", tmp_path / "run", 15, "--data", blend, "--global-batch-size", 6)
    assert result.exit_code == 0 and "steps are not those of the run's log" in result.stderr


def test_the_folder_of_a_run_gives_config_states_and_ledger(run: Run, blend: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = WorkerConfig(0, 1, 0, num_lanes=4)
    encoder = Filtering()  # which the ledger makes unnecessary
    dataset = get_train_dataset(blend, worker_config=config, task_encoder=encoder, **SETTINGS)
    with get_savable_loader(dataset, ledger_path=folder / "ledger") as loader:
        keys = [key for _, batch in zip(range(12), loader, strict=False) for key in batch.__key__]
        save_states(folder / "checkpoints/iter_0000006", loader.save_state_rank(), step=6, world_size=1)
    data = {**DATA, "path": str(blend), "packing_buffer_size": None, "shuffle_buffer_size": 100, "seed": 0}
    (folder / "config.yaml").write_text(
        yaml.safe_dump({"recipe": "text_sft", "data": data, "loader": {"num_lanes": 4}})
    )
    assert keys_in(run("at", folder, 4, "--json")) == keys[16:20]
    audited = run("audit", folder)
    assert audited.exit_code == 0, audited.output
    (folder / "weights.ckpt").write_bytes(b"of another program")
    foreign = run("at", folder, 4, "--json")
    assert keys_in(foreign) == keys[16:20] and "weights.ckpt" in foreign.stderr
    for file in (folder / "ledger").iterdir():
        file.unlink()
    (folder / "config.yaml").unlink()
    unnamed = run("at", folder, 4, "--data", blend)
    assert (unnamed.exit_code, "--task-encoder" in unnamed.stderr) == (1, True)
    named = run("at", folder, 4, "--data", blend, "--task-encoder", "tests.tools.oracle.parts:Filtering", "--json")
    assert keys_in(named) == keys[16:20]


def test_steps_before_the_first_state_of_a_run_that_was_dealt_again_are_counted(
    run: Run, blend: Path, tmp_path: Path
) -> None:
    job = JobRun(SETTINGS)
    job.leg(blend, 2, 12, num_lanes=4)
    job.leg(blend, 3, 12)
    job.leg(blend, 3, 12)
    save_states(tmp_path / "run/iter_0000032", job.states[-1].to_dict(), step=32, world_size=3)
    save_states(tmp_path / "run/iter_0000020", job.states[1].to_dict(), step=20, world_size=3)
    key = job.keys[70][0]
    options = ("--global-batch-size", 6, "--source", "a/train" if key not in job.keys[3] else "")
    result = run("when", tmp_path / "run", key, "--until", 31, "--data", blend, *options, "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert [(one["first"], one["last"]) for one in told["unknown_steps"]] == [(0, 19)]
    assert 70 in [sample["micro_batch"] for sample in told["samples"]]
    text = run("when", tmp_path / "run", key, "--until", 31, "--data", blend, *options)
    assert "not counted: 20 steps, steps 0 to 19" in text.stdout


def test_lists_of_forgotten_samples_are_those_of_the_run(run: Run, blend: Path, tmp_path: Path) -> None:
    job = JobRun(SETTINGS)
    job.leg(blend, 1, 12, num_lanes=4)
    saved_run(job, tmp_path / "run", (12,), (1,))
    job.leg(blend, 1, 6)
    forget_samples(blend.parent / "a", [f"{number:06d}" for number in range(0, 90, 2)], "asked for")
    folder = (tmp_path / "run", "--data", blend, "--json")
    assert keys_in(run("at", folder[0], 5, *folder[1:])) == job.keys[5]
    refused = run("at", folder[0], 14, *folder[1:])
    assert (refused.exit_code, "--lists" in refused.stderr) == (1, True)
    assert keys_in(run("at", folder[0], 14, *folder[1:], "--lists", "then")) == job.keys[14]
    now = JobRun(SETTINGS, states=job.states[:1])
    now.leg(blend, 1, 6)
    assert keys_in(run("at", folder[0], 14, *folder[1:], "--lists", "now")) == now.keys[14]
    without = run("at", blend, 5, *OPTIONS)
    assert (without.exit_code, "--lists now" in without.stderr) == (1, True)
    assert keys_in(run("at", blend, 5, *OPTIONS, "--lists", "now", "--json")) == keys_of(blend, 6)[10:]


def test_crude_samples_need_no_cooker(run: Run, tmp_path: Path) -> None:
    samples = ({"__key__": f"{number:04d}", "txt": str(number)} for number in range(90))
    crude = write_dataset(tmp_path / "crude", samples, definition=CRUDE)
    encoder = "tests.tools.cli.test_order_command:Cooking"
    found = keys_in(run("at", crude, 5, *OPTIONS, "--json"))
    assert found == keys_in(run("at", crude, 5, *OPTIONS, "--task-encoder", encoder, "--replay", "--json"))
    replayed = run("at", crude, 5, *OPTIONS, "--replay")
    assert (replayed.exit_code, "--task-encoder" in replayed.stderr) == (1, True)


class Cooking(DefaultTaskEncoder):
    """Cooks texts."""

    cookers = (Cooker(lambda sample: TextSample(**basic_sample_keys(sample), text=sample["txt"])),)
