"""`--where` and `--columns` of the commands that look at data."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data.errors import ConfigError
from bridge_data.tools.view.catalog import DataCatalog, SampleFilter
from tests.prepared import write_blend, write_texts
from tests.tables import write_text_table
from tests.tools.cli.conftest import Run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    write_texts(tmp_path / "texts", 200, ratio="3,1,0")
    write_text_table(tmp_path / "table.parquet", 90)
    write_blend(tmp_path / "blend.yaml", {"texts": 1})
    keys = [f"{number:06d}" for number in range(200)]
    pq.write_table(pa.table({"key": keys, "score": list(range(200))}), tmp_path / "scores.parquet")
    return tmp_path


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_info_counts_what_is_chosen_of_each_part(run: Run, folder: Path) -> None:
    result = run(
        "info", folder / "texts", "--where", "score < 60 and txt.bytes = 2", "--columns", folder / "scores.parquet"
    )
    assert result.exit_code == 0
    assert ["train", "50", "33.3%"] in rows(result.output) and ["val", "0", "0.0%"] in rows(result.output)
    assert ["train", "9", "10.0%"] in rows(run("info", folder / "table.parquet", "--where", "text like '%7'").output)
    assert "50 samples in all" in run("info", folder / "blend.yaml", "--where", "index % 3 = 0").output


def test_preview_shows_the_chosen_samples(run: Run, folder: Path) -> None:
    shown = run("preview", folder / "texts", "-n", "2", "--where", "index % 7 = 3").output
    assert "000003" in shown and "000010" in shown and "000004" not in shown
    result = run("preview", folder / "texts", "--where", "txt.byte = 3")
    assert result.exit_code == 1 and "unknown column 'txt.byte'; did you mean 'txt.bytes'" in result.output


def test_the_order_of_a_run_is_that_of_the_chosen_samples(run: Run, folder: Path) -> None:
    options = ["--batch-size", "5", "--num-lanes", "1", "--shuffle-buffer-size", "1"]
    found = run("order", folder / "blend.yaml", "--steps", "0..3", "--where", "index in (1, 5, 70, 149)", *options)
    assert found.exit_code == 0, found.output
    for key in ("000001", "000005", "000070", "000149"):
        assert found.output.count(f'"{key}"') + found.output.count(f"/{key}") >= 5
    assert "000002" not in found.output
    result = run("when", folder / "blend.yaml", "000002", "--until", "9", "--where", "index <> 2", *options)
    assert result.exit_code == 1 and "no sample has the key" in result.output


def test_the_viewer_pages_through_the_chosen_samples(run: Run, folder: Path) -> None:
    part = DataCatalog(folder / "texts", {"where": "index % 50 = 1", "columns": None}).part("train")
    addresses, _, _ = part.page(SampleFilter(), 1, 10)
    assert [part.read(address).key for address in addresses] == ["000001", "000051", "000101"]
    with pytest.raises(ConfigError, match="where: "):
        DataCatalog(folder / "texts", {"where": "index <", "columns": None}).part("train")
    result = run("view", folder / "texts", "--config", "run.yaml", "--where", "true")
    assert result.exit_code == 1 and "--where is for PATH alone" in result.output


@pytest.mark.processes
def test_nothing_is_printed_beside_the_answer(folder: Path) -> None:
    command = [sys.executable, "-m", "bridge_data.tools.cli", "info", str(folder / "texts"), "--where", "index < 15"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ["train", "15", "10.0%"] in rows(done.stdout) and done.stderr == ""


def test_bench_measures_the_chosen_samples(run: Run, folder: Path) -> None:
    settings = ["--num-workers", 0, "--num-batches", 4, "--batch-size", 2]
    options = ["--where", "score < 3", "--columns", folder / "scores.parquet"]
    result = run("bench", folder / "blend.yaml", *options, *settings)
    assert result.exit_code == 0, result.output
    assert ["where", "score", "<", "3"] in rows(result.stdout)
    document = json.loads(run("bench", folder / "blend.yaml", *options, *settings, "--json").stdout)
    assert document["settings"]["where"] == "score < 3"
    result = run("bench", folder / "blend.yaml", "--where", "index < 0", *settings)
    assert result.exit_code == 1 and "chooses none of the 150 samples" in result.stderr


def test_doctor_checks_the_run_over_the_chosen_samples(run: Run, folder: Path) -> None:
    settings = ["--seconds", 0.05, "--num-workers", 0, "--batch-size", 2, "--steps", 30]
    chosen = run("doctor", folder / "texts", "--where", "index < 15", *settings)
    assert chosen.exit_code == 0, chosen.output
    assert ["where", "index", "<", "15"] in rows(chosen.output)
    assert ["texts/train", "15", "100.00%", "4.00"] in [row[:4] for row in rows(chosen.output)]
    config = folder / "run.yaml"
    config.write_text(f"data: {{where: score < 30, columns: {folder}/scores.parquet, micro_batch_size: 2}}\n")
    document = json.loads(run("doctor", folder / "texts", "--config", config, "--seconds", 0, "--json").stdout)
    assert (document["run"]["where"], document["sources"][0]["num_samples"]) == ("score < 30", 30)
    result = run("doctor", folder / "texts", "--where", "size < 1", *settings)
    assert result.exit_code == 1 and "unknown column 'size'" in result.output
    config.write_text("data: {where: 7}\n")
    assert "where: expected a string, got 7" in run("doctor", folder / "texts", "--config", config).stderr


def test_lint_checks_the_chosen_samples(run: Run, folder: Path) -> None:
    options = ["--where", "score < 10 or index < 20", "--columns", folder / "scores.parquet"]
    result = run("lint", folder / "texts", *options, "--no-progress")
    assert result.exit_code == 0, result.output
    assert "40 samples in 4 shards checked, not everything: no faults" in result.output
    result = run("lint", folder / "texts", "--where", "index <", "--no-progress")
    assert result.exit_code == 1 and "error: options: where: " in result.stderr
