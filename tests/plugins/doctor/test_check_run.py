"""`bridge-data check --run`: facts, findings and the exit status."""

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Run
from tests.data.tars import write_shards
from tests.prepared import write_blend, write_texts


@pytest.fixture
def blend(tmp_path: Path) -> Path:
    write_texts(tmp_path / "odd", 100)
    write_texts(tmp_path / "even", 400)
    return write_blend(tmp_path / "blend.yaml", {"even": 3, "odd": 1})


SIZES = ("micro_batch_size=16", "max_samples_per_sequence=100", "num_workers=0")


def test_facts_sources_and_findings_and_whether_the_run_would_stop(run: Run, blend: Path) -> None:
    result = run("check", "--run", blend, *SIZES, "--later-world-sizes", "3", "--run-steps", 250)
    assert result.exit_code == 0, result.output
    facts, sources, *findings = result.stdout.split("\n\n")
    headings = [line[:12].strip() for line in facts.splitlines()]
    assert headings == ["data set", "run", "order", "machine", "decoders", "shards"]
    assert "run          1 rank, later 3, 0 workers each, micro-batches of 16, steps of 16 samples" in facts
    assert facts.endswith("10, 10 looked at")
    rows = [line.split() for line in sources.splitlines()]
    assert rows[1][:3] == ["even/train", "400", "75.00%"]
    assert rows[2][:3] == ["odd/train", "100", "25.00%"]
    planned = json.loads(run("plan", blend, *SIZES, "--run-steps", 250, "--json").stdout)["run"]
    assert [row[3] for row in rows[1:3]] == [f"{epochs:.2f}" for epochs in planned["epochs"]]
    assert findings[0].startswith("1. mixes  lanes-of-later-ranks")
    assert "   → set num_lanes=24 from the beginning" in findings[0]
    assert result.stdout.endswith(f"{len(findings) - 1} findings\n")
    (blend.parent / "odd" / "data-0001.tar").unlink()
    result = run("check", "--run", blend, *SIZES)
    assert result.exit_code == 1 and "1. stops  missing-shard" in result.stdout
    assert result.stdout.rstrip().endswith("1 of which would stop the run")


def test_data_that_end_are_drawn_no_more_often_than_plan_says(run: Run, tmp_path: Path) -> None:
    """It was 9 and 18 epochs, of data that are read once and twice."""
    for name, size in (("large", 100), ("small", 20)):
        write_texts(tmp_path / name, size)
    data = write_blend(tmp_path / "blend.yaml", {"large": 1, "small": 2}, epochized=True)
    options = (data, "repeat=false", *SIZES, "--run-steps", 80, "--json")
    checked, planned = (json.loads(run(*name, *options).stdout) for name in (("check", "--run"), ("plan",)))
    assert [source["epochs"] for source in checked["sources"]] == planned["run"]["epochs"] == [1, 2]
    assert "many-epochs" not in [finding["code"] for finding in checked["findings"]]


def test_lanes_are_those_that_few_samples_have(run: Run, tmp_path: Path) -> None:
    write_texts(tmp_path / "few", 56)
    options = ("micro_batch_size=4", "num_workers=0", "--world-size", 2, "--later-world-sizes", 3)
    stdout = run("check", "--run", tmp_path / "few", *options).stdout
    assert "2 lanes cannot be shared equally by 3 ranks" in stdout and "→ set num_lanes=6 from the beginning" in stdout


@pytest.mark.parametrize("name", ["tokenizer", "image_processor"])
def test_a_folder_that_is_not_there_would_stop_the_run(run: Run, blend: Path, name: str) -> None:
    result = run("check", "--run", blend, *SIZES, f"{name}=/nowhere/llava")
    assert result.exit_code == 1
    assert "1. stops  missing-folder" in result.stdout
    assert f"{name}: there is no folder /nowhere/llava" in result.stdout
    named = run("check", "--run", blend, *SIZES, f"{name}=llava-hf/llava-1.5-7b-hf")
    assert "missing-folder" not in named.stdout  # an id of the hub, which is not asked


def test_a_yaml_of_lightning_has_the_settings_of_its_datamodule(run: Run, blend: Path, tmp_path: Path) -> None:
    """It was 16 samples, 100 a sequence and two workers, of its own."""
    config = tmp_path / "run.yaml"
    encoder = {"class_path": "bridge_data.DefaultTaskEncoder"}
    data = {"path": str(blend), "task_encoder": encoder}
    config.write_text(yaml.safe_dump({"data": data, "trainer": {"max_steps": 10, "accumulate_grad_batches": 2}}))
    document = json.loads(run("check", "--run", config, "--json").stdout)
    found = document["run"]
    assert (found["micro_batch_size"], found["num_accumulated"], found["steps"]) == (1, 2, 10)
    assert (found["max_samples_per_sequence"], found["num_workers"]) == (None, 1)
    assert sum(source["draws"] for source in document["sources"]) == 20
    document = json.loads(run("check", "--run", config, "micro_batch_size=4", "--measure", 0.05, "--json").stdout)
    assert document["run"]["micro_batch_size"] == 4 and document["figures"]["samples_per_s"] > 0


def test_tars_that_nobody_has_prepared_are_checked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    write_shards(tmp_path / "tars")
    result = run("check", "--run", tmp_path / "tars", "num_workers=0", "--json")
    assert result.exit_code == 0, result.output
    findings = json.loads(result.stdout)["findings"]
    assert "unprepared" in [finding["code"] for finding in findings if finding["level"] == "note"]


def test_of_many_findings_of_a_kind_some_are_shown(run: Run, tmp_path: Path) -> None:
    names = [f"set{number}" for number in range(7)]
    for name in names:
        write_texts(tmp_path / name, 2)
    blend = write_blend(tmp_path / "blend.yaml", dict.fromkeys(names, 1))
    result = run("check", "--run", blend, *SIZES, "num_lanes=1", "--run-steps", 1000)
    assert result.stdout.count("many-epochs") == 6
    assert result.stdout.endswith("… and 2 more of many-epochs; --json shows all\n\n7 findings\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--later-world-sizes", "8,many"], "--later-world-sizes 8,many: expected"),
        (["num_workers=-1"], "num_workers=-1: expected an integer of at least 0"),
        (["num_worker=1"], "did you mean 'num_workers'"),
    ],
)
def test_options_that_are_wrong(run: Run, tmp_path: Path, options: list[object], message: str) -> None:
    result = run("check", "--run", write_texts(tmp_path / "texts", 4), *options)
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
