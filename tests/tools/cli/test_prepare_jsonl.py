from pathlib import Path

import pytest

from bridge_data.shards.jsonl_file import index_path, open_jsonl, split_path
from tests.tools.cli.conftest import Run


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "{number}"}}\n' for number in range(10)))
    return path


def sizes(path: Path, *parts: str) -> list[int]:
    return [open_jsonl(path, part).num_samples for part in parts]


def test_without_a_split_each_part_is_the_whole_file(run: Run, lines: Path) -> None:
    result = run("prepare", lines, "--no-progress")
    assert result.exit_code == 0, result.output
    assert "a.jsonl: 10 samples, 140 B" in result.output
    assert "no split: each split part is the whole file" in result.output
    assert sizes(lines, "train", "val") == [10, 10]


def test_a_split_by_ratio(run: Run, lines: Path) -> None:
    with open(lines, "a") as file:
        file.write("\n\n")
    result = run("prepare", lines, "--split-ratio", "8,1,1", "--no-progress", "--num-workers", 1)
    assert result.exit_code == 0, result.output
    assert "val            8   9        1" in result.output
    assert "2 blank lines: samples are numbered without them" in result.output
    assert sizes(lines, "train", "val", "test") == [8, 1, 1]


def test_a_split_by_ranges_and_another_one_later(run: Run, lines: Path) -> None:
    parts = ("--split-parts", "train:0..70%", "--split-parts", "dev:7..end")
    assert run("prepare", lines, "--split-parts", "train:0..10").exit_code == 0
    result = run("prepare", lines, *parts, "--non-interactive")
    assert result.exit_code == 1
    assert "both percentages or both sample numbers" in result.stderr
    parts = ("--split-parts", "train:0..7", "--split-parts", "dev:7..end")
    result = run("prepare", lines, *parts, "--non-interactive")
    assert result.exit_code == 1
    assert "a.jsonl.split.yaml: is there already; give --force-overwrite" in result.stderr
    assert "left as it is" in run("prepare", lines, *parts, typed="n\n").output
    assert sizes(lines, "train") == [10]
    assert run("prepare", lines, *parts, typed="y\n").exit_code == 0
    assert sizes(lines, "train", "dev") == [7, 3]
    assert run("prepare", lines, "--split-ratio", "1,1,0", "--force-overwrite", "--non-interactive").exit_code == 0
    assert sizes(lines, "train", "val", "test") == [5, 5, 0]
    assert run("prepare", lines, "--tar-index-only").exit_code == 0
    assert sizes(lines, "train", "val", "test") == [5, 5, 0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--exclude", "a"), "--exclude is for folders of tars"),
        (("--shuffle-tars",), "--shuffle-tars is for folders of tars"),
        (("--dataset-yaml-name", "d.yaml"), "--dataset-yaml-name is for folders of tars"),
        (("--field-map", "{}"), "--field-map is for folders of tars"),
        (("--sample-type", "TextSample"), "the samples of a JSONL file are crude"),
        (("--split-ratio", "1,1,1", "--split-parts", "a:0..1"), "give one of them"),
        (("--split-ratio", "1,1"), "expected three numbers"),
        (("--split-parts", "train:.*"), 'expected "name:start..end"'),
        (("--split-parts", "train:0..11"), "reaches beyond the data, which have 10 samples"),
        (("--tar-index-only", "--split-ratio", "1,1,1"), "--tar-index-only renews the index"),
    ],
)
def test_flags_that_do_not_fit(run: Run, lines: Path, flags: tuple[str, ...], message: str) -> None:
    result = run("prepare", lines, *flags, "--no-progress")
    assert result.exit_code == 1
    assert message in result.stderr
    assert not index_path(lines).exists() and not split_path(lines).exists()


def test_damaged_lines_are_listed(run: Run, lines: Path) -> None:
    lines.write_text('{"a": 1}\n{"a": 2\n')
    result = run("prepare", lines, "--sample-type", "CrudeWebdataset", "--no-progress")
    assert result.exit_code == 1
    assert "a.jsonl: 1 of 2 lines is no JSON object" in result.stderr
    assert "line 2: not JSON: " in result.stderr


def test_a_file_of_another_kind(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    result = run("prepare", tmp_path / "a.txt")
    assert result.exit_code == 1
    assert "expected a folder of tars or a .jsonl file" in result.stderr
