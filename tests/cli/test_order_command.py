"""`bridge-data order` on small data, beside what loaders give."""

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
from bridge_data.cli import terminal
from bridge_data.loader.checkpoint import save_states
from bridge_data.runs import run_order, run_sections
from tests.cli.conftest import Run
from tests.prepared import CRUDE, write_blend, write_dataset, write_texts
from tests.runs.oracle.parts import Filtering
from tests.runs.oracle.parts import Run as JobRun

OPTIONS = ("micro_batch_size=2", "num_lanes=4", "max_samples_per_sequence=10")
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


def keys_in(result: Any) -> list[str]:
    assert result.exit_code == 0, result.output
    return [sample["key"] for sample in json.loads(result.stdout)["samples"]]


def test_a_step_is_listed_with_sources_and_keys(run: Run, blend: Path) -> None:
    result = run("order", blend, *OPTIONS, "global_batch_size=4", "--step", 5)
    assert result.exit_code == 0, result.output
    assert last_words(result.stdout) == keys_of(blend, 12)[20:24]
    assert "settings are the defaults of the DataModule" in result.stderr and "1 data-parallel rank" in result.stderr
    assert "hooks have skipped no sample" in result.stderr, "nobody said which hooks the run has"
    found = json.loads(run("order", blend, *OPTIONS, "global_batch_size=4", "--step", 5, "--json").stdout)["samples"]
    loader = get_savable_loader(get_train_dataset(blend, worker_config=WorkerConfig(0, 1, 0, num_lanes=4), **SETTINGS))
    assert [loader.restore_sample(sample["restore_key"]).__key__ for sample in found] == last_words(result.stdout)


def test_a_key_is_listed_with_its_steps(run: Run, blend: Path) -> None:
    keys = keys_of(blend, 300)
    key = "data-0001.tar/000070"
    result = run("order", blend, *OPTIONS, "--key", key, "--steps", "0..299")
    assert result.exit_code == 0, result.output
    steps = [int(line.split()[1]) for line in result.stdout.splitlines()[1:-1]]
    assert steps == [at // 2 for at, one in enumerate(keys) if one == key]
    assert f"{len(steps)} times in steps 0 to 299" in result.stdout
    by_index = run("order", blend, *OPTIONS, "--source", "a/train", "--index", 70, "--steps", "0..299")
    assert by_index.stdout == result.stdout
    assert "not in step 0" in run("order", blend, *OPTIONS, "--key", "data-0003.tar:000035", "--steps", "0").stdout
    epoch = run("order", blend, *OPTIONS, "--key", key)
    assert "assumed: steps 0 to 64, an epoch" in epoch.stderr


def test_a_forgotten_sample_is_in_no_later_step_and_that_is_said(run: Run, blend: Path, tmp_path: Path) -> None:
    key = "data-0001.tar/000070"
    (tmp_path / "keys.txt").write_text(f"{key}\n")
    assert run("forget", tmp_path / "a", "--keys", tmp_path / "keys.txt", "--reason", "asked for").exit_code == 0
    asked = run("order", blend, *OPTIONS, "--key", key, "--steps", "0..299")
    assert asked.stdout.startswith("not in steps 0 to 299") and "the sample is forgotten" in asked.stderr, asked.output


def test_a_ledger_says_what_a_run_was_given(run: Run, blend: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "run/ledger"
    keys = keys_of(blend, 12, ledger, seed=77)  # not the seed of the command line
    assert keys != keys_of(blend, 12)
    options = (*OPTIONS, "global_batch_size=4", f"ledger_path={ledger}")
    assert last_words(run("order", blend, *options, "--step", 5).stdout) == keys[20:24]
    found = run("order", blend, *options, "--key", keys[-1], "--steps", "0..5")
    assert found.stdout.splitlines()[-2].split()[1] == "5", found.output
    for asked in (("--step", 2), ("--key", "000003", "--steps", "0..5")):
        refuses(run("order", tmp_path / "b", *options, *asked), "are of another run", "b/train")


def test_steps_are_written_as_json_lines_and_parquet(
    run: Run, blend: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow.parquet import read_table

    monkeypatch.setattr(run_order, "_ROWS", 5)  # several row groups
    lines, parquet = tmp_path / "order.jsonl", tmp_path / "order.parquet"
    for file in (lines, parquet):
        assert run("order", blend, *OPTIONS, "--steps", "3..9", "--out", file).exit_code == 0
        unwritable = run("order", blend, *OPTIONS, "--steps", "3..9", "--out", tmp_path / "nowhere" / file.name)
        refuses(unwritable, f"{file.name}: cannot be written")
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["key"] for row in rows] == keys_of(blend, 10)[6:]
    assert rows[0].keys() >= {"source", "shard", "index", "epoch", "lane", "rank", "micro_batch", "step", "place"}
    assert read_table(parquet).to_pylist() == rows
    assert run("order", blend, *OPTIONS, "--steps", "3..9").stdout == lines.read_text()
    refuses(run("order", blend, *OPTIONS, "--steps", "9..3"), "expected A..B")
    refuses(run("order", blend, *OPTIONS), "give one of --step, --key")
    refuses(run("order", blend, *OPTIONS, "--steps", "3..9", "--json"), "--steps alone writes JSON lines")
    refuses(run("order", blend, *OPTIONS, "--steps", f"0..{10**13}"), "expected A..B")
    sizes = ("micro_batch_size=2", "global_batch_size=4")
    refuses(run("order", blend, *sizes, "--step", 1, "--world-size", 3), "micro_batch_size=2 x 3 data-parallel ranks")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    without = run("order", blend, *OPTIONS, "--steps", "3..9", "--out", parquet)
    refuses(without, "pip install pyarrow")


def test_two_runs_differ_from_a_step_on_and_for_a_reason(run: Run, blend: Path, tmp_path: Path) -> None:
    other = write_blend(tmp_path / "other.yaml", {"a": 1, "b": 1})
    same = run("order", blend, *OPTIONS, "--steps", "0..50", "--diff", blend)
    assert (same.exit_code, same.stdout) == (0, "the same samples in steps 0 to 50\n")
    differ = run("order", blend, *OPTIONS, "--steps", "0..50", "--diff", other, "--json")
    document = json.loads(differ.stdout)
    assert (differ.exit_code, document["runs"]) == (1, [str(blend), str(other)])
    assert all(sample["step"] == document["step"] for sample in document["samples"])
    result = run("order", blend, *OPTIONS, "--steps", "0..50", "--diff", other)
    assert result.exit_code == 1
    assert "weights: the first has" in result.stdout
    keys = [keys_of(path, 51) for path in (blend, other)]
    step = next(at for at, pair in enumerate(zip(*keys, strict=True)) if pair[0] != pair[1]) // 2
    assert f"step {step} is the first whose samples differ" in result.stdout


def test_packs_are_those_of_the_task_encoder_in_the_config(run: Run, tmp_path: Path) -> None:
    texts, encoder = write_texts(tmp_path / "texts", 90, str), "tests.runs.oracle.parts.Packing"
    data = {"path": str(texts), "micro_batch_size": 2, "global_batch_size": 4, "max_samples_per_sequence": 10}
    file, data = tmp_path / "run.yaml", {**data, "num_lanes": 4, "packing_buffer_size": 8}
    file.write_text(yaml.safe_dump({"data": {**data, "task_encoder": {"class_path": encoder}}}))
    result = run("order", file, "--step", 3)
    assert result.exit_code == 0, result.output
    packing = (*OPTIONS, "global_batch_size=4", "packing_buffer_size=8")
    assert result.stdout == run("order", texts, *packing, f"task_encoder={encoder}", "--step", 3).stdout
    assert "in pack" in result.stdout
    assert "name it (task_encoder=package.module.Name)" in run("order", texts, *packing, "--step", 3).stderr


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
            assert keys_in(run("order", blend, "--step", step, "--state", tmp_path / "run" / state, "--json")) == wanted
    for name, value, has in (
        ("micro_batch_size", 2, 3),
        ("max_samples_per_sequence", 10, 7),
        ("shuffle_buffer_size", 100, 40),
        ("seed", 5, 0),
    ):
        told = run("order", blend, f"{name}={value}", "--step", 3, "--state", tmp_path / "run")
        refuses(told, f"{name}={value}", f"had {has}")
    same = ("micro_batch_size=3", "seed=0", "num_lanes=4")
    assert len(keys_in(run("order", blend, *same, "--step", 3, "--state", tmp_path / "run", "--json"))) == 12
    refuses(run("order", tmp_path / "run", "--step", 3), "no YAML in it has data.path")
    state = tmp_path / "run/checkpoints/iter_0000016/train_dataloader_dprank000.pt"
    refuses(run("order", state, "--step", 3), "a saved state alone is no run")


def test_states_of_several_numbers_of_ranks_are_followed_once_it_is_said_what_a_step_is(
    run: Run, blend: Path, tmp_path: Path
) -> None:
    job = JobRun(SETTINGS)
    job.leg(blend, 2, 12, num_lanes=4)
    job.leg(blend, 3, 12)
    saved_run(job, tmp_path / "run", (12, 24), (2, 3))
    states = ("--state", tmp_path / "run", "--step", 15)
    refuses(run("order", blend, *states), "global_batch_size")
    result = run("order", blend, "global_batch_size=6", *states)
    assert result.exit_code == 0 and "steps are not those of the run's log" in result.stderr
    assert last_words(result.stdout) == [key for number in range(45, 48) for key in job.keys[number]]


def test_the_folder_of_a_run_gives_config_states_and_ledger(run: Run, blend: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    keys = keys_of(blend, 12, folder / "ledger", task_encoder=Filtering())  # which the ledger makes unnecessary
    data = {"path": str(blend), "micro_batch_size": 2, "global_batch_size": 4, "max_samples_per_sequence": 10}
    data |= {"num_lanes": 4, "task_encoder": {"class_path": "tests.runs.oracle.parts.Filtering"}}
    (folder / "config.yaml").write_text(yaml.safe_dump({"data": data}))
    found = run("order", folder, "--step", 4, "--json")
    assert keys_in(found) == keys[16:20] and json.loads(found.stdout)["num_replayed"] == 0
    assert run("checkpoint", "verify", folder).exit_code == 0
    (folder / "weights.ckpt").write_bytes(b"of another program")
    foreign = run("order", folder, "--step", 4, "--json")
    assert keys_in(foreign) == keys[16:20] and "weights.ckpt" in foreign.stderr
    shutil.rmtree(folder / "ledger")
    replayed = run("order", folder, "--step", 4, "--json")
    assert keys_in(replayed) == keys[16:20] and json.loads(replayed.stdout)["num_replayed"] > 0


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
    source = "a/train" if key not in job.keys[3] else ""
    asked = ("--key", key, "--source", source, "--steps", "0..31", "--state", tmp_path / "run")
    result = run("order", blend, "global_batch_size=6", *asked, "--json")
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    assert [(one["first"], one["last"]) for one in told["unknown_steps"]] == [(0, 19)]
    assert 70 in [sample["micro_batch"] for sample in told["samples"]]
    text = run("order", blend, "global_batch_size=6", *asked)
    assert "not counted: 20 steps, steps 0 to 19" in text.stdout


class Cooking(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Makes texts of crude samples."""

    cookers = (Cooker(lambda sample: TextSample(**basic_sample_keys(sample), text=sample["txt"])),)


def test_crude_samples_need_no_cooker(run: Run, tmp_path: Path) -> None:
    samples = ({"__key__": f"{number:03d}", "txt": str(number)} for number in range(40))
    crude = write_dataset(tmp_path / "crude", samples, definition=CRUDE)
    wanted = keys_of(crude, 4, task_encoder=Cooking())
    assert keys_in(run("order", crude, *OPTIONS, "--step", 3, "--json")) == wanted[6:]


def test_steps_that_a_run_skips_are_those_of_its_trainer(run: Run, blend: Path) -> None:
    keys = keys_of(blend, 40)
    skips = (*OPTIONS, "global_batch_size=4", "skip_steps=[2-3]")
    found = run("order", blend, *skips, "--step", 5)
    assert last_words(found.stdout) == keys[28:32]
    assert "step 5 has the data of step 7 of the run without skips" in found.stderr


def test_a_long_look_through_says_how_far_it_is(run: Run, blend: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blend.write_text(blend.read_text().replace("weight", "repetitions").replace("blend:", "blend_epochized:"))
    monkeypatch.setattr(terminal, "LINE_EVERY_S", 0.0)
    monkeypatch.setattr(run_sections, "_MANY", 50)
    arguments = ("order", str(blend), "--key", "000003", "--source", "a/train", *OPTIONS, "repeat=false")
    told = run(*arguments, "--steps", "0..149")
    lines = [line for line in told.stderr.splitlines() if line.startswith("looking through: ")]
    assert lines[-1].startswith("looking through: 150 of 150 micro-batches") and len(lines) == 4
    assert "3 times in steps 0 to 149" in told.stdout
