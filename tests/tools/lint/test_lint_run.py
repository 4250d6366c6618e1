import gzip
import json
import os
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan.formats import Opening
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.metadataset_joins import prepare_metadataset
from bridge_data.prepare.tars import PrepareConfig, refresh_index, write_dataset_yaml
from bridge_data.shards import open_shards
from bridge_data.tools.lint import LintConfig, find_targets, lint
from bridge_data.tools.lint_checks import KINDS
from tests.decode.av import media
from tests.plan.joins import OWN, joined, own, texts
from tests.prepare.files import picture
from tests.prepare.odd_tars import LOSING, MORE, TWO, tar_of, without_content
from tests.prepared import write_dataset as write_texts
from tests.tables import write_text_table
from tests.tools.lint.datasets import (
    CAPTIONING,
    change,
    edit_meta,
    members,
    prepare_again,
    write_dataset,
    write_members,
)

ONE = LintConfig(num_workers=1)

PIPE = without_content("2.txt", tarfile.FIFOTYPE)

TEXTS = tar_of(("1.txt", b"one"), ("2.txt", b"two"))

FilledBy = Callable[[Path], object]


def codes(path: Path, config: LintConfig = ONE) -> dict[str, int]:
    """The faults at `path`, counted."""
    report = lint(path, config)
    assert all(len(report.kept[code]) == min(count, config.max_kept) for code, count in report.counts.items())
    return report.counts


def write_raw(folder: Path, data: bytes) -> None:
    """A folder with a tar that is not prepared."""
    folder.mkdir(exist_ok=True)
    (folder / "a.tar").write_bytes(data)


def truncated_shard(folder: Path) -> None:
    write_dataset(folder)
    path = folder / "data-1.tar"
    path.write_bytes(path.read_bytes()[:3000])


def damaged_header(folder: Path) -> None:
    write_dataset(folder)
    data = bytearray((folder / "data-1.tar").read_bytes())
    data[1024:1030] = b"??????"
    (folder / "data-1.tar").write_bytes(data)


def no_end_mark(folder: Path) -> None:
    write_dataset(folder)
    path = folder / "data-1.tar"
    path.write_bytes(path.read_bytes().rstrip(b"\0") + bytes(512 - len(path.read_bytes().rstrip(b"\0")) % 512))


def empty_shard(folder: Path) -> None:
    write_dataset(folder)
    write_members(folder / "data-1.tar", [])


def replaced_shard(folder: Path) -> None:
    write_dataset(folder)
    write_members(folder / "data-1.tar", [*members(3).items(), *members(9, 1).items()])


def grown_part(folder: Path) -> None:
    write_dataset(folder)
    content = members(3)
    content["0004.json"] = json.dumps({"caption": "a longer caption of picture 4"}).encode()
    write_members(folder / "data-1.tar", [*content.items()])


def changed_content(folder: Path) -> None:
    write_dataset(folder)
    refresh_index(folder, PrepareConfig(num_workers=1, digest=True))
    data = (folder / "data-1.tar").read_bytes()
    (folder / "data-1.tar").write_bytes(data.replace(b"picture 4", b"picture 5"))


def repeated_key(folder: Path) -> None:
    write_dataset(folder)
    write_members(folder / "data-1.tar", [*members(3, 2).items(), *members(3, 1).items()])


def scattered_parts(folder: Path) -> None:
    write_dataset(folder)
    content = list(members(3).items())
    write_members(folder / "data-1.tar", [*content[:2], *content[3:], content[2]])


def repeated_part(folder: Path) -> None:
    write_dataset(folder)
    content = list(members(3).items())
    write_members(folder / "data-1.tar", [content[0], *content])


def key_in_two_shards(folder: Path) -> None:
    write_dataset(folder)
    write_members(folder / "data-1.tar", [*members(2).items()])


def nameless_member(folder: Path) -> None:
    write_dataset(folder, {"data-0.tar": {"README": b"hello"} | members(0), "data-1.tar": members(3)})


def unprepared_shard(folder: Path) -> None:
    write_dataset(folder)
    write_members(folder / "more.tar", list(members(9).items()))


def missing_shard(folder: Path) -> None:
    write_dataset(folder)
    (folder / "data-1.tar").unlink()


def split(**parts: list[str]) -> FilledBy:
    return lambda folder: edit_meta(write_dataset(folder), "split.yaml", split_parts=parts)


def exclude(*entries: str) -> FilledBy:
    return lambda folder: edit_meta(write_dataset(folder), "split.yaml", exclude=list(entries))


def counts_of_two_kinds(folder: Path) -> None:
    write_dataset(folder)
    (folder / ".nv-meta/.info.yaml").write_text("shard_counts: {data-0.tar: 3, data-1.tar: 4}")


def broken_json(folder: Path) -> None:
    write_dataset(folder)
    (folder / ".nv-meta/.info.json").write_text("{")


def wrong_counts(folder: Path) -> None:
    edit_meta(write_dataset(folder), ".info.json", shard_counts={"data-0.tar": 3, "data-1.tar": 4})


def broken_split(folder: Path) -> None:
    (write_dataset(folder) / ".nv-meta/split.yaml").write_text("split_parts: [")


def no_tar_index(folder: Path) -> None:
    (write_dataset(folder) / "data-0.tar.idx").unlink()


def other_tar_index(folder: Path) -> None:
    write_dataset(folder)
    (folder / "data-0.tar.idx").write_bytes((folder / "data-0.tar.idx").read_bytes()[:-8] + bytes(8))


def other_database(folder: Path) -> None:
    with sqlite3.connect(write_dataset(folder) / ".nv-meta/index.sqlite") as db:
        db.execute("UPDATE samples SET byte_offset = 7 WHERE sample_key = '0002'")


def other_identity(folder: Path) -> None:
    (write_dataset(folder) / ".nv-meta/index.uuid").write_text("another")


def no_dataset_yaml(folder: Path) -> None:
    (write_dataset(folder) / ".nv-meta/dataset.yaml").unlink()


def field_map(**parts: str) -> FilledBy:
    return lambda folder: edit_meta(write_dataset(folder), "dataset.yaml", field_map=parts)


FAULTS: dict[str, tuple[FilledBy, set[str]]] = {
    "a truncated shard": (truncated_shard, {"tar-damaged"}),
    "a damaged header": (damaged_header, {"tar-damaged"}),
    "a shard without end mark": (no_end_mark, {"tar-unfinished"}),
    "an empty shard": (empty_shard, {"empty-shard", "wrong-count", "index-outdated"}),
    "two tars joined by cat": (lambda folder: write_raw(folder, TWO + MORE), {"tar-damaged", "unprepared"}),
    "a hard link": (lambda folder: write_raw(folder, LOSING["hard link"][0]), {"linked-member", "unprepared"}),
    "a FIFO": (lambda folder: write_raw(folder, tar_of(("1.txt", b""), PIPE)), {"special-member", "unprepared"}),
    "zeros at the end": (lambda folder: write_raw(folder, TEXTS + bytes(2 << 20)), {"zero-tail", "unprepared"}),
    "a name in Latin-1": (
        lambda folder: write_raw(folder, tar_of(("caf\udce9.txt", b""))),
        {"name-not-utf8", "unprepared"},
    ),
    "a shard with more samples": (replaced_shard, {"wrong-count", "index-outdated"}),
    "a part that differs from its digest": (changed_content, {"changed-content"}),
    "a part that has grown within its padding": (grown_part, {"index-outdated"}),
    "a key twice in a shard": (repeated_key, {"duplicate-key", "index-outdated"}),
    "a key in two shards": (key_in_two_shards, {"shared-key", "index-outdated"}),
    "scattered parts": (scattered_parts, {"scattered-sample", "missing-part", "wrong-count", "index-outdated"}),
    "a part twice": (repeated_part, {"duplicate-part", "index-outdated"}),
    "a member without part name": (nameless_member, {"nameless-member"}),
    "a tar more": (unprepared_shard, {"unprepared-shard"}),
    "a shard gone": (missing_shard, {"missing-shard"}),
    "an unused shard": (split(train=["data-0.tar"]), {"unused-shard"}),
    "a shard twice in a part": (split(train=["data-{0..1}.tar", "data-0.tar"]), {"split-repeated-shard"}),
    "an unknown shard in a part": (split(train=["data-{0..2}.tar"]), {"split-unknown-shard"}),
    "an unknown shard excluded": (exclude("data-7.tar/0001"), {"exclude-unknown"}),
    "an unknown sample excluded": (exclude("data-0.tar/0009"), {"exclude-unknown"}),
    "two kinds of counts": (counts_of_two_kinds, {"metadata-disagree"}),
    "damaged counts": (broken_json, {"config"}),
    "a damaged split": (broken_split, {"metadata-damaged"}),
    "wrong counts": (wrong_counts, {"wrong-count", "index-outdated"}),
    "no .tar.idx": (no_tar_index, {"index-missing"}),
    "a .tar.idx of another shard": (other_tar_index, {"index-outdated"}),
    "an index.sqlite of another shard": (other_database, {"index-outdated"}),
    "an index.bridge of another preparation": (other_identity, {"index-outdated"}),
    "no dataset.yaml": (no_dataset_yaml, {"config"}),
    "a field map for parts that there are not": (field_map(image="jpg", caption="txt"), {"config"}),
    "a field of another type": (field_map(image="png", caption="json"), {"wrong-type"}),
    "a sample without a part": (lambda folder: change(folder, png=None), {"missing-part"}),
    "a sample without a value": (lambda folder: change(folder, json=b"{}"), {"missing-field"}),
    "a value of another type": (lambda folder: change(folder, json=b'{"caption": 7}'), {"wrong-type"}),
    "an image that is none": (lambda folder: change(folder, png=b"no picture"), {"undecodable"}),
    "an image cut off": (lambda folder: change(folder, png=picture(size=(90, 90))[:-60]), {"undecodable"}),
    "JSON that is none": (lambda folder: change(folder, json=b"{"), {"undecodable"}),
    "a text that is not UTF-8": (lambda folder: change(folder, txt=b"\xff\xfe"), {"not-utf8"}),
    "an image of a huge size": (lambda folder: change(folder, png=picture(size=(300, 300))), {"image-too-large"}),
    "a film cut off": (lambda folder: change(folder, mkv=media.write("mp4", video="mpeg4")[:-900]), {"undecodable"}),
    "a pickle": (lambda folder: change(folder, pkl=b"cos\nsystem\n"), {"no-decoder"}),
}


@pytest.mark.parametrize(
    "name", sorted(LOSING.keys() - {"zeros at the beginning"})
)  # of which no reader takes anything
def test_what_prepare_refuses_is_a_fault_and_is_not_opened_by_other_indexes_either(tmp_path: Path, name: str) -> None:
    """Without our index, by the `.tar.idx` and counts that a tool writes which reads up to the first end."""
    write_raw(tmp_path, LOSING[name][0])
    assert lint(tmp_path, ONE).num_faults > 0
    with tarfile.open(tmp_path / "a.tar") as archive:
        samples = {member.name.partition(".")[0]: member.offset for member in reversed(archive.getmembers())}
        offsets = [*sorted(samples.values()), archive.offset]
    (tmp_path / "a.tar.idx").write_bytes(np.array(offsets, "<u8").tobytes())
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta/.info.json").write_text(json.dumps({"shard_counts": {"a.tar": len(samples)}}))
    (tmp_path / ".nv-meta/split.yaml").write_text("split_parts: {train: [a.tar]}")
    reader = open_shards(tmp_path, "train").reader()
    with pytest.raises(DatasetError, match=r"a\.tar"):
        for number in range(len(samples)):
            reader.read(number)
    assert lint(tmp_path, ONE).num_faults > 0


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_and_no_other(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    make, expected = FAULTS[name]
    make(tmp_path / "set")
    assert set(codes(tmp_path / "set")) == expected


RANGES = {
    "{train: [0, 6], val: [7, 10]}": {"unused-lines"},
    "{train: [0%, 60%], val: [40%, 100%]}": {"shared-lines"},
    "{train: [5, 10], val: [0, 5]}": set(),
}


@pytest.mark.parametrize("ranges", RANGES)
def test_every_line_is_to_be_in_one_part_of_the_split(ranges: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"number": number}) + "\n" for number in range(10)))
    prepare_jsonl(path)
    path.with_name("a.jsonl.split.yaml").write_text(f"split_parts: {ranges}\n")
    assert set(codes(path)) == RANGES[ranges]


def test_a_join_is_made_though_its_lines_were_loaded_as_those_of_its_member(tmp_path: Path) -> None:
    for name, sizes in (("a.jsonl", (1, 2)), ("b.jsonl", (1, 2, 3))):
        (tmp_path / name).write_text("".join(f'{{"n": {size}}}\n' for size in sizes))
        prepare_jsonl(tmp_path / name)
    path = joined(tmp_path / "m.yaml", [{"path": "a.jsonl"}, {"path": "b.jsonl"}], own("Both"))
    prepare_metadataset(path, num_workers=1)
    targets = find_targets(path, LintConfig(opening=Opening(training=False, trusted_modules=[OWN])), lambda fault: None)
    found = [(one.source.joined is not None, one.ranges) for one in targets.loaded]
    assert found == [(False, [(0, 2)]), (False, [(0, 3)]), (True, [(0, 2)])]


def test_every_kind_is_tried_above() -> None:
    tried = set().union(*(expected for _, expected in FAULTS.values()), *RANGES.values())
    assert KINDS.keys() - tried == {"unreadable", "unbuildable"}


def test_all_faults_come_at_once_with_their_places(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    content = members(0)
    content.update({"0000.png": b"?", "0001.json": b"{}", "0002.txt": b"\xff"})
    write_members(tmp_path / "data-0.tar", list(content.items()))
    prepare_again(tmp_path)
    (tmp_path / "data-1.tar.idx").unlink()
    report = lint(tmp_path, LintConfig(num_workers=2))
    places = {code: [(f.shard, f.key, f.part) for f in faults] for code, faults in report.kept.items()}
    assert places == {
        "undecodable": [("data-0.tar", "0000", "png")],
        "missing-field": [("data-0.tar", "0001", "json")],
        "not-utf8": [("data-0.tar", "0002", "txt")],
        "index-missing": [("data-1.tar", "", "")],
    }


def test_excluded_samples_are_not_decoded(tmp_path: Path) -> None:
    change(tmp_path, png=b"?")
    assert codes(tmp_path) == {"undecodable": 1}
    edit_meta(tmp_path, "split.yaml", exclude=["data-0.tar/0001"])
    assert codes(tmp_path) == {}


def test_without_decoding_parts_must_be_there(tmp_path: Path) -> None:
    change(tmp_path / "a", png=b"?")
    change(tmp_path / "b", png=None)
    config = LintConfig(decode=False, num_workers=1)
    assert codes(tmp_path / "a", config) == {}
    assert codes(tmp_path / "b", config) == {"missing-part": 1}


def test_a_limit_is_a_number_of_samples(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    for limit, looked in ((1, 1), (4, 4), (99, 6)):
        report = lint(tmp_path, LintConfig(limit=limit, num_workers=1))
        assert (report.num_samples, report.is_complete, report.counts) == (looked, False, {})


def test_many_faults_are_counted_and_a_few_kept(tmp_path: Path) -> None:
    content = {f"{number:04d}.txt": b"\xff" for number in range(300)}
    write_dataset(tmp_path, {"data-0.tar": content, "data-1.tar": members(900)})
    report = lint(tmp_path, LintConfig(max_kept=7, num_workers=2))
    assert report.counts["not-utf8"] == 300
    assert [fault.key for fault in report.kept["not-utf8"]] == [f"{number:04d}" for number in range(7)]


def write_metadataset(file: Path, text: str) -> Path:
    file.write_text(f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n{text}")
    return file


def test_a_metadataset_is_checked_down_to_its_data_sets(tmp_path: Path) -> None:
    change(tmp_path / "a", png=b"?")
    write_dataset(tmp_path / "b")
    blend = write_metadataset(
        tmp_path / "blend.yaml",
        "  train:\n    blend:\n      - {path: a, weight: 1}\n      - {path: b, weight: 1}\n  val: {path: b}\n",
    )
    report = lint(blend, ONE)
    assert report.counts == {"undecodable": 1}
    assert report.kept["undecodable"][0].dataset == str(tmp_path / "a")
    assert (report.num_datasets, report.num_shards) == (2, 3)


def test_a_mistake_in_a_metadataset_is_a_fault_beside_others(tmp_path: Path) -> None:
    change(tmp_path / "a", png=b"?")
    blend = write_metadataset(
        tmp_path / "blend.yaml",
        "  train:\n    blend:\n      - {path: nowhere}\n      - {path: a}\n      - {path: b}\n",
    )
    report = lint(blend, ONE)
    assert report.counts == {"undecodable": 1, "config": 2}
    assert [f"blend.yaml:{line}: " in fault.cause for line, fault in zip((6, 8), report.kept["config"], strict=True)]


def test_lines_of_a_jsonl_file_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"number": number}) + "\n" for number in range(10)))
    prepare_jsonl(path)
    assert lint(path, ONE).num_samples == 10
    assert codes(path) == {}
    path.write_bytes(path.read_bytes().replace(b'{"number": 7}', b'{"number":  7'))
    assert codes(path) == {"undecodable": 1}
    os.truncate(path, 20)
    assert codes(path) == {"config": 1}


def test_samples_that_code_makes_are_made(tmp_path: Path) -> None:
    write_texts(tmp_path / "a", [{"__key__": "k", "txt": "fine"}, {"__key__": "l", "txt": "nothing"}], per_shard=1)
    texts(tmp_path / "b", "kl", per_shard=1)
    file = joined(tmp_path / "j.yaml", [{"path": "a"}, {"path": "b"}], own("swap", "__function__"))
    prepare_metadataset(file, num_workers=1)
    assert codes(file) == {"config": 1}
    config = LintConfig(num_workers=1, opening=Opening(training=False, trusted_modules=[OWN]))
    report = lint(file, config)
    assert report.counts == {"unbuildable": 1}
    assert "the joiner of" in report.kept["unbuildable"][0].cause
    (tmp_path / "b/data-0000.tar").write_bytes(b"")
    assert codes(file, config) == {
        "unbuildable": 1,
        "unreadable": 1,
        "empty-shard": 1,
        "tar-unfinished": 1,
        "wrong-count": 1,
        "index-outdated": 3,
    }


def test_compressed_shards_are_checked_too(tmp_path: Path) -> None:
    for name in ("data-0.tar", "data-1.tar"):
        write_members(tmp_path / name, list(members(3 * int(name[5])).items()))
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
        (tmp_path / name).unlink()
    assert codes(prepare_again(tmp_path)) == {}
    os.truncate(tmp_path / "data-1.tar.gz", 300)
    assert codes(tmp_path) == {"tar-damaged": 1}


def test_arrays_and_tensors_are_decoded(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.arange(3))
    array = (tmp_path / "array.npy").read_bytes()
    assert codes(change(tmp_path / "good", npy=array)) == {}
    assert codes(change(tmp_path / "bad", npy=array[:-4])) == {"undecodable": 1}


@pytest.mark.parametrize("setting", ["num_workers", "limit", "max_kept"])
def test_settings_are_numbers_above_0(setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"^LintConfig\({setting}=0\): expected at least 1$"):
        LintConfig(**{setting: 0})  # type: ignore[arg-type]


def where(condition: str, **settings: Any) -> LintConfig:
    """Checks of the samples for which the condition holds."""
    return LintConfig(num_workers=1, where=condition, **settings)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))


def test_of_tars_only_chosen_samples_are_decoded_and_all_indexes_compared(tmp_path: Path, own_cache: None) -> None:
    folder = change(tmp_path / "set", png=b"?", json=b"?")
    assert codes(folder) == {"undecodable": 2}
    report = lint(folder, where("index <> 1"))
    assert (report.counts, report.num_samples, report.num_shards, report.is_complete) == ({}, 4, 2, False)
    assert codes(folder, where("index = 1")) == {"undecodable": 2}
    assert lint(folder, where("true", limit=4)).num_samples == 4
    assert lint(folder, where("index > 0", limit=3)).num_samples == 3
    (folder / "data-1.tar").with_suffix(".tar.idx").unlink()
    write_members(folder / "more.tar", [*members(9).items()])
    assert codes(folder, where("index = 0")) == {"index-missing": 1, "unprepared-shard": 1}


def test_tars_that_are_not_prepared_can_be_chosen_from(tmp_path: Path, own_cache: None) -> None:
    (tmp_path / "set").mkdir()
    write_members(tmp_path / "set/a.tar", [*members(0).items()])
    write_members(tmp_path / "set/b.tar", [("1.txt", b"\xff"), ("2.txt", b"fine")])
    assert codes(tmp_path / "set") == {"unprepared": 1, "not-utf8": 1}
    report = lint(tmp_path / "set", where("index in (0, 4)"))
    assert (report.counts, report.num_samples) == ({"unprepared": 1}, 2)
    assert codes(tmp_path / "set/b.tar", where("key = '1'")) == {"unprepared": 1, "not-utf8": 1}


def test_a_recipe_is_for_the_samples_of_its_condition(tmp_path: Path, own_cache: None) -> None:
    folder = change(tmp_path / "set", json=None)
    write_dataset_yaml(folder, {**CAPTIONING, "field_map": {"image": "png", "caption": "txt"}}, "texts.yaml")
    entries = (
        "      - {path: set, where: json.bytes is not null}\n"
        "      - {path: set, where: json.bytes is null, dataset_config: texts.yaml}\n"
    )
    blend = write_metadataset(tmp_path / "blend.yaml", f"  train:\n    blend:\n{entries}")
    report = lint(blend, ONE)
    assert (report.counts, report.num_samples) == ({}, 3)
    everything = write_metadataset(tmp_path / "all.yaml", "  train: {path: set}\n")
    assert codes(everything) == {"missing-part": 1}
    assert codes(everything, where("index = 1")) == {"missing-part": 1}
    assert codes(everything, where("index = 2")) == {}


def test_chosen_lines_and_rows_are_checked(tmp_path: Path, own_cache: None) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"number": number}) + "\n" for number in range(10)))
    prepare_jsonl(path)
    path.write_bytes(path.read_bytes().replace(b'{"number": 7}', b'{"number":  7'))
    assert codes(path, where("index = 7")) == {"undecodable": 1}
    report = lint(path, where("index < 7"))
    assert (report.counts, report.num_samples) == ({}, 7)
    write_text_table(tmp_path / "rows.parquet", 30)
    assert lint(tmp_path / "rows.parquet", where("index < 4")).num_samples == 4


def test_a_condition_that_is_wrong_is_an_error_at_once(tmp_path: Path, own_cache: None) -> None:
    folder = write_dataset(tmp_path / "set")
    with pytest.raises(ConfigError, match="unknown column 'size'"):
        lint(folder, where("size > 1"))
    with pytest.raises(ConfigError, match=r"chooses none of the 3 samples .* split part 'val': --split-parts"):
        lint(folder, where("shard = 'data-0.tar'"))
    assert codes(folder, where("shard = 'data-0.tar'", split_parts=("train",))) == {}
    with pytest.raises(ConfigError, match="columns: is a file of columns for `where:`"):
        LintConfig(columns="scores.parquet")
    texts(tmp_path / "a", "kl", per_shard=1)
    texts(tmp_path / "b", "kl", per_shard=1)
    file = joined(tmp_path / "j.yaml", [{"path": "a"}, {"path": "b"}])
    prepare_metadataset(file, num_workers=1)
    with pytest.raises(ConfigError, match="does not choose from joined samples"):
        lint(file, where("true"))
