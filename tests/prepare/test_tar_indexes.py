import contextlib
import dataclasses
import functools
import io
import json
import os
import shutil
import signal
import sqlite3
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from PIL import Image

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.prepare import MediaRule, prepare_media
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import PrepareConfig, prepare, write_indexes
from bridge_data.shards import ShardReader, open_shards
from bridge_data.shards.sample_lookup import PartReader
from tests.prepare.killed import in_child
from tests.prepare.same_indexes import assert_same_indexes, copy_unprepared, rows_of
from tests.shards.tars import prepare_by_ratio, write_shards, write_tar


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


def test_only_what_is_new_or_changed_is_scanned(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path, "1,0,0")
    write_tar(tmp_path / "data-000001.tar", {"new/1.txt": b"one", "new/2.txt": b"two"})
    write_tar(tmp_path / "a-first.tar", {"first.txt": b"first"})
    (tmp_path / "data-000003.tar").unlink()
    found = prepare_by_ratio(tmp_path, "1,0,0")
    assert found.num_scanned == 2
    assert found.shard_counts == {"a-first.tar": 1, "data-000000.tar": 5, "data-000001.tar": 2, "data-000002.tar": 5}
    samples = ShardReader(open_shards(tmp_path, "train"))
    assert [samples.read(index).key for index in range(9)] == [
        "first",
        *[f"{number:06d}" for number in range(5)],
        "new/1",
        "new/2",
        "000010",
    ]


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


def test_the_tar_index_of_a_shard_without_samples_is_the_same_when_it_is_written_again(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"__meta__/readme": b"none"})
    write_tar(tmp_path / "b.tar", {"1.txt": b"one"})
    prepare_by_ratio(tmp_path)
    content = (tmp_path / "a.tar.idx").read_bytes()
    (tmp_path / "a.tar.idx").unlink()
    prepare_by_ratio(tmp_path)
    assert (tmp_path / "a.tar.idx").read_bytes() == content == (1024).to_bytes(8, "little")


def test_a_tar_index_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"one"})
    prepare_by_ratio(tmp_path)
    (tmp_path / "a.tar.idx").unlink()
    (tmp_path / "a.tar.idx").mkdir()
    with pytest.raises(DatasetError, match=r"cannot be written to: .*a\.tar\.idx"):
        prepare_by_ratio(tmp_path)


def test_a_shard_that_is_gone_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path)
    (tmp_path / "data-000001.tar").unlink()
    with pytest.raises(DatasetError, match=r"data-000001\.tar: was prepared, and is gone\. Restore it"):
        write_indexes(tmp_path, [f"data-00000{number}.tar" for number in range(4)], PrepareConfig())


def test_a_touched_shard_is_scanned_again(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path)
    os.utime(tmp_path / "data-000002.tar", ns=(1, 1))
    assert prepare_by_ratio(tmp_path).num_scanned == 1


@pytest.mark.parametrize("name", ["index.sqlite", "index.uuid", "index.bridge"])
def test_a_lost_file_is_written_again(tmp_path: Path, name: str) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path)
    (tmp_path / ".nv-meta" / name).unlink()
    assert prepare_by_ratio(tmp_path).num_scanned == (4 if name == "index.bridge" else 0)
    assert (tmp_path / ".nv-meta" / name).is_file()
    assert open_shards(tmp_path, "train").index is not None


def test_a_lost_tar_index_is_written_from_ours(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path)
    path = tmp_path / "data-000001.tar.idx"
    content = path.read_bytes()
    path.unlink()
    assert prepare_by_ratio(tmp_path).num_scanned == 0
    assert path.read_bytes() == content


def test_all_faults_are_reported_at_once_and_nothing_is_replaced(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path)
    before = state_of(tmp_path)
    (tmp_path / "data-000001.tar").write_bytes(b"rubbish")
    path = tmp_path / "data-000003.tar"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DatasetError) as caught:
        prepare_by_ratio(tmp_path)
    message = str(caught.value)
    assert message.startswith("2 of 4 shards cannot be used:\n")
    assert "data-000001.tar: no readable tar header" in message
    assert "data-000003.tar: " in message
    assert state_of(tmp_path) == before


def test_keys_in_several_shards_are_a_note_each_time(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"a1", "2.txt": b"a2"})
    write_tar(tmp_path / "b.tar", {"2.txt": b"b2", "3.txt": b"b3"})
    write_tar(tmp_path / "c.tar", {"2.txt": b"c2"})
    for _ in range(2):  # scanned, and then unchanged
        (note,) = prepare_by_ratio(tmp_path, "1,0,0").notes
        assert note.startswith("1 key occurs in several shards, such as '2' in a.tar and c.tar and 1 more: ")
        assert "SHARD/KEY" in note and "--fix-duplicates" in note
    reader = ShardReader(open_shards(tmp_path, "train"))
    texts = {sample.full_key: sample.parts["txt"] for sample in map(reader.read, range(5))}
    assert texts == {f"{text[:1]}.tar/{text[1:]}": text.encode() for text in ("a1", "a2", "b2", "b3", "c2")}


def test_a_preparation_that_fails_leaves_no_folder_and_an_older_one_whole(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b""})
    (tmp_path / "b.tar").write_bytes(b"no tar")
    with pytest.raises(DatasetError, match=r"b\.tar"):
        prepare_by_ratio(tmp_path)
    assert not (tmp_path / ".nv-meta").exists()
    write_tar(tmp_path / "b.tar", {"2.txt": b""})
    prepare_by_ratio(tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / ".nv-meta").iterdir()}
    (tmp_path / "b.tar").write_bytes(b"no tar")
    with pytest.raises(DatasetError, match=r"b\.tar"):
        prepare_by_ratio(tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / ".nv-meta").iterdir()} == before


@pytest.mark.parametrize("was_prepared", [False, True])
def test_killed_while_it_scans_it_leaves_what_was_there(tmp_path: Path, was_prepared: bool) -> None:
    root, whole = tmp_path / "killed", tmp_path / "whole"
    write_shards(root, num_shards=6)
    if was_prepared:
        prepare_by_ratio(root)
        for path in root.glob("*.tar"):
            os.utime(path)
    copy_unprepared(root, whole)
    before = state_of(root) if was_prepared else {}

    def die(done: int, total: int | None) -> None:
        if done == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    split = functools.partial(split_by_ratio, ratio=parse_ratio("8,1,1"))
    action = functools.partial(prepare, root, split, PrepareConfig(num_workers=1), on_progress=die)
    assert in_child(action) == -signal.SIGKILL
    assert (root / ".nv-meta").exists() == was_prepared
    assert before.items() <= (state_of(root) if was_prepared else {}).items()
    prepare_by_ratio(root)
    prepare_by_ratio(whole)
    assert_same_indexes(root, whole)
    assert not list(root.rglob(".*.tmp"))


def test_shards_without_samples_are_a_note_unless_all_are(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {})
    write_tar(tmp_path / "b.tar", {"folder/": b""})
    with pytest.raises(DatasetError, match=r"there are no samples; without samples: 2 shards, such as a\.tar"):
        prepare_by_ratio(tmp_path)
    write_tar(tmp_path / "c.tar", {"1.txt": b"one"})
    found = prepare_by_ratio(tmp_path, "1,0,0")
    assert found.shard_counts == {"a.tar": 0, "b.tar": 0, "c.tar": 1}
    assert found.notes == ("without samples: 2 shards, such as a.tar with 0 members",)
    shards = open_shards(tmp_path, "train")
    assert [ShardReader(shards).read(0).full_key] == ["c.tar/1"]


def test_names_that_are_not_utf8_travel_through_all_indexes(tmp_path: Path) -> None:
    key = "caf\udce9"
    write_tar(
        tmp_path / "a.tar", {f"{key}.t\udce9": b"one", f"{key}.txt": b"two", "x.txt": b"three"}, tarfile.GNU_FORMAT
    )
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
    assert sorted(parts.part_names()) == sorted([f"{key}.t\udce9", f"{key}.txt", "x.txt"])
    (tmp_path / ".nv-meta/index.bridge").unlink()
    (tmp_path / ".nv-meta/split.json").write_text(
        json.dumps({"split_parts": {"train": ["a.tar"]}, "exclude": [f"a.tar/{key}"]})
    )
    (tmp_path / ".nv-meta/split.yaml").unlink()
    assert [ShardReader(open_shards(tmp_path, "train")).read(0).key] == ["x"]


def test_another_number_of_samples_than_expected(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"", "2.txt": b""})
    with pytest.raises(DatasetError, match=r"a\.tar: has 2 samples, but \.nv-meta says 3"):
        write_indexes(tmp_path, ["a.tar"], PrepareConfig(num_workers=1), expected={"a.tar": 3})


def test_progress_and_notes(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"", "README": b""})
    write_tar(tmp_path / "b.tar", {"2.txt": b"", "3.txt": b""})
    seen: list[tuple[int, int]] = []
    config = PrepareConfig(num_workers=1)
    found = write_indexes(tmp_path, ["a.tar", "b.tar"], config, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert len(found.notes) == 1
    assert "1 members, such as 'README'" in found.notes[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    write_shards(tmp_path)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(DatasetError, match="cannot be written to"):
            prepare_by_ratio(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_metadata_in_the_place_of_a_folder(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / ".nv-meta").write_text("a file")
    with pytest.raises(DatasetError, match=f"{tmp_path}: cannot be written to"):
        prepare_by_ratio(tmp_path)


def test_wrong_settings() -> None:
    with pytest.raises(ConfigError, match="num_workers=0"):
        PrepareConfig(num_workers=0)
    with pytest.raises(ConfigError, match=r"exclude '\(' is not a regular expression"):
        PrepareConfig(exclude="(")


def test_a_data_set_with_digests_keeps_them_when_a_shard_is_added(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path, "1,0,0", digest=True)
    write_tar(tmp_path / "data-000004.tar", {"new.txt": b"new"})
    assert prepare_by_ratio(tmp_path, "1,0,0").num_scanned == 1
    index = open_shards(tmp_path, "train").index
    assert index is not None and index.has_digests
    prepare_by_ratio(tmp_path, "1,0,0", rescan=True)
    index = open_shards(tmp_path, "train").index
    assert index is not None and not index.has_digests


def test_a_shard_that_is_added_or_changed_replaces_only_its_rows(tmp_path: Path) -> None:
    """What comes of it is what one preparation of all would have written, wherever the shards keep their numbers."""
    write_shards(tmp_path / "grown", num_shards=12)
    prepare_by_ratio(tmp_path / "grown")
    write_tar(tmp_path / "grown/data-000012.tar", {"new/1.txt": b"one", "new/2.txt": b"two"})
    write_tar(tmp_path / "grown/data-000003.tar", {"other.json": b"{}", "000016.txt": b"16"})
    assert prepare_by_ratio(tmp_path / "grown").num_scanned == 2
    copy_unprepared(tmp_path / "grown", tmp_path / "whole")
    prepare_by_ratio(tmp_path / "whole")
    assert_same_indexes(tmp_path / "grown", tmp_path / "whole")


def test_shards_keep_their_numbers_when_one_comes_before_them(tmp_path: Path) -> None:
    write_shards(tmp_path, num_shards=12)
    prepare_by_ratio(tmp_path)
    write_tar(tmp_path / "a-first.tar", {"first.txt": b"first"})
    found = prepare_by_ratio(tmp_path, "1,0,0")
    assert next(iter(found.shard_counts)) == "data-000000.tar" and list(found.shard_counts)[-1] == "a-first.tar"
    assert open_shards(tmp_path, "train").names[0] == "a-first.tar"  # the order of samples is that of the names
    parts = PartReader(tmp_path)
    assert parts.read(parts.find("first.txt")) == b"first"
    assert parts.read(parts.find("000030.json")) == b'{"caption": "c30"}'
    assert next(iter(prepare_by_ratio(tmp_path, "1,0,0", rescan=True).shard_counts)) == "a-first.tar"


def test_a_key_that_comes_twice_in_a_new_shard_is_found(tmp_path: Path) -> None:
    write_shards(tmp_path, num_shards=12)
    prepare_by_ratio(tmp_path)
    write_tar(tmp_path / "z.tar", {"000007.txt": b"again"})
    (note,) = prepare_by_ratio(tmp_path).notes
    assert note.startswith("1 key occurs in several shards, such as '000007' in data-000001.tar and z.tar")


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


def test_metadata_of_media_are_kept_where_the_media_are_as_before(tmp_path: Path) -> None:
    image = io.BytesIO()
    Image.new("RGB", (3, 2)).save(image, "png")
    for number in range(12):
        write_tar(tmp_path / f"{number:02d}.tar", {f"{number}{part}.png": image.getvalue() for part in "abc"})
    prepare_by_ratio(tmp_path)
    prepare_media(tmp_path, MediaRule("EXTENSION"))
    write_tar(tmp_path / "04.tar", {"4a.png": image.getvalue(), "4x.png": image.getvalue()})
    write_tar(tmp_path / "12.tar", {"12a.png": image.getvalue()})
    assert prepare_by_ratio(tmp_path).num_scanned == 2
    rows = rows_of(tmp_path)
    keys = {key for key, _, _ in rows["media_metadata"]}
    assert keys == {f"{number}{part}.png" for number in range(12) for part in "abc"} - {"4b.png", "4c.png"}
    assert {name for name, *_ in rows["bridge_media_seen"]} == {f"{n:02d}.tar" for n in range(12) if n != 4}
    done = prepare_media(tmp_path, MediaRule("EXTENSION"))
    assert (done.num_stored, done.num_seen, done.num_unchanged) == (36, 2, 11)
