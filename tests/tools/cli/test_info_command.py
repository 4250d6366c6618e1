import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.numbers_data import write_shards
from bridge_data.order.chunks import ChunkTable
from bridge_data.tools.mixing import overlap
from tests.prepared import CRUDE, write_blend, write_dataset, write_texts
from tests.tools.cli.conftest import Run
from tests.tools.cli.test_prepare_command import FIELDS, QUIET


def test_shows_what_there_is(run: Run, tars: Path) -> None:
    flags = ("--split-ratio", "4,1,1", "--sample-type", "CaptioningSample", "--field-map", FIELDS)
    run("prepare", tars, *QUIET, *flags)
    result = run("info", tars)
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert ["holds", "12", "samples", "in", "6", "shards,"] in [line[:6] for line in lines]
    assert ["parts", "json,", "png,", "txt"] in lines
    assert ["train", "4", "8"] in [line[:3] for line in lines]
    assert "CaptioningSample(image ← png, caption ← txt)" in result.output
    assert "data-000000.tar … data-000005.tar" in result.output
    assert "index.bridge" in result.output


def told(run: Run, *arguments: object, exit_code: int = 0) -> dict[str, Any]:
    """What `info --json` says."""
    result = run("info", *arguments, "--json")
    assert (result.exit_code, result.stderr) == (exit_code, "")
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


def test_a_data_set_as_json(run: Run, tars: Path) -> None:
    flags = ("--split-ratio", "4,1,1", "--sample-type", "CaptioningSample", "--field-map", FIELDS)
    run("prepare", tars, *QUIET, *flags, "--media-metadata-by-extension")
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
    assert [(one["split_part"], one["num_shards"], one["num_samples"]) for one in parts] == [
        ("train", 4, 8),
        ("val", 1, 2),
        ("test", 1, 2),
    ]
    assert sum(one["num_bytes"] for one in parts) == sum(sizes)
    (tars / ".nv-meta/dataset.yaml").write_text("- 1")
    wrong = told(run, tars, "--num-lanes", 2, exit_code=1)
    assert wrong["sample_type"] == {"error": f"{tars}/.nv-meta/dataset.yaml holds no mapping"}
    assert (wrong["num_samples"], "lanes" in wrong) == (12, False)


def test_energons_files_are_enough(run: Run, tars: Path) -> None:
    run("prepare", tars, *QUIET, "--split-ratio", "1,0,0")
    (tars / ".nv-meta/index.bridge").unlink()
    result = run("info", tars)
    assert result.exit_code == 0
    assert ".tar.idx only" in result.output
    assert "not known, there is no dataset.yaml" in result.output
    for text, shown in (("- 1", "holds no mapping"), ("a: [", "not readable as YAML")):
        (tars / ".nv-meta/dataset.yaml").write_text(text)
        result = run("info", tars)
        assert result.exit_code == 1 and shown in result.output and "holds        12 samples" in result.output
    (tars / ".nv-meta/dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    assert "sample type  CrudeWebdataset\n" in run("info", tars).output


def test_more_of_what_is_declared(run: Run, tars: Path) -> None:
    run("prepare", tars, *QUIET, "--split-ratio", "1,0,0", "--media-metadata-by-extension")
    (tars / ".nv-meta/dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\npart_filter: [png]\nsubflavors: {origin: here}\n"
    )
    result = run("info", tars)
    assert 'sample type  CrudeWebdataset, parts ["png"], subflavors {"origin": "here"}\n' in result.output
    assert "media        metadata of 12 images\n" in result.output
    assert "format       that of Energon 7.4.1\n" in result.output


def test_who_wrote_the_shards_is_told_where_it_is_known(run: Run, raw: Path, tmp_path: Path) -> None:
    run("convert", raw, tmp_path / "made", "--no-progress")
    assert "format       that of Energon 7.4.1, written by bridge-data\n" in run("info", tmp_path / "made").output


@pytest.mark.parametrize("pattern", ["", "data-{000000..000005}.tar", "*.tar"])
def test_tars_that_nobody_has_prepared(
    run: Run, tars: Path, pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    result = run("info", tars / pattern, "--where", "key < '000003'")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    size = sum(path.stat().st_size for path in tars.iterdir())
    assert ["holds", "12", "samples", "in", "6", "shards,", f"{size / 1000:.1f}", "kB"] in lines
    assert "shards       data-000000.tar … data-000005.tar\nparts        json, png, txt\n" in result.output
    assert f"not prepared; `bridge-data prepare {tars}` does that\n" in result.output
    assert ["train", "6", "12", f"{size / 1000:.1f}", "kB"] in lines and ["train", "2", "16.7%"] in lines


def test_tars_of_a_prepared_data_set_are_not_said_to_be_unprepared(
    run: Run, tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    run("prepare", tars, *QUIET, "--split-ratio", "4,1,1")
    assert f"format       tars, read without the .nv-meta of {tars}\n" in run("info", tars / "*.tar").output


def test_a_metadataset_is_shown_as_a_tree(run: Run, tmp_path: Path) -> None:
    for name in "ab":
        write_texts(tmp_path / name, 10, ratio="0,1,0" if name == "b" else "1,0,0")
    file = tmp_path / "meta.yaml"
    file.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
        "  train: {path: a}\n  val: {path: b}\n  test: {path: a}\n  odd: {path: c}\n"
    )
    result = run("info", file)
    assert result.exit_code == 1  # because of the part that cannot be opened
    assert f"train\n  {tmp_path}/a [train]: 100.00% of draws, TextSample, 10 samples" in result.output
    assert f"val\n  {tmp_path}/b [val]" in result.output
    assert "test\n  no samples\n" in result.output
    assert f"odd\n  error: {file}:7: " in result.output


def test_a_metadataset_as_json(run: Run, tmp_path: Path) -> None:
    for name, size in (("a", 10), ("b", 30)):
        write_texts(tmp_path / name, size)
    file = write_blend(tmp_path / "meta.yaml", {"a": 3, "b": 1})
    file.write_text(file.read_text() + "  val: {path: a}\n  odd: {path: c}\n")
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


def test_auxiliary_data_are_named(run: Run, tmp_path: Path) -> None:
    write_dataset(tmp_path / "a", [{"__key__": "k", "txt": "x"}], definition=CRUDE)
    (tmp_path / "files").mkdir()
    (tmp_path / "meta.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
        "  train: {path: a, aux: {pictures: 'filesystem://files'}}\n"
    )
    assert f"aux pictures of a/train: {tmp_path}/files\n" in run("info", tmp_path / "meta.yaml").output


def test_a_jsonl_file_has_its_split(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(20)))
    run("prepare", path, "--split-ratio", "8,1,1", "--no-progress")
    result = run("info", path)
    assert result.exit_code == 0, result.stderr
    assert [line.split() for line in result.output.splitlines()[-3:]] == [["train", "16"], ["val", "2"], ["test", "2"]]
    facts = told(run, path)
    assert (facts["kind"], facts["num_bytes"]) == ("jsonl", path.stat().st_size)
    assert facts["split_parts"] == [
        {"split_part": part, "num_samples": number} for part, number in (("train", 16), ("val", 2), ("test", 2))
    ]


def test_what_is_in_no_part_of_the_split_is_told(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(20)))
    result = run("prepare", path, "--split-parts", "train:0..10", "--split-parts", "val:9..18", "--no-progress")
    assert "2 samples in no part of the split" in result.stderr
    assert "1 sample in several parts of the split" in result.stderr
    assert run("info", path).output.splitlines()[-1].split() == ["(in", "no", "part)", "2"]
    assert told(run, path)["split_parts"][-1] == {"split_part": None, "num_samples": 2}


def test_another_file_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    result = run("info", tmp_path / "a.txt")
    assert (result.exit_code, "expected a folder of tars or tables" in result.stderr) == (1, True)


def test_shows_how_an_epoch_is_dealt_to_lanes(run: Run, tmp_path: Path) -> None:
    counts = (300, 40, 160, 500)
    write_shards(tmp_path, counts)
    result = run("info", tmp_path, "--num-lanes", 4, "--max-samples-per-sequence", 100, "--shuffle-buffer-size", 100)
    assert result.exit_code == 0, result.stderr
    table = ChunkTable(counts, 15)
    found = overlap(table, 4)
    assert result.output.splitlines()[-7:-1] == [
        "",
        f"samples      1,000 of {tmp_path.name}/train, for 4 lanes",
        "chunks       68 of 13 to 15 samples, in blocks of at most 15",
        "windows      of at least 1,024 samples, or a lane's share",
        f"a lane has   {found.fewest} to {found.most} samples of an epoch: 250 on the average, "
        f"with a standard deviation of {found.share_std:.1f}",
        f"repeats      of 1,000 draws about {found.mean_repeats:.0f} ({found.mean_repeats / 10:.1f}%) come twice "
        f"before others come once, at most {found.most_repeats} ({found.most_repeats / 10:.1f}%)",
    ]
    assert found.fewest < found.most
    (lanes,) = told(run, tmp_path, "--num-lanes", 4, "--max-samples-per-sequence", 100, "--shuffle-buffer-size", 100)[
        "lanes"
    ]
    assert lanes == {
        "source": f"{tmp_path.name}/train",
        "num_samples": 1_000,
        "num_lanes": 4,
        "num_chunks": 68,
        "shortest_chunk": 13,
        "longest_chunk": 15,
        "block_size": 15,
        "window_size": 1_024,
        "epochs_per_shuffle": 1,
        "overlap": dataclasses.asdict(found),
    }
    alone = run("info", tmp_path, "--num-lanes", 1).output
    assert "chunks       4 of 40 to 500 samples, in blocks of at most 500\n" in alone
    assert "windows      none, each chunk is read front to back\n" in alone
    assert "a lane has   1,000 samples of an epoch" in alone
    assert "about 0 (0.0%) come twice before others come once, at most 0 (0.0%)" in alone


def test_shows_how_every_source_of_a_blend_is_dealt(run: Run, tmp_path: Path) -> None:
    for name, size in (("a", 100), ("b", 60)):
        write_texts(tmp_path / name, size)
    file = write_blend(tmp_path / "meta.yaml", {"a": 1, "b": 2})
    file.write_text(file.read_text().replace("path: b\n", "path: b\n        shuffle_over_epochs_multiplier: 4\n"))
    result = run("info", file, "--num-lanes", 2)
    assert result.exit_code == 0, result.stderr
    assert "samples      100 of a/train, for 2 lanes" in result.output
    assert "samples      60 of b/train, for 2 lanes" in result.output
    assert "repeats      not known for one epoch, because of shuffle_over_epochs_multiplier 4" in result.output


def test_settings_of_the_order_need_lanes_and_are_checked(run: Run, tars: Path) -> None:
    run("prepare", tars, *QUIET, "--split-ratio", "1,0,0")
    alone = run("info", tars, "--max-samples-per-sequence", 100)
    assert (alone.exit_code, "without --num-lanes" in alone.stderr) == (1, True)
    wrong = run("info", tars, "--num-lanes", 2, "--max-samples-per-sequence", 0)
    assert (wrong.exit_code, "--max-samples-per-sequence 0: expected an integer of at least 1" in wrong.stderr) == (
        1,
        True,
    )


def test_other_files_for_split_and_samples(run: Run, tars: Path) -> None:
    flags = ("--sample-type", "CaptioningSample", "--field-map", FIELDS, "--dataset-yaml-name", "samples.yaml")
    run("prepare", tars, *QUIET, "--split-ratio", "4,1,1", "--split-config", "parts.json", *flags)
    assert not (tars / ".nv-meta/split.yaml").exists()
    result = run("info", tars, "--split-config", "parts.json", "--dataset-config", "samples.yaml")
    assert ["train", "4", "8"] in [line.split()[:3] for line in result.output.splitlines()]
    assert "CaptioningSample(image ← png, caption ← txt)" in result.output
