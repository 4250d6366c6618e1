import json
from pathlib import Path

import pytest

from bridge_data.tools.lint_checks import KINDS
from tests.tools.cli.conftest import Run
from tests.tools.lint.datasets import change, write_dataset


def test_a_sound_data_set(run: Run, tmp_path: Path) -> None:
    result = run("lint", write_dataset(tmp_path), "--no-progress")
    assert result.exit_code == 0
    assert result.output == f"{tmp_path}: 6 samples in 2 shards checked: no faults\n"


def test_faults_are_shown_by_kind(run: Run, tmp_path: Path) -> None:
    change(tmp_path, png=b"?", txt=b"\xff")
    (tmp_path / "data-1.tar.idx").unlink()
    result = run("lint", tmp_path, "--no-progress")
    assert result.exit_code == 1
    assert "not-utf8  1 × texts that are not UTF-8\n  data-0.tar/0001.txt: UnicodeDecodeError: " in result.output
    assert "data-0.tar/0001.png: " in result.output
    assert "  → run `bridge-data prepare --tar-index-only`\n" in result.output
    assert result.output.endswith("6 samples in 2 shards checked: 3 faults\n")


def test_of_many_a_few_are_shown(run: Run, tmp_path: Path) -> None:
    write_dataset(tmp_path, {"data-0.tar": {f"{number}.txt": b"\xff" for number in range(20)}}, ratio="0,1,0")
    result = run("lint", tmp_path, "--no-progress", "--show", 2)
    assert "not-utf8  20 × " in result.output
    assert result.output.count("UnicodeDecodeError") == 2
    assert "  … and 18 more\n" in result.output


def test_a_machine_can_read_it(run: Run, tmp_path: Path) -> None:
    change(tmp_path, png=b"?")
    result = run("lint", tmp_path, "--json", "--no-progress")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    (fault,) = document["faults"]
    assert (document["version"], document["samples"], fault["code"], fault["count"]) == (1, 6, "undecodable", 1)
    (place,) = fault["shown"]
    assert (place["shard"], place["key"], place["part"]) == ("data-0.tar", "0001", "png")


def test_what_is_meant_to_be_can_be_ignored(run: Run, tmp_path: Path) -> None:
    change(tmp_path, png=b"?")
    assert run("lint", tmp_path, "--no-progress", "--ignore", "undecodable").exit_code == 0


def test_less_than_everything_is_said(run: Run, tmp_path: Path) -> None:
    change(tmp_path, png=b"?")
    result = run("lint", tmp_path, "--no-progress", "--no-decode", "--num-workers", 1, "--split-part", "train")
    assert result.output == f"{tmp_path}: 3 samples in 1 shard checked, not everything: no faults\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ignore", "nonsense"], f"there is {next(iter(KINDS))}"),
        (["--limit", "0"], "--limit 0: expected at least 1"),
        (["--num-workers", "0"], "--num-workers 0: expected at least 1"),
    ],
)
def test_wrong_flags(run: Run, tmp_path: Path, flags: list[str], message: str) -> None:
    result = run("lint", write_dataset(tmp_path), *flags)
    assert result.exit_code == 1
    assert message in result.stderr


def test_no_path(run: Run, tmp_path: Path) -> None:
    result = run("lint", tmp_path / "no")
    assert (result.exit_code, result.stderr) == (1, f"error: {tmp_path}/no: no such folder or file\n")


def test_the_options_of_energons_command_are_taken(run: Run, tmp_path: Path) -> None:
    change(tmp_path, png=b"?")
    meta = tmp_path / ".nv-meta"
    (meta / "other.yaml").write_bytes((meta / "split.yaml").read_bytes())
    (meta / "dataset.yaml").rename(meta / "samples.yaml")
    files = ("--split-config", "other.yaml", "--dataset-config", "samples.yaml", "--no-progress", "--parallel", 1)
    assert run("lint", tmp_path, "--no-progress", "--parallel", 1).exit_code == 1
    whole = run("lint", tmp_path, *files)
    assert "undecodable  1 × " in whole.output and "config" not in whole.output
    for parts in ("train", "train,val"):
        assert "undecodable  1 × " in run("lint", tmp_path, *files, "--split-parts", parts).output
    assert "no faults" in run("lint", tmp_path, *files, "--split-parts", "val").output


def test_lines_of_several_split_parts_are_counted_once(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text("".join(f'{{"text": {number}}}\n' for number in range(24)))
    run("prepare", file)
    for part in ([], ["--split-part", "train,val"]):
        assert f"{file}: 24 samples checked: no faults" in run("lint", file, *part).output
    run("prepare", file, "--split-parts", "train:0..15", "--split-parts", "val:10..end")
    assert f"{file}: 24 samples checked: 1 fault" in run("lint", file).output  # shared lines
    blend = tmp_path / "blend.yaml"
    blend.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
        "  train: {path: d.jsonl}\n  val: {path: d.jsonl, subset: {range: [3, 9]}}\n"
    )
    assert f"{blend}: 19 samples checked: no faults" in run("lint", blend).output


def test_tars_are_checked_before_they_are_prepared(run: Run, tars: Path) -> None:
    result = run("lint", tars, "--no-progress")
    assert result.exit_code == 0
    assert (
        "note: unprepared  1 ×" in result.output
        and "12 samples in 6 shards checked: no faults, 1 note" in result.output
    )
    shard = min(tars.glob("*.tar"))
    assert "2 samples in 1 shard checked" in run("lint", shard).output
    shard.write_bytes(shard.read_bytes()[:1500])
    assert run("lint", tars).exit_code == run("lint", shard).exit_code == 1
