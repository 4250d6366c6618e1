"""`--where` and `--columns` of the commands that look at data."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data.errors import ConfigError
from bridge_data.plugins.view.data_catalog import DataCatalog, SampleFilter
from tests.cli.conftest import Run
from tests.prepared import write_blend, write_texts
from tests.tables import write_text_table


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts", 200, ratio="3,1,0")
    write_text_table(tmp_path / "table.parquet", 90)
    write_blend(tmp_path / "blend.yaml", {"texts": 1})
    keys = [f"{number:06d}" for number in range(200)]
    pq.write_table(pa.table({"key": keys, "score": list(range(200))}), tmp_path / "scores.parquet")
    (tmp_path / "run.yaml").write_text("data: {path: texts, where: score < 30, columns: scores.parquet}\n")
    return tmp_path


RUN = ("num_workers=0", "micro_batch_size=5", "num_lanes=1")
SCORES = ("--columns", "scores.parquet")


@pytest.mark.parametrize(
    ("command", "where", "options", "exit_code", "told"),
    [
        ("info texts", "score < 60 and txt.bytes = 2", SCORES, 0, ["train 50 33.3%", "val 0 0.0%"]),
        ("info table.parquet", "text like '%7'", (), 0, ["train 9 10.0%"]),
        ("info blend.yaml", "index % 3 = 0", (), 0, ["50 samples in all"]),
        ("info texts", "index % 7 = 3", ("--samples", 2), 0, ["000003", "000010"]),
        ("info texts", "txt.byte = 3", ("--samples", 2), 1, ["unknown column 'txt.byte'; did you mean 'txt.bytes'"]),
        ("order blend.yaml --steps 0..3", None, ("where=index in (1, 5)", *RUN), 0, ["000001", "000005"]),
        ("order blend.yaml --key 000002", None, ("where=index <> 2", *RUN), 1, ["no sample has the key"]),
        ("plan blend.yaml", None, ("where=index < 0", *RUN), 1, ["chooses none of the 150 samples"]),
        (
            "check --run texts --run-steps 12",
            None,
            ("where=index < 15", *RUN),
            0,
            ["where index < 15", "15 100.00% 4.00"],
        ),
        ("check --run texts", None, ("where=size < 1", *RUN), 1, ["unknown column 'size'"]),
        ("check --run run.yaml", None, (), 0, ["where score < 30", "texts/train 30 100.00%"]),
        (
            "check texts",
            "index < 20 or index >= 100 and index < 120",
            ("--no-progress",),
            0,
            ["60 samples in 4 shards checked, not everything: no faults"],
        ),
        ("check texts", "index <", ("--no-progress",), 1, ["error: where: "]),
    ],
)
def test_each_command_looks_at_the_chosen_samples(
    run: Run,
    folder: Path,
    command: str,
    where: str | None,
    options: tuple[object, ...],
    exit_code: int,
    told: list[str],
) -> None:
    chosen = () if where is None else ("--where", where)
    result = run(*command.split(), *chosen, *options)
    output = " ".join(result.output.split())
    assert result.exit_code == exit_code and all(text in output for text in told), result.output
    assert "000002" not in output or exit_code, "it is never chosen"


def test_the_condition_is_among_the_settings_in_json(run: Run, folder: Path) -> None:
    checked = json.loads(run("check", "--run", "run.yaml", "--json").stdout)
    assert checked["run"]["where"] == "score < 30"


def test_the_viewer_pages_through_the_chosen_samples(folder: Path) -> None:
    part = DataCatalog(folder / "texts", {"where": "index % 50 = 1", "columns": None}).part("train")
    addresses, _, _ = part.page(SampleFilter(), 1, 10)
    assert [part.read(address).key for address in addresses] == ["000001", "000051", "000101"]
    with pytest.raises(ConfigError, match="where: "):
        DataCatalog(folder / "texts", {"where": "index <", "columns": None}).part("train")


@pytest.mark.processes
def test_nothing_is_printed_beside_the_answer(folder: Path) -> None:
    command = [sys.executable, "-m", "bridge_data.cli", "info", str(folder / "texts"), "--where", "index < 15"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "train 15 10.0%" in " ".join(done.stdout.split()) and done.stderr == ""
