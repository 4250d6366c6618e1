import importlib
import io
import os
import tarfile
from pathlib import Path

import pytest
import webdataset
from PIL import Image

from tests.tools.cli.conftest import Run


def names_in(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        return archive.getnames()


def test_a_folder_becomes_shards_in_order(run: Run, raw: Path, tmp_path: Path) -> None:
    result = run("pack", raw, tmp_path / "out", "--max-count", 5)
    assert result.exit_code == 0
    assert "12 samples (json, png, txt) in 3 shards" in result.output
    shards = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in shards] == ["data-000000.tar", "data-000001.tar", "data-000002.tar"]
    assert names_in(shards[1])[:4] == ["000006.json", "000006.png", "000006.txt", "000007.json"]
    samples = list(webdataset.WebDataset(list(map(str, shards)), shardshuffle=False).decode("pil"))
    assert [sample["__key__"] for sample in samples] == [f"{number:06d}" for number in range(1, 13)]
    assert samples[3]["txt"] == "picture number 4"
    assert samples[3]["json"]["caption"] == "caption 4"
    assert isinstance(samples[3]["png"], Image.Image)


def test_what_a_killed_process_left_is_removed(run: Run, raw: Path, tmp_path: Path) -> None:
    left = tmp_path / "out/.packing.abc.123.tmp/data-000000.tar"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half a shard")
    assert run("pack", raw, tmp_path / "out").exit_code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["data-000000.tar"]


def test_contents_are_taken_over_byte_by_byte(run: Run, raw: Path, tmp_path: Path) -> None:
    (raw / "000001.txt").write_bytes(b" \xff\x00 \n")
    (raw / "000001.json").write_bytes(b"{ not json")
    run("pack", raw, tmp_path / "out")
    with tarfile.open(tmp_path / "out/data-000000.tar") as archive:
        for name in ("000001.txt", "000001.json", "000001.png"):
            member = archive.extractfile(name)
            assert member is not None
            assert member.read() == (raw / name).read_bytes()


def test_the_same_files_make_the_same_tars_with_plain_headers(run: Run, raw: Path, tmp_path: Path) -> None:
    run("pack", raw, tmp_path / "one")
    run("pack", raw, tmp_path / "two")
    data = (tmp_path / "one/data-000000.tar").read_bytes()
    assert data == (tmp_path / "two/data-000000.tar").read_bytes()
    assert b"PaxHeader" not in data


def test_folders_dots_and_lonely_parts(run: Run, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    for name in ("a.txt", "a-1.txt", "b/x.left.png", "b/x.right.png", "b/c.d/y.txt", ".hidden/z.txt"):
        (raw / name).parent.mkdir(parents=True, exist_ok=True)
        (raw / name).write_text(name)
    assert run("pack", raw, tmp_path / "out").exit_code == 0
    assert names_in(tmp_path / "out/data-000000.tar") == [
        "a.txt",
        "a-1.txt",
        ".hidden/z.txt",
        "b/x.left.png",
        "b/x.right.png",
        "b/c.d/y.txt",
    ]


def test_shards_are_full_at_a_size_too(run: Run, raw: Path, tmp_path: Path) -> None:
    assert "in 12 shards" in run("pack", raw, tmp_path / "out", "--max-bytes", 10).output


def test_files_that_make_no_sample_are_told(run: Run, raw: Path, tmp_path: Path) -> None:
    for name in ("README", ".DS_Store", "LICENSE"):
        (raw / name).touch()
    result = run("pack", raw, tmp_path / "out")
    assert result.exit_code == 0
    assert "left out, as they have no part name (0001.png): 3 files, such as '.DS_Store'" in result.stderr


def test_different_parts_are_told_or_refused(run: Run, raw: Path, tmp_path: Path) -> None:
    (raw / "000003.txt").unlink()
    (raw / "000007.cls").write_text("1")
    result = run("pack", raw, tmp_path / "out")
    assert result.exit_code == 0
    assert "other parts in 2 samples, such as '000003': json, png" in result.stderr
    result = run("pack", raw, tmp_path / "strict", "--require-parts")
    assert result.exit_code == 1
    assert "2 of 12 samples have other parts than the rest (json, png, txt)" in result.stderr
    assert "sample '000003' lacks txt" in result.stderr
    assert "sample '000007' has cls besides" in result.stderr
    assert not (tmp_path / "strict").exists()


def test_shards_are_only_replaced_on_demand(run: Run, raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("pack", raw, out, "--max-count", 2)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    result = run("pack", raw, out, "--max-count", 6)
    assert result.exit_code == 1
    assert "holds 6 shards already, such as data-000000.tar; give --force-overwrite" in result.stderr
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    (out / "data-000005.tar.idx").touch()
    assert run("pack", raw, out, "--max-count", 6, "--force-overwrite").exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["data-000000.tar", "data-000001.tar"]


def test_a_failure_leaves_nothing_behind(run: Run, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = importlib.import_module("bridge_data.tools.cli.pack_command")
    content = pack._content

    def failing(path: Path) -> bytes:
        if path.name == "000006.png":
            raise OSError(28, "No space left on device")
        return content(path)

    monkeypatch.setattr(pack, "_content", failing)
    result = run("pack", raw, tmp_path / "out", "--max-count", 2)
    assert result.exit_code == 1
    assert f"error: {tmp_path}/out: cannot be written to: " in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_link_to_nowhere_is_named(run: Run, raw: Path, tmp_path: Path) -> None:
    (raw / "000013.png").symlink_to(tmp_path / "gone.png")
    result = run("pack", raw, tmp_path / "out")
    assert result.exit_code == 1
    assert "000013.png: cannot be read: No such file" in result.stderr


def test_a_percent_sign_in_the_path(run: Run, raw: Path, tmp_path: Path) -> None:
    assert run("pack", raw, tmp_path / "100%d").exit_code == 0
    assert (tmp_path / "100%d/data-000000.tar").is_file()


@pytest.mark.parametrize(
    ("source", "target", "flags", "message"),
    [
        ("no", "out", [], "no such folder"),
        ("raw/000001.png", "out", [], "expected a folder"),
        ("empty", "out", [], "holds no samples: expected files such as"),
        ("raw", "raw/tars", [], "would be packed itself"),
        ("raw", "raw", [], "would be packed itself"),
        ("raw", "out", ["--max-count", "0"], "--max-count 0: expected at least 1"),
    ],
)
def test_wrong_arguments(
    run: Run, raw: Path, tmp_path: Path, source: str, target: str, flags: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    result = run("pack", tmp_path / source, tmp_path / target, *flags)
    assert result.exit_code == 1
    assert message in result.stderr


def test_pictures_survive(run: Run, raw: Path, tmp_path: Path) -> None:
    run("pack", raw, tmp_path / "out")
    with tarfile.open(tmp_path / "out/data-000000.tar") as archive:
        member = archive.extractfile("000002.png")
        assert member is not None
        assert Image.open(io.BytesIO(member.read())).size == (42, 30)


def test_links_out_of_the_folder_are_refused_unless_followed(run: Run, raw: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (raw / "000013.txt").symlink_to(secret)
    (raw / "000014.txt").symlink_to(raw / "000001.txt")
    result = run("pack", raw, tmp_path / "out")
    assert result.exit_code == 1
    assert f"000013.txt: is a link that leads out of the folder, to {secret}; give --follow-links" in result.output
    assert not (tmp_path / "out").exists()
    assert run("pack", raw, tmp_path / "out", "--follow-links").exit_code == 0
    with tarfile.open(tmp_path / "out/data-000000.tar") as archive:
        member = archive.extractfile("000013.txt")
        assert member is not None and member.read() == b"secret"


@pytest.mark.parametrize("kind", ["fifo", "link to a fifo", "broken link", "link to itself", "link to a folder"])
def test_what_is_no_file_is_refused_at_once(run: Run, raw: Path, tmp_path: Path, kind: str) -> None:
    path = raw / "000013.txt"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link to a fifo":
        os.mkfifo(raw / "pipe")
        path.symlink_to(raw / "pipe")
    elif kind == "link to a folder":
        (raw / "folder.x").mkdir()
        path.symlink_to(raw / "folder.x")
    else:
        path.symlink_to(path if kind == "link to itself" else raw / "nothing")
    result = run("pack", raw, tmp_path / "out", "--follow-links")
    if kind == "link to a folder":  # which is left out, as links to folders are
        assert result.exit_code == 0
    else:
        assert result.exit_code == 1
        assert "000013.txt: " in result.output and "remove it" in result.output
