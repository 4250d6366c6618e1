"""Writing to an object store leaves what writing to a disk does: whole shards, and `.nv-meta` at the end."""

import contextlib
import itertools
import json
import tempfile
from functools import partial
from pathlib import Path

import pytest

from bridge_data.data.prepared import PreparedDataset
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.prepare.parallel_writing import write
from bridge_data.prepare.shard_writer import ShardWriter
from bridge_data.storage import RemotePath
from tests.cli.runner import run_command
from tests.object_store import Bucket
from tests.plugins.convert.originals import EXPECTED, captions_and_pictures, convert, converted, write_folder
from tests.prepare.test_commit import crashing
from tests.prepare.test_parallel_writing import OPTIONS, make
from tests.prepare.test_shard_writer import SPLIT, contents, tars, text_sample, write_texts

SMALL = ("--max-samples", 5, "--split", "train=0.75,val=0.25")


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where shards are while they are written."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def test_a_store_gets_the_files_that_a_disk_gets_and_is_added_to(bucket: Bucket, tmp_path: Path, scratch: Path) -> None:
    stored, on_disk = bucket.folder / "a", tmp_path / "a"
    for numbers in (range(40), range(60)):
        write_texts(f"{bucket.url}/a", numbers)
        write_texts(on_disk, numbers)
        assert tars(stored) == tars(on_disk) and contents(stored) == contents(on_disk)
    names = [{path.relative_to(one) for path in one.rglob("*") if path.is_file()} for one in (stored, on_disk)]
    assert names[0] == names[1] and not [*scratch.iterdir()]
    with (
        pytest.raises(DatasetError, match="'00003' is written twice"),
        ShardWriter(f"{bucket.url}/a", split=SPLIT) as writer,
    ):
        writer.write(text_sample(3))
    with pytest.raises(ConfigError, match="world_size=2"), ShardWriter(f"{bucket.url}/b", rank=0, world_size=2):
        pass
    assert not (bucket.folder / "b").exists()


def test_an_interrupted_call_goes_on_where_it_was(bucket: Bucket, tmp_path: Path) -> None:
    made: list[int] = []

    def counted(item: int, stop_at: int) -> object:
        if item == stop_at:
            raise KeyboardInterrupt
        made.append(item)
        return make(item)

    write(make, tmp_path / "a", items=range(100), **OPTIONS)
    for stop_at in (60, 100):
        with contextlib.suppress(KeyboardInterrupt):
            write(partial(counted, stop_at=stop_at), f"{bucket.url}/a", items=range(100), **OPTIONS)
        if stop_at == 60:
            assert tars(bucket.folder / "a") and not (bucket.folder / "a/.nv-meta").exists()
            assert not is_opened(f"{bucket.url}/a")
            assert "is not whole" in run_command("prepare", f"{bucket.url}/a", "--non-interactive").stderr
    assert len(made) < 100 + 40
    assert tars(bucket.folder / "a") == tars(tmp_path / "a") and not (bucket.folder / "a/.writing").exists()
    assert write(make, f"{bucket.url}/a", items=range(100), **OPTIONS) == 108  # does nothing


@pytest.mark.processes
def test_a_conversion_that_is_killed_at_any_request_is_run_again(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_folder(tmp_path / "source")
    whole = converted(source, tmp_path / "whole", *SMALL)
    for step in itertools.count(0, 9):
        url, folder = f"{bucket.url}/{step}", bucket.folder / str(step)
        crashed = crashing(step, partial(converted, source, url, *SMALL), monkeypatch)
        assert tars(folder).items() <= tars(whole).items()
        assert not crashed or step > 15 or not is_opened(url)
        if crashed:
            converted(source, url, *SMALL)
        assert tars(folder) == tars(whole) and contents(folder) == contents(whole)
        assert not (folder / ".writing").exists()
        if not crashed:
            break
    assert step > 15


def is_opened(url: str) -> bool:
    try:
        return PreparedDataset.open(RemotePath(url)) is not None
    except ConfigError:
        return False


@pytest.mark.processes
def test_other_options_start_anew_and_files_of_others_stay(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, url = write_folder(tmp_path / "source"), f"{bucket.url}/a"
    assert crashing(12, partial(converted, source, url, *SMALL), monkeypatch)
    num_made = len(tars(bucket.folder / "a"))
    (bucket.folder / "a/notes.md").write_text("mine")
    result = convert(source, url, "--max-samples", 7)
    assert result.exit_code == 0 and num_made and f"without its {num_made} shard" in result.stderr
    assert tars(bucket.folder / "a") == tars(converted(source, tmp_path / "good", "--max-samples", 7))
    again = convert(source, url, "--max-samples", 7)
    assert again.exit_code == 0 and "was converted by the same command already" in again.stderr
    (source / "001.txt").write_text("another caption")
    assert "holds a data set already" in convert(source, url, "--max-samples", 7).stderr
    crashing(5, partial(converted, source, url, *SMALL, "--force-overwrite"), monkeypatch)
    converted(source, url, *SMALL)  # what was to be removed is removed
    assert tars(bucket.folder / "a") == tars(converted(source, tmp_path / "new", *SMALL))
    assert (bucket.folder / "a/notes.md").read_text() == "mine"


def test_what_is_broken_is_listed_in_the_store(bucket: Bucket, tmp_path: Path) -> None:
    source, url = write_folder(tmp_path / "source"), f"{bucket.url}/a"
    good = (source / "003.png").read_bytes()
    (source / "003.png").write_bytes(b"")
    assert "a/broken.jsonl" in convert(source, url, *SMALL).stderr
    assert json.loads((bucket.folder / "a/broken.jsonl").read_text())["where"] == "003"
    assert not (bucket.folder / "a/.nv-meta").exists()
    (source / "003.png").write_bytes(good)
    converted(source, url)
    assert captions_and_pictures(bucket.folder / "a") == EXPECTED
    assert not (bucket.folder / "a/broken.jsonl").exists()


def test_a_second_writer_takes_over_and_the_first_notices(bucket: Bucket, tmp_path: Path) -> None:
    url = f"{bucket.url}/a"
    with pytest.raises(DatasetError, match="another process is writing it"), ShardWriter(url, max_samples=4) as first:
        first.write(text_sample(0))
        write_texts(url, range(10), split=None, max_samples=4)
    write_texts(tmp_path / "a", range(10), split=None, max_samples=4)
    assert contents(bucket.folder / "a") == contents(tmp_path / "a")
