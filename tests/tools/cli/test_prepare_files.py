from pathlib import Path

import pytest

from bridge_data.plan import load_plan
from bridge_data.shards.jsonl_file import index_path, open_jsonl, split_path
from tests.plan.joins import BY_FIELDS, joined, metadataset, texts
from tests.tools.cli.conftest import Run
from tests.tools.cli.test_prepare_command import refused, succeeded


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
    assert "a.jsonl.split.yaml: already exists; give --force-overwrite" in result.stderr
    assert "left unchanged" in run("prepare", lines, *parts, typed="n\n").output
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts(tmp_path / "a", "abcd")
    texts(tmp_path / "b", "dcx")
    return tmp_path


def test_a_metadataset_is_prepared_and_tells_what_was_joined(run: Run, folder: Path) -> None:
    texts(folder / "c", "a")
    join = [{"path": "a"}, {"path": "b", "nonmatch": "skip"}, {"path": "c", "nonmatch": "none"}]
    path = joined(folder / "j.yaml", join)
    result = succeeded(run("prepare", path, "--num-workers", "2"))
    assert result.stdout == (
        "join on a [train]: 2 samples, 2 left out\n"
        "  b [train]: 3 samples, none for 2 (nonmatch: skip)\n"
        "  c [train]: 1 sample, none for 3 (nonmatch: none)\n"
    )
    assert load_plan(path).num_samples == 2
    assert succeeded(run("prepare", path, "--no-progress")).stdout == result.stdout


def test_a_metadataset_without_joins_is_said_to_need_nothing(run: Run, folder: Path) -> None:
    path = metadataset(folder / "m.yaml", {"path": "a"})
    assert "has no join, so there is nothing to prepare" in succeeded(run("prepare", path)).stdout


def test_what_cannot_be_joined_is_an_error(run: Run, folder: Path) -> None:
    path = joined(folder / "j.yaml", [{"path": "a"}, {"path": "b"}])
    refused(run("prepare", path), "b [train]: has no sample for 2 of the 4 samples", "data-0000.tar/a, data-0000.tar/b")


def test_flags_for_tars_are_refused(run: Run, folder: Path) -> None:
    path = metadataset(folder / "m.yaml", {"join": [{"path": "a"}], "joiner": BY_FIELDS})
    refused(run("prepare", path, "--split-ratio", "8,1,1"), "--split-ratio is for folders of tars, but", "metadataset")
