import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.test_prepare_command import FIELDS, QUIET
from tests.prepared import write_blend, write_texts


def shown(run: Run, *arguments: object, exit_code: int = 0) -> str:
    """What `info` says."""
    result = run("info", *arguments)
    assert result.exit_code == exit_code, result.output
    return result.output


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def told(run: Run, *arguments: object, exit_code: int = 0) -> dict[str, Any]:
    """What `info --json` says."""
    result = run("info", *arguments, "--json")
    assert (result.exit_code, result.stderr) == (exit_code, "")
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


def test_a_data_set_is_shown_and_told_as_json(run: Run, tars: Path) -> None:
    flags = ("--split-ratio", "4,1,1", "--sample-type", "CaptioningSample", "--field-map", FIELDS)
    run("prepare", tars, *QUIET, *flags, "--media", "extension")
    output = shown(run, tars)
    assert ["holds", "12", "samples", "in", "6", "shards,"] in [row[:6] for row in rows(output)]
    assert ["train", "4", "8"] in [row[:3] for row in rows(output)]
    for text in (
        "parts        json, png, txt\n",
        "CaptioningSample(image ← png, caption ← txt)",
        "data-000000.tar … data-000005.tar",
        "index.bridge",
        "media        metadata of 12 images\n",
        "format       that of Energon 7.4.1\n",
    ):
        assert text in output
    facts = told(run, tars, "--where", "key < '000003'")
    sizes = [path.stat().st_size for path in sorted(tars.glob("*.tar"))]
    parts = facts.pop("split_parts")
    assert facts == {
        "kind": "folder",
        "path": str(tars),
        "num_samples": 12,
        "num_shards": 6,
        "num_bytes": sum(sizes),
        "first_shard": "data-000000.tar",
        "last_shard": "data-000005.tar",
        "other_tars": [],
        "parts": ["json", "png", "txt"],
        "sample_type": {
            "class": "CaptioningSample",
            "field_map": json.loads(FIELDS),
            "part_filter": None,
            "sample_loader": None,
            "subflavors": {},
        },
        "energon_version": "7.4.1",
        "written_by_bridge_data": False,
        "index": "index.bridge",
        "media": {"image": 12},
        "forgotten": None,
        "where": {
            "predicates": ["key < '000003'"],
            "split_parts": [
                {"split_part": "train", "num_chosen": 2, "num_samples": 8},
                {"split_part": "val", "num_chosen": 0, "num_samples": 2},
                {"split_part": "test", "num_chosen": 0, "num_samples": 2},
            ],
        },
    }
    counts = [(one["split_part"], one["num_shards"], one["num_samples"]) for one in parts]
    assert counts == [("train", 4, 8), ("val", 1, 2), ("test", 1, 2)]
    assert sum(one["num_bytes"] for one in parts) == sum(sizes)
    (tars / ".nv-meta/dataset.yaml").write_text("- 1")
    wrong = told(run, tars, exit_code=1)
    assert wrong["sample_type"] == {"error": f"{tars}/.nv-meta/dataset.yaml holds no mapping"}
    assert wrong["num_samples"] == 12


def test_tars_that_were_added_after_it_was_prepared_are_told(run: Run, tars: Path) -> None:
    run("prepare", tars, *QUIET, "--split-ratio", "1,0,0", "--sample-type", "crude")
    assert "not in it" not in shown(run, tars)
    shutil.copy(tars / "data-000000.tar", tars / "added.tar")
    assert "not in it    added.tar: added after it was prepared, or left out of it" in shown(run, tars)
    assert told(run, tars)["other_tars"] == ["added.tar"]


def test_energons_files_are_enough_and_what_they_declare_is_shown(run: Run, tars: Path) -> None:
    run("prepare", tars, *QUIET, "--split-ratio", "1,0,0")
    (tars / ".nv-meta/index.bridge").unlink()
    output = shown(run, tars)
    assert ".tar.idx only" in output and "not known, there is no dataset.yaml" in output
    crude = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    for text, exit_code, line in (
        ("- 1", 1, "holds no mapping"),
        ("a: [", 1, "not readable as YAML"),
        (crude, 0, "sample type  CrudeWebdataset\n"),
        (
            f"{crude}part_filter: [png]\nsubflavors: {{origin: here}}\n",
            0,
            'sample type  CrudeWebdataset, parts ["png"], subflavors {"origin": "here"}\n',
        ),
    ):
        (tars / ".nv-meta/dataset.yaml").write_text(text)
        output = shown(run, tars, exit_code=exit_code)
        assert line in output and "holds        12 samples" in output


def test_who_wrote_the_shards_is_told_where_it_is_known(run: Run, raw: Path, tmp_path: Path) -> None:
    run("convert", raw, tmp_path / "made", "--no-progress")
    assert "format       that of Energon 7.4.1, written by bridge-data\n" in run("info", tmp_path / "made").output


@pytest.mark.parametrize("pattern", ["", "data-{000000..000005}.tar", "*.tar"])
def test_tars_that_nobody_has_prepared(
    run: Run, tars: Path, pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    output = shown(run, tars / pattern, "--where", "key < '000003'")
    size = f"{sum(path.stat().st_size for path in tars.iterdir()) / 1000:.1f}"
    for row in (
        ["holds", "12", "samples", "in", "6", "shards,", size, "kB"],
        ["train", "6", "12", size, "kB"],
        ["train", "2", "16.7%"],
    ):
        assert row in rows(output)
    assert "shards       data-000000.tar … data-000005.tar\nparts        json, png, txt\n" in output
    assert f"not prepared; `bridge-data prepare {tars}` does that\n" in output
    run("prepare", tars, *QUIET, "--split-ratio", "4,1,1")
    if pattern:
        assert f"format       tars, read without the .nv-meta of {tars}\n" in shown(run, tars / pattern)


def test_a_metadataset_is_shown_as_a_tree_and_told_as_json(run: Run, tmp_path: Path) -> None:
    for name, size in (("a", 10), ("b", 30)):
        write_texts(tmp_path / name, size)
    file = write_blend(tmp_path / "meta.yaml", {"a": 3, "b": 1})
    file.write_text(file.read_text() + "  val: {path: a}\n  odd: {path: c}\n")
    output = shown(run, file, exit_code=1)  # because of the part that cannot be opened
    assert f"─ {tmp_path}/a [train]: weight 3, 75.00% of draws, TextSample, 10 samples in 1 shard\n" in output
    assert "val\n  no samples\n" in output and f"odd\n  error: {file}:" in output
    facts = told(run, file, exit_code=1)
    assert (facts["kind"], facts["path"]) == ("metadataset", str(file))
    train, val, odd = facts["split_parts"]
    assert (train["split_part"], train["num_samples"]) == ("train", 40)
    source = {"split_part": "train", "sample_type": {"class": "TextSample"}, "joined_with": [], "aux": {}}
    assert train["sources"] == [
        {
            "path": f"{tmp_path}/{name}",
            **source,
            "num_samples": size,
            "num_shards": 1,
            "shares": [{"from_sample": 0, "share": share}],
        }
        for name, size, share in (("a", 10, 0.75), ("b", 30, 0.25))
    ]
    assert train["tree"]["children"] == [{"weight": 3, "source": 0}, {"weight": 1, "source": 1}]
    assert val == {"split_part": "val", "num_samples": 0, "sources": [], "tree": None}
    assert odd["split_part"] == "odd" and odd["error"].startswith(f"{file}:")


def test_scheduled_weights_and_repetitions_as_json(run: Run, tmp_path: Path) -> None:
    for name in "ab":
        write_texts(tmp_path / name, 10)
    file = tmp_path / "meta.yaml"
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"
    schedule = "[{from_sample: 0, weight: 1}, {from_sample: 100, weight: 3}]"
    file.write_text(f"{head}    blend:\n      - {{path: a, weight: {schedule}}}\n      - {{path: b, weight: 1}}\n")
    (train,) = told(run, file)["split_parts"]
    steps = [{"from_sample": 0, "weight": 1}, {"from_sample": 100, "weight": 3}]
    assert [child["weight"] for child in train["tree"]["children"]] == [steps, 1]
    assert [[one["share"] for one in source["shares"]] for source in train["sources"]] == [[0.5, 0.75], [0.5, 0.25]]
    file.write_text(f"{head}    blend_epochized:\n      - {{path: a, repetitions: 3}}\n      - {{path: b}}\n")
    (train,) = told(run, file)["split_parts"]
    assert [child["repetitions"] for child in train["tree"]["children"]] == [3, 1]


def test_a_jsonl_file_has_its_split_and_what_is_in_no_part_of_it_is_told(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(20)))
    run("prepare", path, "--split-ratio", "8,1,1", "--no-progress")
    assert rows(shown(run, path))[-3:] == [["train", "16"], ["val", "2"], ["test", "2"]]
    facts = told(run, path)
    assert (facts["kind"], facts["num_bytes"]) == ("jsonl", path.stat().st_size)
    counts = {"train": 16, "val": 2, "test": 2}
    assert facts["split_parts"] == [{"split_part": part, "num_samples": number} for part, number in counts.items()]
    parts = ("--split-parts", "train:0..10", "--split-parts", "val:9..18", "--force-overwrite")
    result = run("prepare", path, *parts, "--no-progress")
    assert "2 samples in no part of the split" in result.stderr
    assert "1 sample in several parts of the split" in result.stderr
    assert rows(shown(run, path))[-1] == ["(in", "no", "part)", "2"]
    assert told(run, path)["split_parts"][-1] == {"split_part": None, "num_samples": 2}


def test_wrong_arguments(run: Run, tars: Path) -> None:
    run("prepare", tars, *QUIET, "--split-ratio", "1,0,0")
    (tars / "a.txt").write_text("")
    result = run("info", tars / "a.txt")
    assert (result.exit_code, "expected a folder of tars or tables" in result.stderr) == (1, True), result.stderr


def test_other_files_for_split_and_samples(run: Run, tars: Path) -> None:
    flags = ("--sample-type", "CaptioningSample", "--field-map", FIELDS, "--dataset-config", "samples.yaml")
    run("prepare", tars, *QUIET, "--split-ratio", "4,1,1", "--split-config", "parts.json", *flags)
    assert not (tars / ".nv-meta/split.yaml").exists()
    output = shown(run, tars, "--split-config", "parts.json", "--dataset-config", "samples.yaml")
    assert ["train", "4", "8"] in [row[:3] for row in rows(output)]
    assert "CaptioningSample(image ← png, caption ← txt)" in output


def test_the_folder_of_a_run_is_no_data_set(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run/version_0").mkdir(parents=True)
    (tmp_path / "run/version_0/config.yaml").write_text(f"data:\n  init_args:\n    path: {tmp_path}\n")
    for more in ((), ("--key", "3")):
        assert "this is the folder of a run" in shown(run, tmp_path / "run", *more, exit_code=1)
