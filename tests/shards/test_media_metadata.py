import pickle
import sqlite3
import threading
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.shards.media_metadata import AVMetadata, ImageMetadata, MediaIndex, decode_metadata, encode_metadata


def write_table(root: Path, rows: list[tuple[str, str, str]]) -> Path:
    """The table that Energon writes."""
    (root / ".nv-meta").mkdir()
    with sqlite3.connect(root / ".nv-meta/index.sqlite") as db:
        db.execute("CREATE TABLE media_metadata (entry_key TEXT PRIMARY KEY, metadata_type TEXT, metadata_json TEXT)")
        db.executemany("INSERT INTO media_metadata VALUES (?, ?, ?)", rows)
    return root


IMAGE = ("a/b.jpg", "image", '{"width":3,"height":2,"format":"JPEG","mode":"RGB"}')
CLIP = ("c.wav", "av", '{"audio_duration":1.5,"audio_channels":2}')


def test_metadata_are_found_by_key(tmp_path: Path) -> None:
    index = MediaIndex.open(write_table(tmp_path, [IMAGE, CLIP]))
    assert index.get("a/b.jpg") == ImageMetadata(width=3, height=2, format="JPEG", mode="RGB")
    assert index.get("c.wav") == AVMetadata(audio_duration=1.5, audio_channels=2)


def test_it_travels_to_other_threads_and_processes(tmp_path: Path) -> None:
    index = MediaIndex.open(write_table(tmp_path, [IMAGE]))
    assert pickle.loads(pickle.dumps(index)).get("a/b.jpg") == index.get("a/b.jpg")
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(index.get("a/b.jpg")))
    thread.start()
    thread.join()
    assert found == [index.get("a/b.jpg")]


@pytest.mark.parametrize(
    "metadata", [ImageMetadata(width=3, height=2, format="PNG", mode="L"), AVMetadata(video_fps=2.5)]
)
def test_stored_text_means_the_same(metadata: ImageMetadata | AVMetadata) -> None:
    assert decode_metadata(metadata.metadata_type, encode_metadata(metadata)) == metadata
    assert "null" not in encode_metadata(metadata)


def test_an_unknown_key_says_how_to_add_it(tmp_path: Path) -> None:
    index = MediaIndex.open(write_table(tmp_path, [IMAGE]))
    with pytest.raises(SampleError, match=r"no media metadata of 'x.jpg'.*bridge-data prepare-media"):
        index.get("x.jpg")


def test_a_folder_without_metadata_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no media metadata; run `bridge-data prepare-media"):
        MediaIndex.open(tmp_path)
    (tmp_path / ".nv-meta").mkdir()
    sqlite3.connect(tmp_path / ".nv-meta/index.sqlite").execute("CREATE TABLE samples (a)").connection.close()
    with pytest.raises(ConfigError, match="has no media metadata yet"):
        MediaIndex.open(tmp_path)


@pytest.mark.parametrize(
    "row", [("k", "smell", "{}"), ("k", "image", "{}"), ("k", "image", "{"), ("k", "av", '{"a":1}')]
)
def test_damaged_metadata_are_an_error(tmp_path: Path, row: tuple[str, str, str]) -> None:
    index = MediaIndex.open(write_table(tmp_path, [row]))
    with pytest.raises(DatasetError, match="'k' cannot be understood"):
        index.get("k")


def test_a_damaged_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta/index.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(DatasetError, match="cannot be read"):
        MediaIndex.open(tmp_path)
