import json
from pathlib import Path

import click
import pytest

from bridge_data.tools.bench import RECEIVE, SEND, Key, Trainer
from bridge_data.tools.bench_command import shown_profile
from tests.cli.conftest import Run
from tests.prepared import write_blend, write_texts
from tests.tools.bench.profiles import FIGURES, made_profile, spent


@pytest.mark.processes
def test_figures_with_workers(run: Run, tmp_path: Path) -> None:
    path = write_texts(tmp_path / "texts", 40)
    result = run("bench", path, "--num-workers", 2, "--num-batches", 5, "--batch-size", 4)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    headings = [line[:12].strip() for line in lines]
    assert headings == ["data set", "speed", "CPU", "first batch", "workers", "save", "restore"]
    assert lines[0].endswith(f"{path} [train]") and "samples/s, " in lines[1]
    assert result.stderr == "note: measuring 5 batches\n"


def test_a_profile_of_a_blend(run: Run, tmp_path: Path) -> None:
    for name in ("odd", "even"):
        write_texts(tmp_path / name, 20, lambda number, name=name: name)
    blend = write_blend(tmp_path / "blend.yaml", {"even": 3, "odd": 1})
    settings: list[object] = ["--num-workers", 0, "--num-batches", 10, "--batch-size", 4]
    settings += ["--profile", "--task-encoder", "tests.tools.bench.encoders:OnlyOdd"]
    result = run("bench", blend, *settings)
    assert result.exit_code == 0, result.output
    table = result.stdout.split("\n\n")[1].splitlines()
    assert table[0].split() == ["stage", "µs/sample", "ms/batch", "share", "waits"]
    stages = ["read", "decode", "encode", "batch", "seed", "order", "transfer"]
    assert [line.split()[0] for line in table[1:-1]] == stages and table[-1].startswith("all work")
    assert "\nclocks   " in result.stdout and "\nodd/train  " in result.stdout

    document = json.loads(run("bench", blend, *settings, "--json").stdout)
    assert (document["version"], document["path"], document["settings"]["num_workers"]) == (1, str(blend), 0)
    assert document["settings"]["task_encoder"] == "tests.tools.bench.encoders:OnlyOdd"
    assert document["figures"]["num_samples"] == 40 and document["profile"]["advice"]
    found = {stage["name"]: stage for stage in document["profile"]["stages"]}
    assert sum(stage["share"] for stage in found.values()) == pytest.approx(1)
    assert list(found["encode"]["parts"]) == ["encode_sample"]
    sources = document["profile"]["sources"]
    assert sources == sorted(sources, key=lambda source: -sum(source["seconds"].values()))
    even, odd = sorted(sources, key=lambda source: str(source["name"]))
    assert (odd["name"], even["name"]) == ("odd/train", "even/train")
    assert 0 < odd["num_samples"] < even["num_samples"] and odd["num_samples"] + even["num_samples"] == 40
    assert odd["seconds"]["encode"] > even["seconds"]["encode"]


@pytest.mark.parametrize(
    ("path", "flags", "message"),
    [
        ("no", [], "/no: no such folder"),
        ("a", ["--num-batches", 0], "--num-batches 0: expected at least 1"),
        ("a", ["--num-workers", -1], "--num-workers -1"),
        ("a", ["--batch-size", -1], "--batch-size -1: expected an integer of at least 1"),
        ("a", ["--split-part", "val"], "val"),
        ("a", ["--task-encoder", "nothing"], "expected package.module:Name"),
    ],
)
def test_wrong_arguments(run: Run, tmp_path: Path, path: str, flags: list[object], message: str) -> None:
    write_texts(tmp_path / "a", 4)
    result = run("bench", tmp_path / path, *flags)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: ") and message in result.stderr


def test_who_waits_for_whom(tmp_path: Path) -> None:
    work = {Key("read", 0): spent(6, 0.5), Key(SEND): spent(1), Key(RECEIVE): spent(1)}
    trainer = Trainer(seconds=10, waiting_s=5, receiving_s=1, step_s=4)
    found = made_profile(write_texts(tmp_path, 4), work, idle_s=3, trainer=trainer)
    assert list(map(click.unstyle, shown_profile(found, FIGURES)))[1:6] == [
        "stage     µs/sample  ms/batch   share  waits\n"
        "read       60,000.0    600.00   75.0%    50%\n"
        "transfer   20,000.0    200.00   25.0%     0%\n"
        "all work   80,000.0    800.00  100.0%",
        "",
        "workers  work 70% of their time, wait for the trainer 30%",
        "trainer  waits for batches 50%, receives 10%, does its step 40%",
        "clocks   10.0 samples/s with them, 50.0 without",
    ]
