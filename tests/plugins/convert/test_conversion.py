"""A conversion writes the same files for any number of processes and after any interruption, and tells all that is
broken."""

import gzip
import io
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from PIL import Image, ImageOps

from bridge_data.plugins.convert import conversion, convert_command
from tests.cli.runner import run_command
from tests.data.tars import write_tar
from tests.decode.pictures import picture as any_picture
from tests.decode.pictures import with_orientation
from tests.plugins.convert.originals import (
    EXPECTED,
    NUM,
    captioned_mds,
    captions_and_pictures,
    convert,
    converted,
    picture,
    picture_name,
    rows,
    save_to_disk,
    table_of,
    write_arrow,
    write_coco,
    write_csv,
    write_folder,
    write_jsonl,
    write_media,
    write_parquet,
)
from tests.prepare.test_shard_writer import contents, in_child, killed_at, tars

SPLIT = ("--split", "train=0.75,val=0.25", "--max-samples", 5)


def refused(source: Path, target: Path | str, *flags: object, told: str = "") -> None:
    """The conversion fails, says so, and leaves no data set."""
    result = convert(source, target, *flags)
    assert (result.exit_code, told in result.stderr) == (1, True), result.output
    assert not (Path(target) / ".nv-meta").exists()


def write_photos(folder: Path, records: list[dict[str, Any]] | None = None) -> Path:
    """Pictures, and lines about them."""
    return write_jsonl(write_media(folder) / "photos.jsonl", rows() if records is None else records)


SOURCES: dict[str, Callable[[Path], Path]] = {
    "folder": write_folder,
    "jsonl": write_photos,
    "csv": lambda folder: write_csv(write_media(folder) / "photos.csv", rows()),
    "tsv": lambda folder: write_csv(write_media(folder) / "photos.tsv", rows()),
    "parquet": lambda folder: write_parquet(folder / "photos.parquet"),
    "arrow": lambda folder: write_arrow(folder / "photos.arrow", table_of()),
    "feather": lambda folder: write_arrow(folder / "photos.feather", table_of(), is_file=True),
    "datasets": lambda folder: save_to_disk(folder, table_of()),
    "mds": captioned_mds,
    "webdataset": lambda folder: converted(write_folder(folder.with_name("raw")), folder, "--max-samples", 7),
}


@pytest.mark.parametrize("form", SOURCES)
def test_captions_in_three_languages_and_pictures_come_through_also_on_other_machines(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCES[form](tmp_path / "source")
    assert captions_and_pictures(converted(source, tmp_path / "out")) == EXPECTED
    parted = converted(source, tmp_path / "two", *SPLIT)
    assert sorted(captions_and_pictures(parted)) == sorted(EXPECTED)
    assert {len(samples) > 0 for samples in contents(parted).values()} == {True}
    monkeypatch.setattr(convert_command, "executor_named", lambda *_: Pickling())
    assert tars(converted(source, tmp_path / "sent", *SPLIT, "--executor", "ray")) == tars(parted)


@pytest.mark.processes
@pytest.mark.parametrize("form", ["folder", "parquet", "mds", "webdataset"])
@pytest.mark.parametrize("order", [(), ("--shuffle", 3)], ids=["in order", "shuffled"])
def test_any_number_of_processes_writes_the_same_files(form: str, order: tuple[object, ...], tmp_path: Path) -> None:
    source = SOURCES[form](tmp_path / "source")
    alone = converted(source, tmp_path / "1", *SPLIT, *order)
    parallel = converted(source, tmp_path / "3", *SPLIT, *order, "--num-workers", 3)
    assert tars(alone) == tars(parallel)
    found = [text for text, _ in captions_and_pictures(converted(source, tmp_path / "all", *order))]
    assert sorted(found) == sorted(text for text, _ in EXPECTED)
    assert (found == [text for text, _ in EXPECTED]) is not bool(order)


class Pickling:
    """Sends function and arguments as other machines get them."""

    num_workers = 2

    def map(self, function: Callable[[Any], Any], arguments: Iterable[Any], *, what: str) -> Iterator[Any]:
        sent = cloudpickle.dumps(function)
        for argument in arguments:
            yield pickle.loads(cloudpickle.dumps(pickle.loads(sent)(argument)))


@pytest.mark.processes
@pytest.mark.parametrize("form", ["folder", "parquet"])
def test_killed_at_any_step_and_resumed(form: str, tmp_path: Path) -> None:
    source = SOURCES[form](tmp_path / "source")
    whole = converted(source, tmp_path / "whole", *SPLIT, "--shuffle", 1)
    for step in (1, 9, 25):
        folder = tmp_path / f"killed{step}"
        action = partial(converted, source, folder, *SPLIT, "--shuffle", 1)
        assert in_child(partial(killed_at, step, action)) == -signal.SIGKILL
        assert tars(folder).items() <= tars(whole).items()
        assert not (folder / ".nv-meta/index.bridge").exists() or step == 25
        converted(source, folder, *SPLIT, "--shuffle", 1)
        assert tars(folder) == tars(whole) and contents(folder) == contents(whole)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("form", ["folder", "jsonl", "parquet", "mds", "webdataset"])
def test_killed_at_random_moments_with_its_processes(form: str, tmp_path: Path) -> None:
    source = SOURCES[form](tmp_path / "source")
    flags = [*map(str, SPLIT), "--num-workers", "2", "--no-progress", "--non-interactive"]
    command = [sys.executable, "-m", "bridge_data.cli", "convert", str(source)]
    started = time.monotonic()
    subprocess.run([*command, str(tmp_path / "whole"), *flags], check=True, capture_output=True)
    seconds, rng, num_killed = time.monotonic() - started, random.Random(form), 0
    folder = tmp_path / "0"
    for attempt in range(100):
        process = subprocess.Popen([*command, str(folder), *flags], stdout=-3, stderr=-3, start_new_session=True)
        try:
            process.wait(rng.uniform(0.3, 1.1) * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert tars(folder).items() <= tars(tmp_path / "whole").items()
        num_killed += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            assert contents(folder) == contents(tmp_path / "whole")
            folder = tmp_path / str(attempt + 1)
            if num_killed >= 10:
                break
    assert num_killed >= 10


def test_the_same_command_again_does_nothing(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source")
    target = converted(source, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*")}
    result = convert(source, target)
    assert result.exit_code == 0 and "was converted by the same command already" in result.stderr
    assert {path: path.stat().st_mtime_ns for path in target.rglob("*")} == before


def test_a_source_that_has_changed_is_not_mixed_with_what_was_made_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_folder(tmp_path / "source")
    target = converted(source, tmp_path / "out")
    (source / "000.txt").write_text("another caption")
    assert "holds a data set already" in convert(source, target).stderr
    assert in_child(partial(killed_at, 9, partial(converted, source, tmp_path / "half", *SPLIT))) == -signal.SIGKILL
    made = tars(tmp_path / "half")
    (source / "001.txt").write_text("another caption too")
    result = convert(source, tmp_path / "half", *SPLIT)
    assert result.exit_code == 0 and made and f"without its {len(made)} shard" in result.stderr
    assert tars(tmp_path / "half") == tars(converted(source, tmp_path / "good", *SPLIT))

    def change(*_: object) -> None:
        (source / "003.txt").write_text("changed")

    monkeypatch.setattr(conversion, "check_part", change)
    refused(source, tmp_path / "meanwhile", told="have changed since the conversion started")


@pytest.mark.parametrize("flags", [(), ("--force-overwrite",)])
def test_corrected_records_convert_to_the_same_folder_and_files_of_others_stay(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    records, target = rows(), tmp_path / "out"
    target.mkdir()
    (target / "notes.md").write_text("mine")
    wrong = write_photos(tmp_path / "source", [*records[:-1], records[-1] | {"image": "missing.png"}])
    for more in ((), (), ("--unchecked",)):
        refused(wrong, target, *SPLIT, "--max-samples", 3, *more, *flags)
        assert tars(target)
    right = write_photos(tmp_path / "source")
    own = write_tar(target / "val-000009.tar", {"a.txt": b"mine"})
    refused(right, target, *SPLIT, told=own.name)  # it would become part of them
    own.unlink()
    converted(right, target, *SPLIT)
    assert tars(target) == tars(converted(right, tmp_path / "good", *SPLIT))
    assert (target / "notes.md").read_text() == "mine" and not (target / "broken.jsonl").exists()


@pytest.mark.parametrize("flags", [(), ("--force-overwrite",)])
def test_tars_that_no_conversion_made_are_not_taken_into_the_data_set(flags: tuple[str, ...], tmp_path: Path) -> None:
    own = write_tar(tmp_path / "out/train-000000.tar", {"a.png": b"mine", "a.txt": b"mine"})
    refused(write_folder(tmp_path / "source"), tmp_path / "out", *flags, told=own.name)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [own.name]


def broken_rows(folder: Path) -> Path:
    """Six of the rows are broken, each in its own way."""
    records = rows()
    for number, image in ((3, "\ud800.png"), (5, "../../etc/passwd.png"), (9, "/etc/hostname.png")):
        records[number]["image"] = image
    records[20]["image"] = "https://example.org/a.png"
    source = write_photos(folder, records)
    (folder / picture_name(11)).write_bytes(b"\x89PNG\r\n no picture")
    (folder / picture_name(12)).write_bytes(b"")
    return source


def test_all_that_is_broken_is_listed_or_left_out_on_demand(tmp_path: Path) -> None:
    source = broken_rows(tmp_path / "source")
    (tmp_path.parent / "etc").mkdir(exist_ok=True)
    (tmp_path.parent / "etc/passwd.png").write_bytes(picture(0))
    refused(source, tmp_path / "out", *SPLIT, told="6 records are broken")
    lines = [json.loads(line) for line in (tmp_path / "out/broken.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines] == [3, 5, 9, 11, 12, 20]
    reasons = ("surrogates not allowed", "leads out of", "No such file", "not a readable image", "", "not downloaded")
    for line, reason in zip(lines, reasons, strict=True):
        assert reason in line["reason"] and "photos.jsonl, record" in line["where"]
    result = convert(source, tmp_path / "rest", "--skip-broken")
    assert result.exit_code == 0 and "left out as broken: 6 records" in result.stderr
    assert len(captions_and_pictures(tmp_path / "rest")) == NUM - 6
    assert len((tmp_path / "rest/broken.jsonl").read_text().splitlines()) == 6


def test_the_same_key_twice_is_listed_for_each(tmp_path: Path) -> None:
    records = rows()
    for number, record in enumerate(records):
        record["name"] = f"key{number // 2 if number < 6 else number}"
    source = write_photos(tmp_path / "source", records)
    result = convert(source, tmp_path / "out", "--key", "name")
    assert result.exit_code == 1 and "3 records are broken" in result.stderr
    assert "its key 'key0' is that of another sample" in result.stderr
    reasons = [json.loads(line)["reason"] for line in (tmp_path / "out/broken.jsonl").read_text().splitlines()]
    assert [reason.partition(" is that of")[0] for reason in reasons] == [
        f"its key 'key{number}'" for number in range(3)
    ]
    converted(source, tmp_path / "out", "--key", "name", "--skip-broken")
    assert [key for key, _ in contents(tmp_path / "out")["train"]][:4] == ["key0", "key1", "key2", "key6"]


def test_samples_are_chosen_by_keys_and_by_parts(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source")
    (source / "002.txt").unlink()
    keys = tmp_path / "keys"
    keys.write_text("001\n002\n007\n")
    result = convert(source, tmp_path / "out", "--keys", keys, "--require-parts", "txt")
    assert result.exit_code == 0 and f"{NUM - 2} samples" in result.stderr
    assert [key for key, _ in contents(tmp_path / "out")["train"]] == ["001", "007"]


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ({"001.csv": "of the sample"}, None),
        ({"captions.jsonl": "{}"}, "captions.jsonl"),
        ({"list.csv": "image,caption"}, "list.csv"),
        ({"stray.parquet": ""}, "--format parquet"),
        ({"old.tar": ""}, "--format webdataset"),
    ],
)
def test_a_folder_of_media_and_tables_is_converted_only_if_it_is_said_which(
    tmp_path: Path, others: dict[str, str], named: str | None
) -> None:
    source = write_folder(tmp_path / "source", 4)
    for name, content in others.items():
        (source / name).write_text(content)
    result = convert(source, tmp_path / "out")
    if named is None:
        assert "folder of files, 4 records" in result.output
    else:
        assert result.exit_code == 1 and named in result.stderr and "--format folder" in result.stderr
        assert not (tmp_path / "out").exists()
        refused(source, tmp_path / "out", "--include", "*.png", told="--include")
        assert "folder of files" in convert(source, tmp_path / "out", "--format", "folder").output


def test_coco_captions_come_with_their_pictures(tmp_path: Path) -> None:
    source = write_coco(write_media(tmp_path / "source") / "captions.json")
    result = convert(source, tmp_path / "out")
    assert result.exit_code == 0 and "1 image without captions" in result.stderr
    assert captions_and_pictures(tmp_path / "out") == EXPECTED[:-1]
    _, parts = contents(tmp_path / "out")["train"][0]
    assert len(json.loads(parts["json"])["captions"]) == 2


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "lines.json",
            '{"images": ["a.jpg"], "text": "one"}\n\n{"images": [], "text": "two"}\n',
            "JSON lines, 2 records",
        ),
        ("c4.00000-of-00001.json", '\ufeff{"text": "one"}\n{"text": "two"}\n', "JSON lines, 2 records"),
        ("one.json", '{"images": ["a.jpg"], "text": "one"}\n', "--format jsonl"),
        (
            "instances.json",
            {"images": [{"id": 0, "file_name": "a.jpg"}], "annotations": [{"image_id": 0, "bbox": []}]},
            "bbox",
        ),
        ("packed.json", gzip.compress(b'{"text": "one"}\n', mtime=0), "gunzip -k"),
    ],
)
def test_a_json_file_is_taken_for_what_it_holds(tmp_path: Path, name: str, content: Any, told: str) -> None:
    source = write_media(tmp_path / "source") / name
    picture = next(source.parent.glob("*.jpg")).name
    text = content if isinstance(content, bytes | str) else json.dumps(content)
    source.write_bytes(text if isinstance(text, bytes) else text.replace("a.jpg", picture).encode())
    result = convert(source, tmp_path / "out")
    assert told in result.output
    assert (result.exit_code == 0) == ("records" in told), result.output
    assert result.exit_code == 0 or source.name in result.stderr


def test_links_out_of_the_media_root_are_followed_if_that_is_asked(tmp_path: Path) -> None:
    """As in a snapshot of the hub's cache, whose files are links to those of its blobs."""
    blobs, snapshot = write_media(tmp_path / "blobs"), tmp_path / "snapshot"
    snapshot.mkdir()
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(blob)
    write_jsonl(snapshot / "rows.jsonl", rows())
    refused(snapshot / "rows.jsonl", tmp_path / "out", told="--follow-links")
    made = converted(snapshot / "rows.jsonl", tmp_path / "out", "--follow-links")
    assert captions_and_pictures(made) == EXPECTED
    write_jsonl(snapshot / "others.jsonl", [{**row, "image": f"../blobs/{row['image']}"} for row in rows()])
    refused(snapshot / "others.jsonl", tmp_path / "out2", "--follow-links", told="give a --media-root that holds it")


def test_metadata_of_media_beside_the_files_do_not_make_them_a_folder_of_tars(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", 4)
    assert run_command("prepare", source, "--media", "extension", "--no-progress").exit_code == 0
    assert (source / ".nv-meta").is_dir()
    assert "folder of files, 4 records" in convert(source, tmp_path / "out").output
    result = run_command("info", source)
    assert result.exit_code == 1 and f"{source}: not a prepared data set" in result.stderr
    assert f"bridge-data convert {source} DST" in result.stderr and ".info.json" not in result.stderr


def test_equal_faults_are_one_line_and_the_folder_that_has_the_media_is_named(tmp_path: Path) -> None:
    write_media(tmp_path / "raw")
    source = tmp_path / "rows.jsonl"
    write_jsonl(source, rows())
    result = convert(source, tmp_path / "out")
    assert result.exit_code == 1 and result.stderr.count("cannot be read") == 1
    assert f"(and {len(rows()) - 1} like it)" in result.stderr
    assert f"give --media-root {os.path.relpath(tmp_path / 'raw')}, which has it" in result.stderr
    converted(source, tmp_path / "out", "--media-root", tmp_path / "raw")


def test_the_folder_of_media_beside_that_of_the_annotations_is_named(tmp_path: Path) -> None:
    write_media(tmp_path / "train2014")
    (tmp_path / "annotations").mkdir()
    source = write_jsonl(tmp_path / "annotations" / "rows.jsonl", rows())
    told = f"give --media-root {os.path.relpath(tmp_path / 'train2014')}, which has it"
    refused(source, tmp_path / "out", told=told)


def test_an_annotation_of_an_image_that_coco_does_not_list_is_a_broken_record(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(picture(1))
    annotations = [{"image_id": 1, "caption": "a cat"}, {"image_id": 9, "caption": "a dog"}]
    listed = {"images": [{"id": 1, "file_name": "0.png"}], "annotations": annotations}
    source = tmp_path / "coco.json"
    source.write_text(json.dumps(listed))
    refused(source, tmp_path / "refused", told="1 record is broken")
    assert len(contents(converted(source, tmp_path / "out", "--skip-broken"))["train"]) == 1
    (broken,) = map(json.loads, (tmp_path / "out" / "broken.jsonl").read_text().splitlines())
    assert "annotation at byte" in str(broken) and "image 9" in str(broken)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "MPO"])
def test_pictures_are_turned_as_their_exif_says_if_that_is_asked_for(kind: str, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    plain = any_picture((40, 24))
    for number in range(1, 9):
        name = f"raw/{number}.{'jpg' if kind in ('JPEG', 'MPO') else kind.lower()}"
        (tmp_path / name).write_bytes(with_orientation(plain, kind, number, icc_profile=b"a profile"))
    for setting in ("ignore", "apply"):
        target = tmp_path / setting
        result = convert(tmp_path / "raw", target, "--sample-type", "crude", "--orientation", setting)
        assert result.exit_code == 0, result.output
        for source in (tmp_path / "raw").iterdir():
            stored = tar_members(target)[source.name]
            if setting == "ignore" or source.stem == "1":
                assert stored == source.read_bytes()
                continue
            turned, expected = Image.open(io.BytesIO(stored)), ImageOps.exif_transpose(Image.open(source))
            assert (turned.size, turned.getexif().get(0x0112, 1)) == (expected.size, 1)
            assert turned.info["icc_profile"] == b"a profile"
            difference = np.asarray(turned.convert("RGB"), int) - np.asarray(expected.convert("RGB"), int)
            assert np.abs(difference).mean() < (1 if kind == "PNG" else 12)


def tar_members(folder: Path) -> dict[str, bytes]:
    members = {}
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as tar:
            members |= {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    return members
