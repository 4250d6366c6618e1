"""The commands that look at data, on tables."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.plan.joins import metadataset
from tests.prepared import TEXT
from tests.tables import table_of, write_parquet, write_text_table


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A folder of Parquet files, as the Hub has them."""
    for name, size in (("train-00000-of-00001", 120), ("validation-00000-of-00001", 30)):
        write_text_table(tmp_path / "hub" / "data" / f"{name}.parquet", size)
    return tmp_path / "hub"


def test_info_shows_split_parts_and_columns(run: Run, hub: Path) -> None:
    result = run("info", hub)
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert ["parts", "text"] in lines and ["train", "120", "3"] in lines and ["validation", "30", "1"] in lines
    told = json.loads(run("info", hub, "--json").stdout)
    assert (told["kind"], told["num_files"], told["parts"]) == ("tables", 2, ["text"])
    assert told["split_parts"] == [
        {"split_part": "train", "num_samples": 120, "num_row_groups": 3},
        {"split_part": "validation", "num_samples": 30, "num_row_groups": 1},
    ]


def test_preview_shows_values_as_they_are(run: Run, tmp_path: Path) -> None:
    table = table_of({"text": ["first", "second"], "number": [1, 2], "tokens": [[1, 2], [3]]})
    result = run("info", "--samples", "1", write_parquet(tmp_path / "a.parquet", table))
    assert result.exit_code == 0
    assert all(text in result.output for text in ("a.parquet/0", "first", "[1, 2]"))
    assert "second" in run("info", "--key", "a.parquet/1", tmp_path / "a.parquet").output


def write_meta(folder: Path) -> Path:
    """A metadataset of the text samples in a folder of tables."""
    entry = {"path": str(folder), **TEXT, "field_map": {"text": "text"}}
    return metadataset(folder.parent / "meta.yaml", entry, val=entry)


def test_lint_reads_every_row_and_names_what_is_damaged(run: Run, hub: Path) -> None:
    meta = write_meta(hub)
    result = run("check", meta)
    assert (result.exit_code, "150 samples checked" in result.output) == (0, True)
    with (hub / "data" / "train-00000-of-00001.parquet").open("r+b") as opened:
        opened.seek(4)
        opened.write(b"\xff" * 40)
    result = run("check", meta)
    assert result.exit_code == 1 and "train-00000-of-00001.parquet: row group 0, column 'text'" in result.output


def write_keyed(folder: Path, *files: list[str]) -> Path:
    """Parquet files of text samples with these keys."""
    for number, keys in enumerate(files):
        table = table_of({"__key__": keys, "text": keys})
        write_parquet(folder / f"part-{number}.parquet", table, per_group=2)
    return folder


def test_lint_names_keys_that_several_rows_have(run: Run, tmp_path: Path) -> None:
    folder = write_keyed(tmp_path / "keyed", ["a", "b", "c", "b", "b"], ["d", "a"])
    result = run("check", folder, "--no-progress")
    assert result.exit_code == 1
    assert "duplicate-key  2 × keys shared by several samples of a shard, or rows of a file" in result.output
    assert "part-0.parquet/b: rows 1 and 3 have it" in result.output
    assert "shared-key  1 ×" in result.output and "part-1.parquet/a: part-0.parquet has it too" in result.output
    assert run("check", write_keyed(tmp_path / "sound", ["a", "b"], ["c"]), "--no-progress").exit_code == 0


def test_a_key_of_several_rows_is_to_be_told_by_number(run: Run, tmp_path: Path) -> None:
    folder = write_keyed(tmp_path / "keyed", ["a", "b", "c", "b"], ["d", "a"])
    meta, until = write_meta(folder), ("--steps", "0..9")
    for result in (run("order", meta, "--key", "b", *until), run("info", folder, "--key", "b")):
        assert result.exit_code == 1 and "by its number (1, 3)" in result.output
        assert "'b' is the key of 2 samples of" in result.output
    result = run("order", meta, "--key", "a", *until)
    assert result.exit_code == 1 and "say which is meant: part-0.parquet:a, part-1.parquet:a" in result.output
    for which in (["--key", "part-1.parquet:a"], ["--index", "3"]):
        assert run("order", meta, *which, *until).exit_code == 0
