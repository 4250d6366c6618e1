import gzip
import itertools
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
from bridge_data.storage.copies import CACHE_VARIABLE
from tests.cli.runner import run_command
from tests.data.chunks import write_chunks
from tests.data.tars import write_tar
from tests.object_store import Bucket
from tests.plugins.convert.originals import write_mds
from tests.prepared import train_dataset, val_dataset, write_texts
from tests.tables import save_to_disk, write_parquet

RATIO = ("--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


class Kind(NamedTuple):
    """What writes some data into a folder, the format of `convert`, and the pattern that chooses them in place."""

    write: Callable[[Path], object]
    format: str
    pattern: str | None


def write_lines(folder: Path) -> None:
    for part in "ab":
        (folder / f"{part}.jsonl").write_text('{"text": "a"}\n')


def numbers(size: int) -> list[dict[str, bytes]]:
    return [{"number": struct.pack("<q", number)} for number in range(size)]


TABLE = pa.table({"key": ["a", "b"], "caption": ["1", "2"]})
KINDS = {
    "tars": Kind(lambda at: [write_tar(at / f"{n}.tar", {f"{n}.txt": b"1"}) for n in range(3)], "webdataset", "*.tar"),
    "parquet": Kind(lambda at: [write_parquet(at / f"{n}.parquet", TABLE) for n in "01"], "parquet", "*.parquet"),
    "saved": Kind(lambda at: save_to_disk(at, TABLE, num_files=2), "arrow", "*.arrow"),
    "mds": Kind(lambda at: write_mds(at, numbers(4), {"number": "int"}), "mds", None),
    "litdata": Kind(lambda at: write_chunks(at, numbers(4), {"number": "int"}), "litdata", None),
    "lines": Kind(write_lines, "jsonl", None),
    "csv": Kind(lambda at: (at / "labels.csv").write_text("key,label\na,1\n"), "csv", None),
}
PAIRS = [pair for pair in itertools.combinations(KINDS, 2) if pair not in (("mds", "litdata"), ("lines", "csv"))]


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_a_folder_with_data_of_two_kinds_is_refused_with_both_until_one_is_chosen(
    tmp_path: Path, pair: tuple[str, str]
) -> None:
    folder, (one, other) = tmp_path / "d", (KINDS[name] for name in pair)
    folder.mkdir()
    (folder / "00_stats.json").write_text("{}")
    (folder / "README.md").write_text("of both kinds")
    one.write(folder)
    other.write(folder)
    expected = [str(folder), *(kind.pattern or f"--format {kind.format}" for kind in (one, other))]
    told = []
    for open_it in (train_dataset, val_dataset):
        with pytest.raises(ConfigError) as error:
            open_it(folder)
        told.append(str(error.value))
    told.append(run_command("info", folder).stderr)
    for message in told:
        assert all(word in message for word in expected)
    result = run_command("convert", folder, tmp_path / "out", "--non-interactive", "--no-progress")
    assert result.exit_code == 1 and not (tmp_path / "out").exists()
    assert all(f"--format {kind.format}" in result.stderr for kind in (one, other))
    if pair[0] == "tars":
        result = run_command("prepare", folder, *RATIO)
        assert result.exit_code == 1 and "--exclude" in result.stderr and not (folder / ".nv-meta").exists()
    for kind in (one, other):
        if kind.pattern is not None:
            assert load_plan(folder / kind.pattern).num_samples in (2, 3, 4)
            done = run_command("convert", folder, tmp_path / kind.format, "--no-progress", "--format", kind.format)
            assert done.exit_code == 0


def test_tars_beside_tables_are_prepared_if_the_tables_are_excluded_and_then_they_are_chosen(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    for name in ("tars", "parquet"):
        KINDS[name].write(folder)
    assert r"--exclude '\.parquet$'" in run_command("prepare", folder, *RATIO).stderr
    assert run_command("prepare", folder, *RATIO, "--exclude", r"\.parquet$").exit_code == 0
    assert load_plan(folder).num_samples == 3
    assert run_command("prepare", folder, *RATIO, "--force-overwrite").exit_code == 0
    assert "WebDataset, 3 records" in run_command("convert", folder, tmp_path / "out", "--non-interactive").output


def test_kinds_in_folders_below_count_and_are_chosen_there(tmp_path: Path) -> None:
    for name in ("tars", "parquet"):
        (tmp_path / name).mkdir()
        KINDS[name].write(tmp_path / name)
    with pytest.raises(ConfigError) as error:
        load_plan(tmp_path)
    for pattern, size in (("**/*.tar", 3), ("**/*.parquet", 4)):
        assert str(tmp_path / pattern) in str(error.value)
        assert load_plan(tmp_path / pattern).num_samples == size


def test_hidden_files_prepared_folders_and_pictures_beside_tars_are_no_second_kind(tmp_path: Path) -> None:
    KINDS["tars"].write(tmp_path)
    (tmp_path / ".cache").mkdir()
    KINDS["parquet"].write(tmp_path / ".cache")
    (tmp_path / "preview.png").write_bytes(b"")
    assert load_plan(tmp_path).num_samples == 3
    prepared = write_texts(tmp_path / "prepared", 5)
    KINDS["parquet"].write(prepared)
    assert load_plan(prepared).num_samples == 5


def test_two_kinds_in_a_store_are_refused_too(bucket: Bucket) -> None:
    folder = bucket.folder / "d"
    folder.mkdir()
    KINDS["tars"].write(folder)
    KINDS["parquet"].write(folder)
    with pytest.raises(ConfigError, match=r"0\.parquet.*0\.tar"):
        load_plan(f"{bucket.url}/d")
    assert load_plan(f"{bucket.url}/d/*.parquet").num_samples == 4


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345678\n"
TOLD = "is a pointer of Git LFS, not the file itself: run `git lfs pull`"


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.csv", "a.tar", "a.json", "0.jpg"])
def test_pointers_of_git_lfs_are_told_as_what_they_are(tmp_path: Path, name: str) -> None:
    """A clone of a data set on a hub, without Git LFS."""
    path = tmp_path / "d" / name
    path.parent.mkdir()
    path.write_bytes(POINTER)
    commands = [("convert", path if name != "0.jpg" else path.parent, tmp_path / "out", "--non-interactive")]
    commands += [("info", path)] * (name == "a.parquet")
    commands += [("prepare", path if name == "a.jsonl" else path.parent, *RATIO)] * (name in ("a.jsonl", "a.tar"))
    for command in commands:
        result = run_command(*command)
        assert result.exit_code == 1 and TOLD in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("d", "bridge-data convert"),
        ("d/*.jsonl", "bridge-data convert"),
        ("d/part-{0..2}.jsonl", "bridge-data convert"),
        ("d/part-?.jsonl", "blend_epochized"),
        ("packed.jsonl.gz", "gunzip -k"),
        ("c4-train.00000-of-01024.json.gz", "gunzip -k"),
        ("lines.ndjson", "rename it"),
        ("chats.json", "bridge-data convert"),
        ("rows.csv", "bridge-data convert"),
    ],
)
def test_json_lines_that_are_not_one_file_are_refused_with_the_way_out(tmp_path: Path, path: str, fix: str) -> None:
    (tmp_path / "d").mkdir()
    line = json.dumps({"text": "a"}) + "\n"
    for part in range(3):
        (tmp_path / f"d/part-{part}.jsonl").write_text(line)
    for name in ("packed.jsonl.gz", "c4-train.00000-of-01024.json.gz"):
        (tmp_path / name).write_bytes(gzip.compress(line.encode()))
    (tmp_path / "lines.ndjson").write_text(line)
    (tmp_path / "chats.json").write_text(f"[{line}]")
    (tmp_path / "rows.csv").write_text("text\na\n")
    with pytest.raises(ConfigError) as error:
        load_plan(tmp_path / path)
    assert str(tmp_path / path) in str(error.value) and fix in str(error.value)
    for command in (("info", tmp_path / path), ("prepare", tmp_path / path, *RATIO)):
        result = run_command(*command)
        assert result.exit_code == 1 and fix in result.stderr
    if "*" in path or "?" in path:
        result = run_command("convert", tmp_path / path, tmp_path / "out", "--non-interactive")
        assert result.exit_code == 1 and "--include" in result.stderr
    if "gz" in path:
        for more in ((), ("--format", "jsonl")):
            result = run_command("convert", tmp_path / path, tmp_path / "out", "--non-interactive", *more)
            assert result.exit_code == 1 and fix in result.stderr
