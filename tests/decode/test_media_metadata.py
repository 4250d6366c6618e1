import pickle
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bridge_data.decode.media_kinds import ending_of, kind_of_ending, known_by_content
from bridge_data.decode.media_metadata import AVMetadata, ImageMetadata, MediaIndex, encode_metadata
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.plugins.convert.media_files import check_part


def write_table(root: Path, rows: list[tuple[str, str, str]]) -> Path:
    """The table that Energon writes."""
    (root / ".nv-meta").mkdir()
    with sqlite3.connect(root / ".nv-meta/index.sqlite") as db:
        db.execute("CREATE TABLE media_metadata (entry_key TEXT PRIMARY KEY, metadata_type TEXT, metadata_json TEXT)")
        db.executemany("INSERT INTO media_metadata VALUES (?, ?, ?)", rows)
    return root


IMAGE = ("a/b.jpg", "image", '{"width":3,"height":2,"format":"JPEG","mode":"RGB"}')
CLIP = ("c.wav", "av", '{"audio_duration":1.5,"audio_channels":2}')


def test_metadata_are_found_by_key_in_any_thread_and_process(tmp_path: Path) -> None:
    index = MediaIndex.open(write_table(tmp_path, [IMAGE, CLIP]))
    with ThreadPoolExecutor(1) as thread:
        found = [index.get("a/b.jpg"), thread.submit(index.get, "a/b.jpg").result()]
    assert found == [ImageMetadata(width=3, height=2, format="JPEG", mode="RGB")] * 2
    assert pickle.loads(pickle.dumps(index)).get("c.wav") == AVMetadata(audio_duration=1.5, audio_channels=2)
    assert [encode_metadata(found[0]), encode_metadata(index.get("c.wav"))] == [IMAGE[2], CLIP[2]]
    with pytest.raises(SampleError, match=r"no media metadata of 'x.jpg'.*bridge-data prepare"):
        index.get("x.jpg")


def test_a_folder_without_metadata_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no media metadata; run `bridge-data prepare"):
        MediaIndex.open(tmp_path)
    database = tmp_path / ".nv-meta/index.sqlite"
    database.parent.mkdir()
    sqlite3.connect(database).execute("CREATE TABLE samples (a)").connection.close()
    with pytest.raises(ConfigError, match="has no media metadata yet"):
        MediaIndex.open(tmp_path)
    database.write_bytes(b"no database" * 100)
    with pytest.raises(DatasetError, match="cannot be read"):
        MediaIndex.open(tmp_path)


@pytest.mark.parametrize(
    "row", [("k", "smell", "{}"), ("k", "image", "{}"), ("k", "image", "{"), ("k", "av", '{"a":1}')]
)
def test_damaged_metadata_are_an_error(tmp_path: Path, row: tuple[str, str, str]) -> None:
    index = MediaIndex.open(write_table(tmp_path, [row]))
    with pytest.raises(DatasetError, match="'k' cannot be understood"):
        index.get("k")


@pytest.mark.parametrize(
    ("content", "ending", "kind"),
    [
        (b"qoif\0\0\0\1", "qoi", "image"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "jp2", "image"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "heic", "image"),
        (b"\xff\xf1\x50\x80", "aac", "av"),
        (b"FLV\x01\x05", "flv", "av"),
        (b"\0\0\x01\xba", "mpg", "av"),
    ],
)
def test_convert_and_decoders_agree(content: bytes, ending: str, kind: str) -> None:
    assert known_by_content(content) == (ending, kind) and ending_of(content) == ending
    assert kind_of_ending(ending) == ("image" if kind == "image" else "clip")
    assert check_part(ending, content) is not None  # which is no more than the beginning of one
