from pathlib import Path

import pytest

from bridge_data.data.jsonl_file import index_path, open_jsonl, split_path
from bridge_data.plan import load_plan
from tests.cli.conftest import Run
from tests.cli.test_prepare_command import refused, succeeded
from tests.plan.joins import joined, metadataset, texts


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "{number}"}}\n' for number in range(10)))
    return path


def sizes(path: Path, *parts: str) -> list[int]:
    return [open_jsonl(path, part).num_samples for part in parts]


def test_without_a_split_each_part_is_the_whole_file_and_a_ratio_cuts_it(run: Run, lines: Path) -> None:
    output = succeeded(run("prepare", lines, "--no-progress")).output
    assert "a.jsonl: 10 samples, 140 B" in output and "no split: each split part is the whole file" in output
    assert sizes(lines, "train", "val") == [10, 10]
    with open(lines, "a") as file:
        file.write("\n\n")
    result = succeeded(run("prepare", lines, "--split-ratio", "8,1,1", "--no-progress", "--num-workers", 1))
    assert "val            8   9        1" in result.output
    assert "2 blank lines: samples are numbered without them" in result.output
    assert sizes(lines, "train", "val", "test") == [8, 1, 1]


def test_a_split_by_ranges_and_another_one_later(run: Run, lines: Path) -> None:
    succeeded(run("prepare", lines, "--split-parts", "train:0..10"))
    mixed = ("--split-parts", "train:0..70%", "--split-parts", "dev:7..end")
    refused(run("prepare", lines, *mixed, "--non-interactive"), "both percentages or both sample numbers")
    parts = ("--split-parts", "train:0..7", "--split-parts", "dev:7..end")
    told = "a.jsonl.split.yaml: already exists; give --force-overwrite"
    refused(run("prepare", lines, *parts, "--non-interactive"), told)
    assert "left unchanged" in run("prepare", lines, *parts, typed="n\n").output
    assert sizes(lines, "train") == [10]
    succeeded(run("prepare", lines, *parts, typed="y\n"))
    assert sizes(lines, "train", "dev") == [7, 3]
    for flags in (("--split-ratio", "1,1,0", "--force-overwrite", "--non-interactive"), ("--tar-index-only",)):
        succeeded(run("prepare", lines, *flags))
        assert sizes(lines, "train", "val", "test") == [5, 5, 0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--exclude", "a"), "--exclude is for folders of tars"),
        (("--shuffle-tars",), "--shuffle-tars is for folders of tars"),
        (("--dataset-config", "d.yaml"), "--dataset-config is for folders of tars"),
        (("--field-map", "{}", "--sample-type", "TextSample"), "--field-map is for folders of tars"),
        (("--sample-type", "TextSample"), "the samples of a JSONL file are crude"),
        (("--split-ratio", "1,1,1", "--split-parts", "a:0..1"), "give one of them"),
        (("--split-ratio", "1,1"), "expected three numbers"),
        (("--split-parts", "train:.*"), 'expected "name:start..end"'),
        (("--split-parts", "train:0..11"), "reaches beyond the data, which have 10 samples"),
        (("--tar-index-only", "--split-ratio", "1,1,1"), "--tar-index-only renews the index"),
    ],
)
def test_flags_that_do_not_fit(run: Run, lines: Path, flags: tuple[str, ...], message: str) -> None:
    refused(run("prepare", lines, *flags, "--no-progress"), message)
    assert not index_path(lines).exists() and not split_path(lines).exists()


def test_damaged_lines_are_listed_and_other_files_refused(run: Run, lines: Path, tmp_path: Path) -> None:
    lines.write_text('{"a": 1}\n{"a": 2\n')
    damaged = run("prepare", lines, "--sample-type", "CrudeWebdataset", "--no-progress")
    refused(damaged, "a.jsonl: 1 of 2 lines is no JSON object", "line 2: not JSON: ")
    (tmp_path / "a.txt").write_text("x")
    refused(run("prepare", tmp_path / "a.txt"), "expected a folder of tars or a .jsonl file")


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


def test_metadatasets_that_need_nothing_or_cannot_be_joined(run: Run, folder: Path) -> None:
    path = metadataset(folder / "m.yaml", {"path": "a"})
    assert "has no join, so there is nothing to prepare" in succeeded(run("prepare", path)).stdout
    refused(run("prepare", path, "--split-ratio", "8,1,1"), "--split-ratio is for folders of tars, but", "metadataset")
    path = joined(folder / "j.yaml", [{"path": "a"}, {"path": "b"}])
    refused(run("prepare", path), "b [train]: has no sample for 2 of the 4 samples", "data-0000.tar/a, data-0000.tar/b")
