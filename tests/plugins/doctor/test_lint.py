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

from bridge_data.data import open_shards
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan.formats import Opening
from bridge_data.plugins.doctor.lint import LintConfig, find_targets, lint
from bridge_data.plugins.doctor.lint_checks import KINDS
from bridge_data.plugins.joins.metadataset_joins import prepare_metadataset
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.tars import PrepareConfig, refresh_index
from tests.decode.av import media
from tests.decode.pictures import encoded, frames_of, half_overwritten
from tests.decode.pictures import picture as large
from tests.plan.joins import OWN, joined, own, texts
from tests.plugins.doctor.datasets import CAPTIONING, array, change, edit_meta, members, prepare_again, write_dataset
from tests.prepare.files import picture
from tests.prepare.odd_tars import LOSING, MORE, TWO, tar_of, without_content
from tests.prepared import write_dataset as write_texts
from tests.prepared import write_dataset_yaml
from tests.tables import write_text_table

ONE = LintConfig(num_workers=1)

PIPE = without_content("2.txt", tarfile.FIFOTYPE)

TEXTS = tar_of(("1.txt", b"one"), ("2.txt", b"two"))

SECOND = [*members(3).items()]
"""The members of the second shard of a sound data set."""

FilledBy = Callable[[Path], object]


def codes(path: Path, config: LintConfig = ONE) -> dict[str, int]:
    """The faults at `path`, counted."""
    report = lint(path, config)
    assert all(len(report.kept[code]) == min(count, config.max_kept) for code, count in report.counts.items())
    return report.counts


def raw(data: bytes) -> FilledBy:
    """A folder with a tar that is not prepared."""

    def fill(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "a.tar").write_bytes(data)

    return fill


def edited(change: FilledBy) -> FilledBy:
    """A sound data set, and then this change."""
    return lambda folder: change(write_dataset(folder))


def declared(file: str, **changes: Any) -> FilledBy:
    """Other entries in a file of metadata."""
    return edited(lambda folder: edit_meta(folder, file, **changes))


def meta(name: str, text: str) -> FilledBy:
    """Another text in a file of metadata."""
    return edited(lambda folder: (folder / ".nv-meta" / name).write_text(text))


def other_bytes(name: str, change: Callable[[bytes], bytes]) -> FilledBy:
    """Other bytes in a file."""
    return edited(lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes())))


def shard(*content: tuple[str, bytes], name: str = "data-1.tar") -> FilledBy:
    """Other members in a shard, or another shard, since the preparation."""
    return edited(lambda folder: (folder / name).write_bytes(tar_of(*content)))


def without(name: str) -> FilledBy:
    return edited(lambda folder: (folder / name).unlink())


def part(**parts: bytes | None) -> FilledBy:
    return lambda folder: change(folder, **parts)


def changed_content(folder: Path) -> None:
    refresh_index(folder, PrepareConfig(num_workers=1, digest=True))
    data = (folder / "data-1.tar").read_bytes()
    (folder / "data-1.tar").write_bytes(data.replace(b"picture 4", b"picture 5"))


def other_database(folder: Path) -> None:
    with sqlite3.connect(folder / ".nv-meta/index.sqlite") as db:
        db.execute("UPDATE samples SET byte_offset = 7 WHERE sample_key = '0002'")


FAULTS: dict[str, tuple[FilledBy, set[str]]] = {
    "a truncated shard": (other_bytes("data-1.tar", lambda data: data[:3000]), {"tar-damaged"}),
    "a damaged header": (
        other_bytes("data-1.tar", lambda data: data[:1024] + b"??????" + data[1030:]),
        {"tar-damaged"},
    ),
    "a shard without end mark": (
        other_bytes("data-1.tar", lambda data: data[: -(-len(data.rstrip(b"\0")) // 512) * 512]),
        {"tar-unfinished"},
    ),
    "an empty shard": (shard(), {"empty-shard", "wrong-count", "index-outdated"}),
    "two tars joined by cat": (raw(TWO + MORE), {"tar-damaged", "unprepared"}),
    "a hard link": (raw(LOSING["hard link"][0]), {"linked-member", "unprepared"}),
    "a FIFO": (raw(tar_of(("1.txt", b""), PIPE)), {"special-member", "unprepared"}),
    "zeros at the end": (raw(TEXTS + bytes(2 << 20)), {"zero-tail", "unprepared"}),
    "a name in Latin-1": (raw(tar_of(("caf\udce9.txt", b""))), {"name-not-utf8", "unprepared"}),
    "a shard with more samples": (shard(*SECOND, *members(9, 1).items()), {"wrong-count", "index-outdated"}),
    "a part that differs from its digest": (edited(changed_content), {"changed-content"}),
    "a part that has grown within its padding": (
        shard(*(members(3) | {"0004.json": b'{"caption": "a longer caption of picture 4"}'}).items()),
        {"index-outdated"},
    ),
    "a key twice in a shard": (
        shard(*members(3, 2).items(), *members(3, 1).items()),
        {"duplicate-key", "index-outdated"},
    ),
    "a key in two shards": (shard(*members(2).items()), {"shared-key", "index-outdated"}),
    "scattered parts": (
        shard(*SECOND[:2], *SECOND[3:], SECOND[2]),
        {"scattered-sample", "missing-part", "wrong-count", "index-outdated"},
    ),
    "a part twice": (shard(SECOND[0], *SECOND), {"duplicate-part", "index-outdated"}),
    "a member without part name": (
        lambda folder: write_dataset(
            folder, {"data-0.tar": {"README": b"hello"} | members(0), "data-1.tar": members(3)}
        ),
        {"nameless-member"},
    ),
    "a tar more": (shard(*members(9).items(), name="more.tar"), {"unprepared-shard"}),
    "a shard gone": (without("data-1.tar"), {"missing-shard"}),
    "an unused shard": (declared("split.yaml", split_parts={"train": ["data-0.tar"]}), {"unused-shard"}),
    "a shard twice in a part": (
        declared("split.yaml", split_parts={"train": ["data-{0..1}.tar", "data-0.tar"]}),
        {"split-repeated-shard"},
    ),
    "an unknown shard in a part": (
        declared("split.yaml", split_parts={"train": ["data-{0..2}.tar"]}),
        {"split-unknown-shard"},
    ),
    "an unknown shard excluded": (declared("split.yaml", exclude=["data-7.tar/0001"]), {"exclude-unknown"}),
    "an unknown sample excluded": (declared("split.yaml", exclude=["data-0.tar/0009"]), {"exclude-unknown"}),
    "two kinds of counts": (
        meta(".info.yaml", "shard_counts: {data-0.tar: 3, data-1.tar: 4}"),
        {"metadata-disagree"},
    ),
    "damaged counts": (meta(".info.json", "{"), {"config"}),
    "a damaged split": (meta("split.yaml", "split_parts: ["), {"metadata-damaged"}),
    "wrong counts": (
        declared(".info.json", shard_counts={"data-0.tar": 3, "data-1.tar": 4}),
        {"wrong-count", "index-outdated"},
    ),
    "no .tar.idx": (without("data-0.tar.idx"), {"index-missing"}),
    "a .tar.idx of another shard": (
        other_bytes("data-0.tar.idx", lambda data: data[:-8] + bytes(8)),
        {"index-outdated"},
    ),
    "an index.sqlite of another shard": (edited(other_database), {"index-outdated"}),
    "an index.bridge of another preparation": (meta("index.uuid", "another"), {"index-outdated"}),
    "no dataset.yaml": (without(".nv-meta/dataset.yaml"), {"config"}),
    "a field map for parts that there are not": (
        declared("dataset.yaml", field_map={"image": "jpg", "caption": "txt"}),
        {"config"},
    ),
    "a field of another type": (
        declared("dataset.yaml", field_map={"image": "png", "caption": "json"}),
        {"wrong-type"},
    ),
    "a sample without a part": (part(png=None), {"missing-part"}),
    "a sample without a value": (part(json=b"{}"), {"missing-field"}),
    "a value of another type": (part(json=b'{"caption": 7}'), {"wrong-type"}),
    "an image that is none": (part(png=b"no picture"), {"undecodable"}),
    "an image cut off": (part(png=picture(size=(90, 90))[:-60]), {"undecodable"}),
    "a JPEG overwritten from its middle on": (
        part(png=None, jpg=half_overwritten(encoded(large(), "JPEG"))),
        {"damaged-image", "missing-part"},
    ),
    "an image of three frames": (part(webp=frames_of("WEBP", "red", "lime", "blue")), {"several-frames"}),
    "a picture of floats beyond 1": (part(tif=encoded(large().convert("F"), "TIFF")), {"undecodable"}),
    "JSON that is none": (part(json=b"{"), {"undecodable"}),
    "a text that is not UTF-8": (part(txt=b"\xff\xfe"), {"not-utf8"}),
    "an image of a huge size": (part(png=picture(size=(300, 300))), {"image-too-large"}),
    "a film cut off": (lambda folder: change(folder, mkv=media.write("mp4", video="mpeg4")[:-900]), {"undecodable"}),
    "an array cut off": (part(npy=array(3)[:-4]), {"undecodable"}),
    "a pickle": (part(pkl=b"cos\nsystem\n"), {"no-decoder"}),
    "nothing": (edited(lambda folder: None), set()),
    "nothing, with an array": (part(npy=array(3)), set()),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_and_no_other(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    make, expected = FAULTS[name]
    make(tmp_path / "set")
    assert set(codes(tmp_path / "set")) == expected


@pytest.mark.parametrize(
    "name", sorted(LOSING.keys() - {"zeros at the beginning"})
)  # of which no reader takes anything
def test_what_prepare_refuses_is_a_fault_and_is_not_opened_by_other_indexes_either(tmp_path: Path, name: str) -> None:
    """Without our index, by the `.tar.idx` and counts that a tool writes which reads up to the first end."""
    raw(LOSING[name][0])(tmp_path)
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


def write_lines(path: Path) -> Path:
    """A prepared JSONL file of ten lines."""
    path.write_text("".join(json.dumps({"number": number}) + "\n" for number in range(10)))
    prepare_jsonl(path)
    return path


RANGES = {
    "{train: [0, 6], val: [7, 10]}": {"unused-lines"},
    "{train: [0%, 60%], val: [40%, 100%]}": {"shared-lines"},
    "{train: [5, 10], val: [0, 5]}": set(),
}


@pytest.mark.parametrize("ranges", RANGES)
def test_every_line_is_to_be_in_one_part_of_the_split(ranges: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    path.with_name("a.jsonl.split.yaml").write_text(f"split_parts: {ranges}\n")
    assert set(codes(path)) == RANGES[ranges]


def test_every_kind_is_tried_above() -> None:
    tried = set().union(*(expected for _, expected in FAULTS.values()), *RANGES.values())
    assert KINDS.keys() - tried == {"unreadable", "unbuildable"}


def test_a_join_is_made_though_its_lines_were_loaded_as_those_of_its_member(tmp_path: Path) -> None:
    for name, sizes in (("a.jsonl", (1, 2)), ("b.jsonl", (1, 2, 3))):
        (tmp_path / name).write_text("".join(f'{{"n": {size}}}\n' for size in sizes))
        prepare_jsonl(tmp_path / name)
    path = joined(tmp_path / "m.yaml", [{"path": "a.jsonl"}, {"path": "b.jsonl"}], own("Both"))
    prepare_metadataset(path, num_workers=1)
    targets = find_targets(path, LintConfig(opening=Opening(training=False, trusted_modules=[OWN])), lambda fault: None)
    found = [(one.source.composition is not None, one.ranges) for one in targets.loaded]
    assert found == [(False, [(0, 2)]), (False, [(0, 3)]), (True, [(0, 2)])]


def test_all_faults_come_at_once_with_their_places(tmp_path: Path) -> None:
    content = members(0) | {"0000.png": b"?", "0001.json": b"{}", "0002.txt": b"\xff"}
    write_dataset(tmp_path, {"data-0.tar": content, "data-1.tar": members(3)})
    (tmp_path / "data-1.tar.idx").unlink()
    report = lint(tmp_path, LintConfig(num_workers=2))
    places = {code: [(f.shard, f.key, f.part) for f in faults] for code, faults in report.kept.items()}
    assert places == {
        "undecodable": [("data-0.tar", "0000", "png")],
        "missing-field": [("data-0.tar", "0001", "json")],
        "not-utf8": [("data-0.tar", "0002", "txt")],
        "index-missing": [("data-1.tar", "", "")],
    }


def test_what_is_excluded_or_not_asked_for_is_not_decoded(tmp_path: Path) -> None:
    without_decoding = LintConfig(decode=False, num_workers=1)
    change(tmp_path / "a", png=b"?")
    change(tmp_path / "b", png=None)
    assert (codes(tmp_path / "a", without_decoding), codes(tmp_path / "b", without_decoding)) == (
        {},
        {"missing-part": 1},
    )
    assert codes(tmp_path / "a") == {"undecodable": 1}
    edit_meta(tmp_path / "a", "split.yaml", exclude=["data-0.tar/0001"])
    assert codes(tmp_path / "a") == {}


def test_a_limit_is_a_number_of_samples_and_of_many_faults_a_few_are_kept(tmp_path: Path) -> None:
    write_dataset(tmp_path / "a")
    for limit, looked in ((1, 1), (4, 4), (99, 6)):
        report = lint(tmp_path / "a", LintConfig(limit=limit, num_workers=1))
        assert (report.num_samples, report.is_complete, report.counts) == (looked, False, {})
    content = {f"{number:04d}.txt": b"\xff" for number in range(300)}
    write_dataset(tmp_path / "b", {"data-0.tar": content, "data-1.tar": members(900)})
    report = lint(tmp_path / "b", LintConfig(max_kept=7, num_workers=2))
    assert report.counts["not-utf8"] == 300
    assert [fault.key for fault in report.kept["not-utf8"]] == [f"{number:04d}" for number in range(7)]


def write_metadataset(file: Path, text: str) -> Path:
    file.write_text(f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n{text}")
    return file


def test_a_metadataset_is_checked_down_to_its_data_sets_and_a_mistake_is_a_fault_beside_others(tmp_path: Path) -> None:
    change(tmp_path / "a", png=b"?")
    write_dataset(tmp_path / "b")
    entries = "      - {path: a, weight: 1}\n      - {path: b, weight: 1}\n"
    report = lint(
        write_metadataset(tmp_path / "blend.yaml", f"  train:\n    blend:\n{entries}  val: {{path: b}}\n"), ONE
    )
    assert report.counts == {"undecodable": 1}
    assert report.kept["undecodable"][0].dataset == str(tmp_path / "a")
    assert (report.num_datasets, report.num_shards) == (2, 3)
    entries = "      - {path: nowhere}\n      - {path: a}\n      - {path: none}\n"
    report = lint(write_metadataset(tmp_path / "blend.yaml", f"  train:\n    blend:\n{entries}"), ONE)
    assert report.counts == {"undecodable": 1, "config": 2}
    assert [f"blend.yaml:{line}: " in fault.cause for line, fault in zip((6, 8), report.kept["config"], strict=True)]


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
    for first in (0, 3):
        (tmp_path / f"data-{first // 3}.tar.gz").write_bytes(gzip.compress(tar_of(*members(first).items())))
    assert codes(prepare_again(tmp_path)) == {}
    os.truncate(tmp_path / "data-1.tar.gz", 300)
    assert codes(tmp_path) == {"tar-damaged": 1}


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
    (folder / "data-1.tar.idx").unlink()
    (folder / "more.tar").write_bytes(tar_of(*members(9).items()))
    assert codes(folder, where("index = 0")) == {"index-missing": 1, "unprepared-shard": 1}


def test_tars_that_are_not_prepared_can_be_chosen_from(tmp_path: Path, own_cache: None) -> None:
    folder = tmp_path / "set"
    raw(tar_of(*members(0).items()))(folder)
    (folder / "b.tar").write_bytes(tar_of(("1.txt", b"\xff"), ("2.txt", b"fine")))
    assert codes(folder) == {"unprepared": 1, "not-utf8": 1}
    report = lint(folder, where("index in (0, 4)"))
    assert (report.counts, report.num_samples) == ({"unprepared": 1}, 2)
    assert codes(folder / "b.tar", where("key = '1'")) == {"unprepared": 1, "not-utf8": 1}


def test_a_recipe_is_for_the_samples_of_its_condition(tmp_path: Path, own_cache: None) -> None:
    folder = change(tmp_path / "set", json=None)
    write_dataset_yaml(folder, {**CAPTIONING, "field_map": {"image": "png", "caption": "txt"}}, "texts.yaml")
    entries = (
        "      - {path: set, where: json.bytes is not null}\n"
        "      - {path: set, where: json.bytes is null, dataset_config: texts.yaml}\n"
    )
    report = lint(write_metadataset(tmp_path / "blend.yaml", f"  train:\n    blend:\n{entries}"), ONE)
    assert (report.counts, report.num_samples) == ({}, 3)
    everything = write_metadataset(tmp_path / "all.yaml", "  train: {path: set}\n")
    assert codes(everything) == codes(everything, where("index = 1")) == {"missing-part": 1}
    assert codes(everything, where("index = 2")) == {}


def test_lines_and_rows_are_checked_and_can_be_chosen_from(tmp_path: Path, own_cache: None) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    assert lint(path, ONE).num_samples == 10 and codes(path) == {}
    path.write_bytes(path.read_bytes().replace(b'{"number": 7}', b'{"number":  7'))
    assert codes(path) == codes(path, where("index = 7")) == {"undecodable": 1}
    report = lint(path, where("index < 7"))
    assert (report.counts, report.num_samples) == ({}, 7)
    os.truncate(path, 20)
    assert codes(path) == {"config": 1}
    write_text_table(tmp_path / "rows.parquet", 30)
    assert lint(tmp_path / "rows.parquet", where("index < 4")).num_samples == 4


def test_wrong_settings_are_errors_at_once(tmp_path: Path, own_cache: None) -> None:
    folder = write_dataset(tmp_path / "set")
    texts(tmp_path / "a", "kl", per_shard=1)
    file = joined(tmp_path / "j.yaml", [{"path": "a"}, {"path": "a"}])
    prepare_metadataset(file, num_workers=1)
    for path, condition, told in (
        (folder, "size > 1", "unknown column 'size'"),
        (folder, "shard = 'data-0.tar'", r"chooses none of the 3 samples .* split part 'val': --split-part"),
        (file, "true", "does not choose from joined samples"),
    ):
        with pytest.raises(ConfigError, match=told):
            lint(path, where(condition))
    assert codes(folder, where("shard = 'data-0.tar'", split_parts=("train",))) == {}
    for setting, value in {"columns": "scores.parquet", "num_workers": 0, "limit": 0, "max_kept": 0}.items():
        with pytest.raises(ConfigError, match=setting):
            LintConfig(**{setting: value})  # type: ignore[arg-type]
