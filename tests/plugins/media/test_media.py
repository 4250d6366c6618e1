import gzip
import io
import os
import sqlite3
import warnings
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from bridge_data.decode.image import encoded_size
from bridge_data.decode.media_headers import extract
from bridge_data.decode.media_metadata import ImageMetadata, MediaIndex
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.plugins.media.media import prepare_media
from bridge_data.plugins.media.media_rule import MediaRule
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare, refresh_index
from tests.data.tars import prepare_by_ratio, write_tar
from tests.decode.pictures import with_orientation
from tests.prepare.files import FILES, METADATA, film, picture, sound, write_files

BY_EXTENSION, BY_HEADER = MediaRule("EXTENSION"), MediaRule("HEADER")


def write_shards(folder: Path) -> Path:
    """Two prepared shards of pictures, with a film in the second."""
    for shard in range(2):
        members = {f"s{shard}/{n}.{part}": picture(size=(8 + n, 6)) for n in range(3) for part in ("jpg", "left.png")}
        write_tar(folder / f"data-{shard}.tar", members | ({"s1/film.mp4": film()} if shard else {}))
    prepare(folder, partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
    return folder


def stored(root: Path) -> dict[str, tuple[str, str]]:
    with sqlite3.connect(root / ".nv-meta/index.sqlite") as db:
        return {key: (kind, text) for key, kind, text in db.execute("SELECT * FROM media_metadata")}


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_medium_of_a_folder_is_found_by_its_path(tmp_path: Path, num_workers: int) -> None:
    write_files(tmp_path, FILES)
    done = prepare_media(tmp_path, BY_HEADER, num_workers=num_workers)
    assert (done.num_stored, done.num_seen, done.num_unreadable) == (4, 5, 0)
    index = MediaIndex.open(tmp_path)
    assert {key: index.get(key) for key in stored(tmp_path)} == METADATA


@pytest.mark.parametrize(
    ("rule", "names", "num_unreadable"),
    [
        (BY_EXTENSION, {"a.png", "deep/b.JPG", "deep/c.wav"}, 1),  # IMG1.png is a sound
        (BY_HEADER, {"a.png", "deep/b.JPG", "deep/c.wav", "IMG1.png", "unnamed"}, 0),
        (MediaRule("GLOB", ("deep/*.jpg", "unn*", "img*.PNG")), {"deep/b.JPG", "unnamed", "IMG1.png"}, 0),
        (MediaRule("GLOB", ("*.wav",)), {"deep/c.wav"}, 0),
    ],
)
def test_the_rule_decides_by_names_or_headers(
    tmp_path: Path, rule: MediaRule, names: set[str], num_unreadable: int
) -> None:
    write_files(tmp_path, FILES | {"IMG1.png": sound(), "other.txt": b"?"})
    assert prepare_media(tmp_path, rule).num_unreadable == num_unreadable
    assert stored(tmp_path).keys() == names


@pytest.mark.parametrize("with_our_index", [True, False])
def test_parts_of_shards_are_found_by_their_names(tmp_path: Path, with_our_index: bool) -> None:
    write_shards(tmp_path)
    if not with_our_index:
        (tmp_path / ".nv-meta/index.bridge").unlink()
    done = prepare_media(tmp_path, BY_EXTENSION, num_workers=2)
    assert (done.num_stored, done.num_seen) == (13, 2)
    index = MediaIndex.open(tmp_path)
    assert index.get("s1/2.left.png") == ImageMetadata(width=10, height=6, format="PNG", mode="RGB")
    clip = index.get("s1/film.mp4")
    assert (clip.video_num_frames, clip.video_width, clip.video_height, clip.video_fps) == (10, 64, 48, 25.0)
    assert clip.video_duration == pytest.approx(0.4)
    assert (clip.audio_sample_rate, clip.audio_channels) == (44_100, 2)


def test_what_has_not_changed_is_not_opened_again_and_another_rule_adds(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    prepare_media(tmp_path, MediaRule("GLOB", ("*.png",)))
    assert prepare_media(tmp_path, MediaRule("GLOB", ("*.wav",))).num_stored == 2
    assert stored(tmp_path).keys() == {"a.png", "deep/c.wav"}
    with sqlite3.connect(tmp_path / ".nv-meta/index.sqlite") as db:
        filters = db.execute("SELECT strategy, patterns FROM media_filters").fetchall()
    assert filters == [("GLOB", "*.png"), ("GLOB", "*.wav")]
    prepare_media(tmp_path, BY_EXTENSION)
    (tmp_path / "a.png").write_bytes(picture(size=(100, 100)))
    (tmp_path / "deep/c.wav").unlink()
    (tmp_path / "new.png").write_bytes(picture())
    done = prepare_media(tmp_path, BY_EXTENSION)
    assert (done.num_seen, done.num_unchanged, done.num_stored) == (2, 1, 3)
    assert MediaIndex.open(tmp_path).get("a.png") == ImageMetadata(width=100, height=100, format="PNG", mode="RGB")
    assert stored(tmp_path).keys() == {"a.png", "deep/b.JPG", "new.png"}


def test_a_new_index_keeps_the_metadata_of_what_has_not_moved_and_looks_again_at_what_was_away(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_media(tmp_path, BY_EXTENSION)
    before = stored(tmp_path)
    (tmp_path / ".nv-meta/index.bridge").unlink()  # as if Energon had prepared it
    refresh_index(tmp_path)
    assert stored(tmp_path) == before
    assert prepare_media(tmp_path, BY_EXTENSION).num_unchanged == 2
    for source, target in (("data-1.tar", "away"), ("away", "data-1.tar")):
        (tmp_path / source).rename(tmp_path / target)
        prepare_by_ratio(tmp_path)
    assert stored(tmp_path).keys() == {key for key in before if key.startswith("s0/")}
    done = prepare_media(tmp_path, BY_EXTENSION)
    assert (done.num_seen, done.num_unchanged, stored(tmp_path)) == (1, 1, before)


def test_a_shard_that_was_replaced_before_it_was_indexed_is_looked_at_again(tmp_path: Path) -> None:
    write_shards(tmp_path)
    write_tar(tmp_path / "data-0.tar", {f"s0/{n}.jpg": picture(size=(90 + n, 6)) for n in (2, 1, 0)})
    prepare_media(tmp_path, BY_EXTENSION)  # by the headers of the new shard; the index is still that of the old one
    prepare_by_ratio(tmp_path)
    assert prepare_media(tmp_path, BY_EXTENSION).num_seen == 1
    media = MediaIndex.open(tmp_path)
    assert [media.get(f"s0/{n}.jpg").width for n in range(3)] == [90, 91, 92]


@pytest.mark.parametrize("damage", ["no database", "cut off"])
def test_a_damaged_database_is_replaced(tmp_path: Path, damage: str) -> None:
    members = {f"{n:05d}.jpg": picture() for n in range(300)}
    write_tar(tmp_path / "a.tar", members)
    prepare_by_ratio(tmp_path)
    prepare_media(tmp_path, BY_EXTENSION)
    database = tmp_path / ".nv-meta/index.sqlite"
    content = database.read_bytes()
    database.write_bytes(b"x" * len(content) if damage == "no database" else content[: len(content) // 2])
    with pytest.raises(DatasetError, match=r"index\.sqlite: cannot be read: .*; give --rescan"):
        prepare_by_ratio(tmp_path)
    (note,) = prepare_by_ratio(tmp_path, rescan=True).notes
    assert note.startswith("index.sqlite was damaged (") and note.endswith("prepare them again")
    assert prepare_media(tmp_path, BY_EXTENSION).num_stored == 300


def test_what_cannot_be_read_is_counted_and_named(tmp_path: Path) -> None:
    write_files(
        tmp_path, {"good.png": picture(), "bad.png": b"no picture", "cut.mp4": film()[:500], "cut.wav": b"RIFF"}
    )
    done = prepare_media(tmp_path, BY_EXTENSION)
    assert (done.num_stored, done.num_unreadable) == (1, 3)
    assert any("bad.png: not a readable image" in example for example in done.examples)
    assert any("cut.mp4: not a readable clip" in example for example in done.examples)


def test_a_failure_leaves_the_old_metadata(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_media(tmp_path, BY_EXTENSION)
    before, names = stored(tmp_path), sorted(os.listdir(tmp_path / ".nv-meta"))
    (tmp_path / "data-1.tar").write_bytes(b"x" * 1024)
    with pytest.raises(DatasetError, match=r"data-1\.tar"):
        prepare_media(tmp_path, BY_EXTENSION)
    assert (stored(tmp_path), sorted(os.listdir(tmp_path / ".nv-meta"))) == (before, names)


def test_compressed_shards_are_looked_at_too(tmp_path: Path) -> None:
    write_shards(tmp_path / "plain")
    (tmp_path / "packed").mkdir()
    for shard in range(2):
        data = (tmp_path / f"plain/data-{shard}.tar").read_bytes()
        (tmp_path / f"packed/data-{shard}.tar.gz").write_bytes(gzip.compress(data))
    prepare(tmp_path / "packed", partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
    for name in ("plain", "packed"):
        prepare_media(tmp_path / name, BY_EXTENSION)
    assert stored(tmp_path / "packed") == stored(tmp_path / "plain")


def test_no_medium_is_read_whole(tmp_path: Path) -> None:
    """Holes do not cost: a sound of 2 GB is looked at by its header and its end."""
    write_files(tmp_path, {"a.png": picture() + bytes(1000)})
    with open(tmp_path / "a.png", "r+b") as file:
        file.truncate(1 << 34)
    assert prepare_media(tmp_path, BY_EXTENSION).num_stored == 1


@pytest.mark.parametrize(
    ("files", "name", "message"),
    [
        ({}, "", "no file is seen as media"),
        ({"notes.txt": b""}, "", "no file is seen as media"),
        ({"a.tar": b""}, "", "holds tars and is not prepared; run `bridge-data prepare"),
        ({".nv-meta/.info.json": b'{"shard_counts": {}}'}, "", "has no index.sqlite; run `.* --tar-index"),
        ({}, "no", "there is none"),
        ({"a.jsonl": b"{}\n"}, "a.jsonl", "JSONL files and metadatasets hold no media"),
    ],
)
def test_what_has_no_media_is_an_error(tmp_path: Path, files: dict[str, bytes], name: str, message: str) -> None:
    write_files(tmp_path, files)
    with pytest.raises(ConfigError, match=message):
        prepare_media(tmp_path / name, BY_EXTENSION)


def test_one_flag_makes_a_rule(tmp_path: Path) -> None:
    assert MediaRule.parse("header") == BY_HEADER and MediaRule.parse("extension") == BY_EXTENSION
    assert MediaRule.parse("*.jpg, a/*.png") == MediaRule("GLOB", ("*.jpg", "a/*.png"))
    for patterns in ("", "*.jpg,", ",", "photos"):
        with pytest.raises(ConfigError, match="header"):
            MediaRule.parse(patterns)


@pytest.mark.parametrize(
    ("format", "mode"),
    [("PNG", "RGBA"), ("PNG", "P"), ("PNG", "I;16"), ("JPEG", "CMYK"), ("GIF", "L"), ("ICO", "RGBA")],
)
def test_an_image_is_what_pillow_says(format: str, mode: str) -> None:
    data = picture(format, (16, 16), mode)
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        expected = ImageMetadata(width=16, height=16, format=format, mode=image.mode)
    assert extract("image", io.BytesIO(data), "a") == expected


def test_no_pixel_is_decoded_and_large_images_are_measured_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    data = picture("PNG", (30, 20))
    assert extract("image", io.BytesIO(data[:60]), "a") == ImageMetadata(width=30, height=20, format="PNG", mode="RGB")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert extract("image", io.BytesIO(data), "a") is not None
    with pytest.raises(SampleError, match=r"b\.png: not a readable image: .*exceeds limit"):
        extract("image", io.BytesIO(picture(size=(300, 200))), "b.png")


def test_metadata_that_go_by_key_are_not_kept_when_keys_are_shared(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.png": picture()})
    prepare_by_ratio(tmp_path)
    assert prepare_media(tmp_path, MediaRule.parse("extension")).num_stored == 1
    write_tar(tmp_path / "b.tar", {"1.png": picture()})
    assert "the metadata of 1 media files, which go by key, were not kept" in prepare_by_ratio(tmp_path).notes
    with pytest.raises(DatasetError, match=r"1 key occurs .* '1' in a\.tar and b\.tar, but media metadata go by key"):
        prepare_media(tmp_path, MediaRule.parse("extension"))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_sizes_are_those_before_or_after_exif_orientation(kind: str, tmp_path: Path) -> None:
    name = f"a.{'jpg' if kind == 'JPEG' else kind.lower()}"
    data = with_orientation(Image.new("RGB", (40, 20)), kind, 6)
    write_files(tmp_path, {name: data})
    for setting in ("ignore", "apply", "ignore"):
        prepare_media(tmp_path, MediaRule("EXTENSION", orientation=setting))
        found = MediaIndex.open(tmp_path).get(name)
        assert (found.height, found.width) == encoded_size(data, upright=setting == "apply")
