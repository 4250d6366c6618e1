import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.plugins.duplicates.pictures import jpeg, with_copies, write_shards
from tests.prepared import write_texts

ONE = ("--num-workers", 1, "--no-progress")


def test_the_report_shows_copies_leaks_and_the_largest_groups(run: Run, tmp_path: Path) -> None:
    folder = with_copies(tmp_path / "set")
    result = run("duplicates", folder, "--near", "--keys", tmp_path / "drop.txt", *ONE)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    begins = [
        f"data set     {folder}",
        "read         9 samples, ",
        "equal        1 group, 1 copy besides the first, ",
        "near         2 groups, 4 copies besides the first, ",
    ]
    assert [line[: len(begin)] for line, begin in zip(lines, begins, strict=False)] == begins
    assert lines[3].endswith(", within 4 of 64 bits")
    assert lines[5:7] == ["in both     groups  copies in the second", "val, train       1                     3"]
    assert lines[8:10] == ["4 samples:", "  val data-1.tar:a"]
    assert lines[-1] == f"{tmp_path}/drop.txt: 4 keys"
    result = run("duplicates", write_texts(tmp_path / "texts", 5), *ONE)
    told = ["read         5 samples, 5 B", "equal        none"]
    assert (result.exit_code, result.output.splitlines()[1:]) == (0, told)


def test_a_machine_can_read_it_and_files_are_written(run: Run, tmp_path: Path) -> None:
    folder = with_copies(tmp_path / "set")
    table, keys = tmp_path / "table.jsonl", tmp_path / "drop.txt"
    chosen = ("--parts", "jpg", "--split-part", "test,train", "--limit", 1)
    result = run("duplicates", folder, *chosen, "--out", table, "--keys", keys, "--json", *ONE)
    document = json.loads(result.stdout)
    assert (document["version"], document["num_samples"], document["exact"]["num_copies"]) == (1, 7, 1)
    assert (document["near"], len(document["largest"]), document["common"]) == (None, 1, [])
    assert len(table.read_text().splitlines()) == 7
    assert keys.read_text() == "data-2.tar:v\n"


def test_what_is_wrong_with_samples_is_shown(run: Run, tmp_path: Path) -> None:
    folder = write_shards(
        tmp_path / "set", {"a": {"jpg": jpeg("coffee")[:2000]}, "b\nc": {"jpg": jpeg("coffee")[:2000]}}
    )
    result = run("duplicates", folder, "--near", "--keys", tmp_path / "drop.txt", *ONE)
    assert result.exit_code == 0
    assert f"{tmp_path}/drop.txt: 0 keys\n" in result.output
    assert "note: 2 pictures that cannot be decoded, which are not compared\n" in result.output
    assert f"  {folder}: data-0.tar:a.jpg: OSError: " in result.output
    assert "drop.txt: left out, as keys with line breaks do not fit in a list: 1 copy" in result.stderr
    (folder / "data-0.tar").write_bytes(b"")
    unread = run("duplicates", folder, *ONE)
    assert unread.exit_code == 1
    assert "note: 2 samples that cannot be read, and are left out\n" in unread.output


def test_lines_that_split_parts_share_are_shown(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text('{"text": 1}\n{"text": 2}\n{"text": 1}\n')
    run("prepare", file, "--split-parts", "train:0..3", "--split-parts", "val:2..end")
    result = run("duplicates", file, *ONE)
    assert f"note: 1 sample of {file}: val and train are the same stored ones\n" in result.output
    assert "2 samples:\n  val d.jsonl:2\n  train d.jsonl:0\n" in result.output


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--distance", 3], 1, "error: --distance has no effect without --near\n"),
        (["--near", "--distance", 11], 2, "11 is not in the range 0<=x<=10"),
        (["--out", "table.txt"], 1, "error: table.txt: expected a file named .parquet, .jsonl or .csv\n"),
        (["--keys", "no/drop.txt"], 1, "error: no/drop.txt: there is no folder no\n"),
        (["--num-workers", 0], 1, "error: --num-workers 0: expected at least 1\n"),
        (["--split-part", "dev"], 1, "there is no split part 'dev'; there is train, val, test"),
        (["s3://bucket/set"], 1, "takes data on a disk"),
    ],
)
def test_wrong_flags(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[object], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("duplicates", write_texts(tmp_path / "texts", 3), *flags)
    assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
