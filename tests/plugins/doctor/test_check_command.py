import json
from pathlib import Path

import pytest

from bridge_data.plugins.doctor.lint_checks import KINDS
from tests.cli.runner import run_command
from tests.plugins.doctor.datasets import change, write_dataset


def lint(*arguments: object, exit_code: int = 0) -> str:
    """What `bridge-data check` prints."""
    result = run_command("check", *arguments, "--no-progress")
    assert result.exit_code == exit_code, result.output
    return result.output


def test_faults_are_shown_by_kind_with_the_way_out_and_some_of_many(tmp_path: Path) -> None:
    assert lint(write_dataset(tmp_path / "good")) == f"{tmp_path}/good: 6 samples in 2 shards checked: no faults\n"
    folder = change(tmp_path / "bad", png=b"?", txt=b"\xff")
    (folder / "data-1.tar.idx").unlink()
    output = lint(folder, exit_code=1)
    assert "not-utf8  1 × texts that are not UTF-8\n  data-0.tar/0001.txt: UnicodeDecodeError: " in output
    assert "data-0.tar/0001.png: " in output
    assert "  → run `bridge-data prepare --tar-index-only`\n" in output
    assert output.endswith("6 samples in 2 shards checked: 3 faults\n")
    lint(folder, *(text for code in ("undecodable", "not-utf8", "index-missing") for text in ("--ignore", code)))
    less = lint(folder, "--no-decode", "--num-workers", 1, "--split-part", "train")
    assert less == f"{folder}: 3 samples in 1 shard checked, not everything: no faults\n"
    many = {"data-0.tar": {f"{number}.txt": b"\xff" for number in range(20)}}
    output = lint(write_dataset(tmp_path / "many", many, ratio="0,1,0"), exit_code=1)
    assert "not-utf8  20 × " in output and output.count("UnicodeDecodeError") == 5
    assert "  … and 15 more\n" in output


def test_a_machine_can_read_it(tmp_path: Path) -> None:
    document = json.loads(lint(change(tmp_path, png=b"?"), "--json", exit_code=1))
    (fault,) = document["faults"]
    assert (document["version"], document["samples"], fault["code"], fault["count"]) == (1, 6, "undecodable", 1)
    (place,) = fault["shown"]
    assert (place["shard"], place["key"], place["part"]) == ("data-0.tar", "0001", "png")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ignore", "nonsense"], f"there is {next(iter(KINDS))}"),
        (["--num-workers", "0"], "--num-workers 0: expected at least 1"),
    ],
)
def test_wrong_flags(tmp_path: Path, flags: list[str], message: str) -> None:
    assert message in lint(write_dataset(tmp_path), *flags, exit_code=1)


def test_the_options_of_energons_command_are_taken(tmp_path: Path) -> None:
    change(tmp_path, png=b"?")
    meta = tmp_path / ".nv-meta"
    (meta / "other.yaml").write_bytes((meta / "split.yaml").read_bytes())
    (meta / "dataset.yaml").rename(meta / "samples.yaml")
    files = ("--split-config", "other.yaml", "--dataset-config", "samples.yaml", "--num-workers", 1)
    lint(tmp_path, "--num-workers", 1, exit_code=1)
    for parts in ((), ("--split-part", "train"), ("--split-part", "train,val")):
        output = lint(tmp_path, *files, *parts, exit_code=1)
        assert "undecodable  1 × " in output and "config" not in output
    assert "no faults" in lint(tmp_path, *files, "--split-part", "val")


def test_lines_of_several_split_parts_are_counted_once(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text("".join(f'{{"text": {number}}}\n' for number in range(24)))
    run_command("prepare", file)
    for part in ([], ["--split-part", "train,val"]):
        assert f"{file}: 24 samples checked: no faults" in lint(file, *part)
    run_command("prepare", file, "--split-parts", "train:0..15", "--split-parts", "val:10..end")
    assert f"{file}: 24 samples checked: 1 fault" in lint(file, exit_code=1)  # shared lines
    blend = tmp_path / "blend.yaml"
    blend.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
        "  train: {path: d.jsonl}\n  val: {path: d.jsonl, subset: {range: [3, 9]}}\n"
    )
    assert f"{blend}: 19 samples checked: no faults" in lint(blend)


def test_tars_are_checked_before_they_are_prepared(tars: Path) -> None:
    output = lint(tars)
    assert "note: unprepared  1 ×" in output and "12 samples in 6 shards checked: no faults, 1 note" in output
    shard = min(tars.glob("*.tar"))
    assert "2 samples in 1 shard checked" in lint(shard)
    shard.write_bytes(shard.read_bytes()[:1500])
    lint(tars, exit_code=1)
    lint(shard, exit_code=1)
