"""`bridge-data at`, `when` and `order` on small data, beside what loaders give."""

import json
import shutil
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
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from bridge_data.tools import oracle
from tests.cli.conftest import Run
from tests.prepared import CRUDE, write_blend, write_dataset, write_texts
from tests.tools.oracle.parts import Filtering
from tests.tools.oracle.parts import Run as JobRun

OPTIONS = ("--batch-size", 2, "--num-lanes", 4, "--max-samples-per-sequence", 10)
SETTINGS: dict[str, Any] = {"batch_size": 2, "shuffle_buffer_size": 100, "max_samples_per_sequence": 10}


@pytest.fixture
def blend(tmp_path: Path) -> Path:
    write_texts(tmp_path / "a", 90)
    write_texts(tmp_path / "b", 40, per_shard=11)
    return write_blend(tmp_path / "m.yaml", {"a": 3, "b": 1})


def keys_of(path: Path, num_batches: int, ledger: Path | None = None, **more: Any) -> list[str]:
    """The keys in the first batches of a run, which perhaps writes a ledger."""
    config = WorkerConfig(0, 1, 0, num_lanes=4, seed_offset=more.pop("seed", 0))
    dataset = get_train_dataset(path, worker_config=config, **SETTINGS, **more)
    with get_savable_loader(dataset, ledger_path=ledger) as loader:
        found = [key for _, batch in zip(range(num_batches), loader, strict=False) for key in batch.__key__]
        if ledger is not None:
            save_states(ledger.parent / "checkpoints/iter_0000006", loader.save_state_rank(), step=6, world_size=1)
    return found


def last_words(output: str) -> list[str]:
    """The last column of a table."""
    return [line.split()[-1] for line in output.splitlines()[1:]]


def refuses(result: Any, *told: str) -> None:
    assert result.exit_code == 1, result.output
    assert all(text in result.stderr for text in told), result.stderr


def test_a_step_is_listed_with_sources_and_keys(run: Run, blend: Path) -> None:
    result = run("at", blend, 5, *OPTIONS, "--global-batch-size", 4)
    assert result.exit_code == 0, result.output
    assert last_words(result.stdout) == keys_of(blend, 12)[20:24]
    assert "right if no sample was left out" in result.stderr, "nobody said which hooks the run has"
    found = json.loads(run("at", blend, 5, *OPTIONS, "--global-batch-size", 4, "--json").stdout)["samples"]
    loader = get_savable_loader(get_train_dataset(blend, worker_config=WorkerConfig(0, 1, 0, num_lanes=4), **SETTINGS))
    assert [loader.restore_sample(sample["restore_key"]).__key__ for sample in found] == last_words(result.stdout)


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
    ledger = tmp_path / "run/ledger"
    keys = keys_of(blend, 12, ledger, seed=77)  # not the seed of the command line
    assert keys != keys_of(blend, 12)
    options = (*OPTIONS, "--global-batch-size", 4, "--ledger", ledger)
    assert last_words(run("at", blend, 5, *options).stdout) == keys[20:24]
    found = run("when", blend, keys[-1], "--until", 5, *options)
    assert found.stdout.splitlines()[-2].split()[1] == "5", found.output
    for command in (("at", tmp_path / "b", 2), ("when", tmp_path / "b", "000003", "--until", 5)):
        refuses(run(*command, *options), "are of another run", "b/train")
    other = run("order", blend, "--steps", "0..5", "--differences", blend, blend, *options)
    assert other.exit_code != 0 and "--ledger" in other.stderr


def test_steps_are_written_as_json_lines_and_parquet(
    run: Run, blend: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow.parquet import read_table

    monkeypatch.setattr(oracle, "_ROWS", 5)  # several row groups
    lines, parquet = tmp_path / "order.jsonl", tmp_path / "order.parquet"
    for file in (lines, parquet):
        assert run("order", blend, "--steps", "3..9", "--out", file, *OPTIONS).exit_code == 0
        unwritable = run("order", blend, "--steps", "3..9", "--out", tmp_path / "nowhere" / file.name, *OPTIONS)
        refuses(unwritable, f"{file.name}: cannot be written")
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["key"] for row in rows] == keys_of(blend, 10)[6:]
    assert rows[0].keys() >= {"source", "shard", "index", "epoch", "lane", "rank", "micro_batch", "step", "place"}
    assert read_table(parquet).to_pylist() == rows
    assert run("order", blend, "--steps", "3..9", *OPTIONS).stdout == lines.read_text()
    refuses(run("order", blend, "--steps", "9..3", *OPTIONS), "expected A..B")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    without = run("order", blend, "--steps", "3..9", "--out", parquet, *OPTIONS)
    refuses(without, "pip install pyarrow")


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
    refuses(run("at", file, 7), "data.packing_buffer_size", "--print-config")


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
        refuses(run("at", blend, 3, "--state", tmp_path / "run", option, value), f"{option} {value}", f"had {has}")
    same = ("--batch-size", 3, "--seed", 0, "--num-lanes", 4)
    assert len(keys_in(run("at", blend, 3, "--state", tmp_path / "run", *same, "--json"))) == 12
    refuses(run("at", blend, 3), "--batch-size")
    refuses(run("at", tmp_path / "run", 3), "--data")
    refuses(run("at", "package:data", 3), "package:data", "expected the folder or the config of a run")
    state = tmp_path / "run/checkpoints/iter_0000016/train_dataloader_dprank000.pt"
    refuses(run("at", state, 3), "a saved state", "--data", f"--state {state}")
    assert keys_in(run("at", state, 12, "--data", blend, "--global-batch-size", 12, "--json")) == wanted


def test_states_of_several_numbers_of_ranks_are_followed_once_it_is_said_what_a_step_is(
    run: Run, blend: Path, tmp_path: Path
) -> None:
    job = JobRun(SETTINGS)
    job.leg(blend, 2, 12, num_lanes=4)
    job.leg(blend, 3, 12)
    saved_run(job, tmp_path / "run", (12, 24), (2, 3))
    refuses(run("at", tmp_path / "run", 15, "--data", blend), "--global-batch-size")
    result = run("at", tmp_path / "run", 15, "--data", blend, "--global-batch-size", 6)
    assert result.exit_code == 0 and "steps are not those of the run's log" in result.stderr
    assert last_words(result.stdout) == [key for number in range(45, 48) for key in job.keys[number]]
    first = tmp_path / "run" / "iter_0000012"
    later = run("order", blend, "--steps", "9..11", "--differences", first, first, *OPTIONS)
    assert (later.exit_code, later.stdout) == (0, "the same samples in steps 9 to 11\n")


def test_the_folder_of_a_run_gives_config_states_and_ledger(run: Run, blend: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    keys = keys_of(blend, 12, folder / "ledger", task_encoder=Filtering())  # which the ledger makes unnecessary
    data = {**DATA, "path": str(blend), "packing_buffer_size": None, "shuffle_buffer_size": 100, "seed": 0}
    config = yaml.safe_dump({"recipe": "text_sft", "data": data, "loader": {"num_lanes": 4}})
    (folder / "config.yaml").write_text(config)
    assert keys_in(run("at", folder, 4, "--json")) == keys[16:20]
    assert run("audit", folder).exit_code == 0
    (folder / "weights.ckpt").write_bytes(b"of another program")
    foreign = run("at", folder, 4, "--json")
    assert keys_in(foreign) == keys[16:20] and "weights.ckpt" in foreign.stderr
    shutil.rmtree(folder / "ledger")
    (folder / "config.yaml").unlink()
    refuses(run("at", folder, 4, "--data", blend), "--task-encoder")
    named = run("at", folder, 4, "--data", blend, "--task-encoder", "tests.tools.oracle.parts:Filtering", "--json")
    assert keys_in(named) == keys[16:20]


def test_steps_before_the_first_state_of_a_run_that_was_resharded_are_counted(
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
    now = JobRun(SETTINGS, states=job.states[:1])
    now.leg(blend, 1, 6)

    def at(step: int, *more: str) -> Any:
        return run("at", tmp_path / "run", step, "--data", blend, "--json", *more)

    assert keys_in(at(5)) == job.keys[5]
    assert "--lists" in run("at", tmp_path / "run", 5, "--data", blend, "--lists", "now").stderr
    refuses(at(14), "--lists")
    assert [keys_in(at(14, "--lists", which)) for which in ("then", "now")] == [job.keys[14], now.keys[14]]
    refuses(run("at", blend, 5, *OPTIONS), "--lists now")
    assert keys_in(run("at", blend, 5, *OPTIONS, "--lists", "now", "--json")) == keys_of(blend, 6)[10:]


def test_crude_samples_need_no_cooker(run: Run, tmp_path: Path) -> None:
    samples = ({"__key__": f"{number:04d}", "txt": str(number)} for number in range(90))
    crude = write_dataset(tmp_path / "crude", samples, definition=CRUDE)
    encoder = "tests.cli.test_order_command:Cooking"
    found = keys_in(run("at", crude, 5, *OPTIONS, "--json"))
    assert found == keys_in(run("at", crude, 5, *OPTIONS, "--task-encoder", encoder, "--replay", "--json"))
    refuses(run("at", crude, 5, *OPTIONS, "--replay"), "--task-encoder")


class Cooking(DefaultTaskEncoder):
    """Cooks texts."""

    cookers = (Cooker(lambda sample: TextSample(**basic_sample_keys(sample), text=sample["txt"])),)
