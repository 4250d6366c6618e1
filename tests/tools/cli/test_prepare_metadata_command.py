from pathlib import Path

from bridge_data.shards.where.sample_columns import StoredColumns
from tests.shards.tars import write_shards, write_tar
from tests.tools.cli.conftest import Run
from tests.tools.cli.test_prepare_command import QUIET, refused, succeeded


def test_columns_are_stored_and_renewed_with_the_index(run: Run, tmp_path: Path) -> None:
    write_shards(tmp_path, 4, 5)
    flags = ("--split-ratio", "1,0,0", "--columns", "json.caption, json.score", *QUIET)
    told = succeeded(run("prepare", tmp_path, *flags)).output
    assert "columns stored, in" in told and "s: json.caption (text), json.score (text)" in told
    assert "json.score: has no value in 20 of 20 samples; there it is NULL" in told
    assert list(StoredColumns(tmp_path, tmp_path / ".nv-meta/columns.parquet").kinds) == ["json.caption", "json.score"]
    renewed = ("--tar-index-only", "--columns", "json.caption", "--no-progress")
    assert "json.caption (text); 4 shards had not changed" in succeeded(run("prepare", tmp_path, *renewed)).output


def test_columns_given_one_by_one_are_all_stored(run: Run, tmp_path: Path) -> None:
    write_shards(tmp_path, 1, 5)
    flags = ("--split-ratio", "1,0,0", "--columns", "json.caption", "--columns", "json.score", *QUIET)
    succeeded(run("prepare", tmp_path, *flags))
    assert list(StoredColumns(tmp_path, tmp_path / ".nv-meta/columns.parquet").kinds) == ["json.caption", "json.score"]


def test_names_are_checked_before_anything_is_written(run: Run, tmp_path: Path) -> None:
    write_shards(tmp_path / "data", 1, 5)
    refused(run("prepare", tmp_path / "data", "--columns", "json.bytes", *QUIET), "is the size of the part json")
    refused(run("prepare", tmp_path / "data", "--columns", "", *QUIET), "expected a field of a JSON part")
    task = ("--task-index", "0", "--num-tasks", "2", "--columns", "json.caption")
    refused(run("prepare", tmp_path / "data", *task), "--columns: values are read with --merge")
    assert not (tmp_path / "data/.nv-meta").exists()
    (tmp_path / "a.jsonl").write_text("{}\n")
    refused(run("prepare", tmp_path / "a.jsonl", "--columns", "json.a"), "--columns is for folders of tars")


def test_values_of_several_types_are_an_error(run: Run, tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.json": b'{"a": 1}', "2.json": b'{"a": "x"}'})
    failed = run("prepare", tmp_path, "--split-ratio", "1,0,0", "--columns", "json.a", *QUIET)
    refused(failed, "json.a: is integer in a.tar/1, but text in a.tar/2")
