"""Preparing again: only what is new or has changed is read, and what comes of it is what one preparation writes."""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import sqlite3
import tarfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from bridge_data.data import ShardReader, open_shards
from bridge_data.data.index_file import Segment
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.media.media import prepare_media
from bridge_data.plugins.media.media_rule import MediaRule
from bridge_data.prepare.index_writing import build_segment
from bridge_data.prepare.sqlite_index import SeenFile, SqliteIndexWriter
from bridge_data.prepare.tars import PrepareConfig, refresh_index, write_indexes
from bridge_data.task.stores.part_reader import PartReader
from tests.data.tars import prepare_by_ratio, write_shards, write_tar
from tests.memory import growth_bytes
from tests.prepare.files import picture
from tests.prepare.same_indexes import assert_same_indexes, copy_unprepared, rows_of


def state_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / ".nv-meta").iterdir()}


def test_unchanged_shards_are_not_scanned_again(tmp_path: Path) -> None:
    write_shards(tmp_path)
    assert prepare_by_ratio(tmp_path).num_scanned == 4
    before = state_of(tmp_path)
    again = prepare_by_ratio(tmp_path)
    assert (again.num_scanned, again.num_samples, again.parts) == (0, 20, ("json", "txt"))
    assert state_of(tmp_path) == before
    assert prepare_by_ratio(tmp_path, rescan=True).num_scanned == 4
    assert state_of(tmp_path) == before  # the uuid is made of the content
    os.utime(tmp_path / "data-000002.tar", ns=(1, 1))
    assert prepare_by_ratio(tmp_path).num_scanned == 1


def test_only_what_is_new_or_changed_is_scanned(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path, "1,0,0")
    write_tar(tmp_path / "data-000001.tar", {"new/1.txt": b"one", "new/2.txt": b"two"})
    write_tar(tmp_path / "a-first.tar", {"first.txt": b"first"})
    (tmp_path / "data-000003.tar").unlink()
    with pytest.raises(DatasetError, match=r"data-000003\.tar: was prepared, and is gone\. Restore it"):
        write_indexes(tmp_path, [f"data-00000{number}.tar" for number in range(4)], PrepareConfig())
    found = prepare_by_ratio(tmp_path, "1,0,0")
    counts = {"data-000000.tar": 5, "data-000001.tar": 2, "data-000002.tar": 5, "a-first.tar": 1}
    assert (found.num_scanned, found.shard_counts) == (2, counts)
    samples = ShardReader(open_shards(tmp_path, "train"))
    keys = ["first", *[f"{number:06d}" for number in range(5)], "new/1", "new/2", "000010"]
    assert [samples.read(index).key for index in range(9)] == keys


def test_shards_keep_their_numbers_when_one_comes_before_them(tmp_path: Path) -> None:
    write_shards(tmp_path, num_shards=12)
    prepare_by_ratio(tmp_path)
    write_tar(tmp_path / "a-first.tar", {"first.txt": b"first"})
    counts = prepare_by_ratio(tmp_path, "1,0,0").shard_counts
    assert (next(iter(counts)), list(counts)[-1]) == ("data-000000.tar", "a-first.tar")
    assert open_shards(tmp_path, "train").names[0] == "a-first.tar"  # the order of samples is that of the names
    parts = PartReader(tmp_path)
    found = [parts.read(parts.find(name)) for name in ("first.txt", "000030.json")]
    assert found == [b"first", b'{"caption": "c30"}']
    assert next(iter(prepare_by_ratio(tmp_path, "1,0,0", rescan=True).shard_counts)) == "a-first.tar"


def test_a_shard_that_this_process_has_read_before_is_scanned_as_it_is_now(tmp_path: Path) -> None:
    for text in ("old", "new", "other"):
        (tmp_path / "a.tar").unlink(missing_ok=True)
        write_tar(tmp_path / "a.tar", {f"{text}{number}.txt": text.encode() for number in range(len(text))})
        assert prepare_by_ratio(tmp_path, "1,0,0").shard_counts == {"a.tar": len(text)}
        reader = ShardReader(open_shards(tmp_path, "train"))
        samples = [reader.read(number) for number in range(len(text))]
        assert [sample.key for sample in samples] == [f"{text}{number}" for number in range(len(text))]
        assert {sample.parts["txt"] for sample in samples} == {text.encode()}


def test_memory_is_that_of_a_few_shards_also_where_none_has_changed(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {f"{'k' * 90}{number}.txt": b"" for number in range(500)})
    for shard in range(1, 60):
        shutil.copyfile(tmp_path / "0.tar", tmp_path / f"{shard}.tar")
    assert prepare_by_ratio(tmp_path, "1,0,0").num_scanned == 60
    index_bytes = (tmp_path / ".nv-meta/index.bridge").stat().st_size
    shutil.copyfile(tmp_path / "0.tar", tmp_path / "60.tar")
    for num_scanned in (1, 0):  # the indexes are written anew, and found whole
        tracemalloc.start()
        assert prepare_by_ratio(tmp_path, "1,0,0").num_scanned == num_scanned
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < index_bytes / 2


def write_database(path: Path, segments: Sequence[Segment]) -> None:
    writer = SqliteIndexWriter(path)
    for number, one in enumerate(segments):
        writer.add(number, SeenFile(f"{number}.tar", 1, 1), one)
    assert writer.finish(sum(map(len, segments))) is None


@pytest.mark.processes
def test_the_memory_of_writing_the_database_does_not_depend_on_the_number_of_samples(tmp_path: Path) -> None:
    numbers = range(2000)
    parts = [("txt", 512 + 1024 * number, 3) for number in numbers]
    offsets = [1024 * number for number in range(2001)]
    keys = [[f"{shard:03d}{number:013d}" for number in numbers] for shard in range(160)]
    shards = [Segment.of(build_segment(of_shard, offsets, range(1, 2001), parts)) for of_shard in keys]
    assert growth_bytes(functools.partial(write_database, tmp_path / "i", shards)) < 16 << 20
    assert (tmp_path / "i").stat().st_size > 32 << 20


@pytest.mark.parametrize(
    "name", ["index.sqlite", "index.uuid", "index.bridge", "../data-000001.tar.idx", "../z.tar.idx"]
)
def test_a_lost_file_is_written_again_as_it_was(tmp_path: Path, name: str) -> None:
    write_shards(tmp_path)
    write_tar(tmp_path / "z.tar", {"__meta__/readme": b"none"})  # without samples
    prepare_by_ratio(tmp_path)
    file = tmp_path / ".nv-meta" / name
    content = file.read_bytes()
    file.unlink()
    num_scanned = {"index.bridge": 5, "../z.tar.idx": 1}
    assert prepare_by_ratio(tmp_path).num_scanned == num_scanned.get(name, 0)
    assert file.read_bytes() == content or name == "index.sqlite"
    assert open_shards(tmp_path, "train").index is not None


def test_a_shard_whose_entry_in_the_index_is_damaged_is_scanned_again(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path)
    file = tmp_path / ".nv-meta/index.bridge"
    content = file.read_bytes()
    index = open_shards(tmp_path, "train").index
    assert index is not None
    damaged = bytearray(content)
    damaged[content.index(index.segment_bytes("data-000001.tar")) + 20] ^= 1
    file.write_bytes(damaged)
    assert prepare_by_ratio(tmp_path).num_scanned == 1
    assert file.read_bytes() == content


def test_all_faults_are_reported_at_once_and_nothing_is_written_or_replaced(tmp_path: Path) -> None:
    write_shards(tmp_path)
    whole = {number: (tmp_path / f"data-00000{number}.tar").read_bytes() for number in (1, 3)}
    before = None
    for _ in range(2):
        (tmp_path / "data-000001.tar").write_bytes(b"rubbish")
        (tmp_path / "data-000003.tar").write_bytes(whole[3][:1000])
        with pytest.raises(DatasetError, match=r"2 of 4 shards cannot be used:\n(.*\n)*.*data-000003\.tar: ") as caught:
            prepare_by_ratio(tmp_path)
        assert "data-000001.tar: no readable tar header" in str(caught.value)
        assert before == (state_of(tmp_path) if (tmp_path / ".nv-meta").exists() else None)
        for number, content in whole.items():
            (tmp_path / f"data-00000{number}.tar").write_bytes(content)
        prepare_by_ratio(tmp_path)
        before = state_of(tmp_path)


def test_keys_in_several_shards_are_a_note_each_time(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"a1", "2.txt": b"a2"})
    write_tar(tmp_path / "b.tar", {"2.txt": b"b2", "3.txt": b"b3"})
    for again in ("", "and 1 more", "and 1 more"):  # scanned, a shard is added, and none has changed
        (note,) = prepare_by_ratio(tmp_path, "1,0,0").notes
        assert note.startswith("1 key occurs in several shards, such as '2' in a.tar and ") and again in note
        assert "SHARD/KEY" in note and "--fix-duplicates" in note
        write_tar(tmp_path / "c.tar", {"2.txt": b"c2"})
    reader = ShardReader(open_shards(tmp_path, "train"))
    texts = {sample.full_key: sample.parts["txt"] for sample in map(reader.read, range(5))}
    assert texts == {f"{text[:1]}.tar/{text[1:]}": text.encode() for text in ("a1", "a2", "b2", "b3", "c2")}


def test_shards_without_samples_are_a_note_unless_all_are(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {})
    write_tar(tmp_path / "b.tar", {"folder/": b""})
    with pytest.raises(DatasetError, match=r"there are no samples; without samples: 2 shards, such as a\.tar"):
        prepare_by_ratio(tmp_path)
    write_tar(tmp_path / "c.tar", {"1.txt": b"one"})
    found = prepare_by_ratio(tmp_path, "1,0,0")
    assert found.shard_counts == {"a.tar": 0, "b.tar": 0, "c.tar": 1}
    assert found.notes == ("without samples: 2 shards, such as a.tar with 0 members",)
    assert ShardReader(open_shards(tmp_path, "train")).read(0).full_key == "c.tar/1"


def test_names_that_are_not_utf8_travel_through_all_indexes(tmp_path: Path) -> None:
    key = "caf\udce9"
    members = {f"{key}.t\udce9": b"one", f"{key}.txt": b"two", "x.txt": b"three"}
    write_tar(tmp_path / "a.tar", members, tarfile.GNU_FORMAT)
    (note,) = prepare_by_ratio(tmp_path, "1,0,0").notes
    assert note.startswith(r"names that are not UTF-8: 2 members, such as 'caf\udce9.t\udce9' at byte 0 of a.tar")
    shards = open_shards(tmp_path, "train")
    assert shards.index is not None and shards.index.segment("a.tar").keys() == [key, "x"]
    by_offsets = dataclasses.replace(shards, index=None)
    for opened in (shards, by_offsets):
        assert ShardReader(opened).read(0).parts == {"t\udce9": b"one", "txt": b"two"}
    parts = PartReader(tmp_path)
    assert parts.read(parts.find(f"{key}.t\udce9")) == parts.read(parts.find(f"a.tar/{key}.t\udce9")) == b"one"
    assert json.loads(json.dumps(shards.identity())) == json.loads(json.dumps(by_offsets.identity()))
    assert sorted(parts.part_names()) == sorted(members)
    (tmp_path / ".nv-meta/index.bridge").unlink()
    split = {"split_parts": {"train": ["a.tar"]}, "exclude": [f"a.tar/{key}"]}
    (tmp_path / ".nv-meta/split.json").write_text(json.dumps(split))
    (tmp_path / ".nv-meta/split.yaml").unlink()
    assert ShardReader(open_shards(tmp_path, "train")).read(0).key == "x"


def test_what_does_not_fit_or_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    for setting, told in ({"num_workers": 0}, "num_workers=0"), ({"exclude": "("}, r"exclude '\(' is not a regular"):
        with pytest.raises(ConfigError, match=told):
            PrepareConfig(**setting)  # type: ignore[arg-type]
    write_tar(tmp_path / "a.tar", {"1.txt": b"", "2.txt": b""})
    (tmp_path / ".nv-meta").write_text("a file")
    with pytest.raises(DatasetError, match=f"{tmp_path}: cannot be written to"):
        prepare_by_ratio(tmp_path)
    (tmp_path / ".nv-meta").unlink()
    (tmp_path / "a.tar.idx").unlink()
    (tmp_path / "a.tar.idx").mkdir()
    with pytest.raises(DatasetError, match=r"cannot be written to: .*a\.tar\.idx"):
        prepare_by_ratio(tmp_path)
    (tmp_path / "a.tar.idx").rmdir()
    prepare_by_ratio(tmp_path)
    (tmp_path / ".nv-meta/.info.json").write_text('{"shard_counts": {"a.tar": 3}}')
    with pytest.raises(DatasetError, match=r"a\.tar: has 2 samples, but \.nv-meta says 3"):
        refresh_index(tmp_path, PrepareConfig(num_workers=1))


def test_a_data_set_with_digests_keeps_them_when_a_shard_is_added(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path, "1,0,0", digest=True)
    write_tar(tmp_path / "data-000004.tar", {"new.txt": b"new"})
    for rescan in (False, True):
        assert prepare_by_ratio(tmp_path, "1,0,0", rescan=rescan).num_scanned == (5 if rescan else 1)
        index = open_shards(tmp_path, "train").index
        assert index is not None and index.has_digests is not rescan


def test_a_shard_that_is_added_or_changed_replaces_only_its_rows_and_metadata_of_media(tmp_path: Path) -> None:
    """What comes of it is what one preparation of all would have written, wherever the shards keep their numbers."""
    grown = tmp_path / "grown"
    image = picture(size=(3, 2))
    for number in range(12):
        write_tar(grown / f"{number:02d}.tar", {f"{number}{part}.png": image for part in "abc"})
    prepare_by_ratio(grown)
    prepare_media(grown, MediaRule("EXTENSION"))
    write_tar(grown / "04.tar", {"4a.png": image, "4x.png": image})
    write_tar(grown / "12.tar", {"12a.png": image})
    assert prepare_by_ratio(grown).num_scanned == 2
    rows = rows_of(grown)
    keys = {key for key, _, _ in rows["media_metadata"]}
    assert keys == {f"{number}{part}.png" for number in range(12) for part in "abc"} - {"4b.png", "4c.png"}
    assert {name for name, *_ in rows["bridge_media_seen"]} == {f"{n:02d}.tar" for n in range(12) if n != 4}
    done = prepare_media(grown, MediaRule("EXTENSION"))
    assert (done.num_stored, done.num_seen, done.num_unchanged) == (36, 2, 11)
    copy_unprepared(grown, tmp_path / "whole")
    prepare_by_ratio(tmp_path / "whole")
    prepare_media(tmp_path / "whole", MediaRule("EXTENSION"))
    assert_same_indexes(grown, tmp_path / "whole")


def test_a_database_that_is_not_as_we_write_it_is_written_anew(tmp_path: Path) -> None:
    write_shards(tmp_path / "a", num_shards=12)
    prepare_by_ratio(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with contextlib.closing(sqlite3.connect(tmp_path / "a/.nv-meta/index.sqlite")) as db:
        db.execute("DELETE FROM samples WHERE sample_key = '000003'")
        db.commit()
    damaged = bytearray((tmp_path / "b/.nv-meta/index.sqlite").read_bytes())
    damaged[4096:20480] = bytes(16384)
    (tmp_path / "b/.nv-meta/index.sqlite").write_bytes(damaged)
    for name in "ab":
        write_tar(tmp_path / name / "z.tar", {"z.txt": b"z"})
        assert prepare_by_ratio(tmp_path / name).num_scanned == 1
        assert len(rows_of(tmp_path / name)["samples"]) == 61
