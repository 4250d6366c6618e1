from pathlib import Path

import pytest

from bridge_data.plugins.where.stored_columns import StoredColumns
from tests.cli.conftest import Run
from tests.cli.test_prepare_command import QUIET, refused, succeeded
from tests.data.tars import write_shards, write_tar


@pytest.mark.parametrize("columns", [["json.caption, json.score"], ["json.caption", "json.score"]])
def test_columns_are_stored_and_renewed_with_the_index(run: Run, tmp_path: Path, columns: list[str]) -> None:
    write_shards(tmp_path, 4, 5)
    flags = ("--split-ratio", "1,0,0", *(text for column in columns for text in ("--store-columns", column)), *QUIET)
    told = succeeded(run("prepare", tmp_path, *flags)).output
    assert "columns stored, in" in told and "s: json.caption (text), json.score (text)" in told
    assert "json.score: has no value in 20 of 20 samples; there it is NULL" in told
    assert list(StoredColumns(tmp_path, tmp_path / ".nv-meta/columns.parquet").kinds) == ["json.caption", "json.score"]
    renewed = ("--tar-index-only", "--store-columns", "json.caption", "--no-progress")
    assert "json.caption (text); 4 shards had not changed" in succeeded(run("prepare", tmp_path, *renewed)).output


def test_names_are_checked_before_anything_is_written(run: Run, tmp_path: Path) -> None:
    data = write_tar(tmp_path / "data/a.tar", {"1.json": b'{"a": 1}', "2.json": b'{"a": "x"}'}).parent
    (tmp_path / "a.jsonl").write_text("{}\n")
    task = ("--task", "0/2")
    for path, columns, flags, told in (
        (data, "json.bytes", QUIET, "is the size of the part json"),
        (data, "", QUIET, "expected a field of a JSON part"),
        (data, "json.a", task, "give --store-columns and --media with --task merge"),
        (tmp_path / "a.jsonl", "json.a", (), "--store-columns is for folders of tars"),
    ):
        refused(run("prepare", path, "--store-columns", columns, *flags), told)
    refused(run("prepare", data, "--media", "jpg", "--split-ratio", "1,0,0", *QUIET), "--media 'jpg': expected")
    assert not (data / ".nv-meta").exists()
    failed = run("prepare", data, "--split-ratio", "1,0,0", "--store-columns", "json.a", *QUIET)
    refused(failed, "json.a: is integer in a.tar/1, but text in a.tar/2")
