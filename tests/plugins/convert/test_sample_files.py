"""Folders of files and tars, whose records are samples already: which files make one, which are told, which refused."""

import gzip
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import webdataset

from bridge_data.data import PreparedDataset
from tests.cli.runner import write_pictures
from tests.data.tars import write_tar
from tests.plugins.convert.originals import convert, converted, picture, write_folder
from tests.prepare.files import write_files
from tests.prepare.test_shard_writer import contents


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A folder of twelve pictures, each with a text and JSON."""
    return write_pictures(tmp_path / "raw")


def refused(source: Path, target: Path, *flags: object, told: tuple[str, ...]) -> None:
    """The conversion fails, says so, and writes nothing."""
    result = convert(source, target, *flags)
    assert result.exit_code == 1 and all(text in result.stderr for text in told), result.output
    assert not (target / ".nv-meta").exists()


def test_webdataset_reads_the_shards_in_the_order_of_keys(raw: Path, tmp_path: Path) -> None:
    out = converted(raw, tmp_path / "100%d", "--max-samples", 5, "--split-by", "shard")
    shards = sorted(out.glob("*.tar"))
    assert [path.name for path in shards] == [f"data-{number:06d}.tar" for number in range(3)]
    samples = list(webdataset.WebDataset(list(map(str, shards)), shardshuffle=False).decode("pil"))
    assert [sample["__key__"] for sample in samples] == [f"{number:06d}" for number in range(1, 13)]
    assert (samples[3]["txt"], samples[3]["json"]["caption"]) == ("picture number 4", "caption 4")
    assert samples[3]["png"].size == (44, 30)
    flags = ("--max-samples", 2, "--split-by", "shard", "--split", "train=4,val=2,test=0")
    found = contents(converted(raw, tmp_path / "split", *flags))
    assert [key for key, _ in found["train"] + found["val"]] == [sample["__key__"] for sample in samples]
    assert (len(found["train"]), len(found["val"])) == (8, 4)
    assert PreparedDataset.open(tmp_path / "split").split_parts() == ["train", "val", "test"]


def test_folders_dots_and_lonely_parts(tmp_path: Path) -> None:
    names = ("a.txt", "a-1.txt", ".hidden/z.txt", "b/x.left.png", "b/x.right.png", "b/c.d/y.txt")
    write_files(tmp_path / "raw", {name: name.encode() for name in names})
    (samples,) = contents(converted(tmp_path / "raw", tmp_path / "out", "--unchecked")).values()
    assert [f"{key}.{part}" for key, parts in samples for part in parts] == [*names]


def test_what_no_loader_could_read_is_broken_or_taken_unchecked_byte_by_byte(raw: Path, tmp_path: Path) -> None:
    (raw / "000001.txt").write_bytes(b" \xff\x00 \n")
    (raw / "000002.json").write_bytes(b"{ not json")
    assert "2 records are broken" in convert(raw, tmp_path / "checked").stderr
    (samples,) = contents(converted(raw, tmp_path / "out", "--unchecked")).values()
    for key, parts in samples:
        assert parts == {name: (raw / f"{key}.{name}").read_bytes() for name in ("json", "png", "txt")}


def test_all_tars_that_are_cut_off_also_between_members_are_named(raw: Path, tmp_path: Path) -> None:
    tars = converted(raw, tmp_path / "tars", "--max-samples", 3, "--split-by", "shard")
    shards, ends = sorted(tars.glob("*.tar")), []
    for shard, num_members in zip(shards[1:3], (1, 2), strict=True):
        with tarfile.open(shard) as tar:
            ends.append(tar.getmembers()[num_members].offset)
        os.truncate(shard, ends[-1])
    os.truncate(shards[0], 700)
    cut = [f"  {path}: ends at byte {end} without the end mark" for path, end in zip(shards[1:3], ends, strict=True)]
    refused(tars, tmp_path / "out", told=(f"3 of 4 shards cannot be used:\n  {shards[0]}: ", *cut))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a.tar", "a.tgz"])
def test_tars_that_prepare_refuses_are_converted(name: str, tmp_path: Path) -> None:
    """As parts of a sample are not next to each other, and compressed ones have no index; the same part twice is
    broken."""
    path = write_tar(tmp_path / "tars" / "a.tar", {"a.txt": b"1", "b.txt": b"2", "a.cls": b"3", "b.cls": b"4"})
    if name == "a.tgz":
        path.with_name(name).write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    (samples,) = contents(converted(path.parent, tmp_path / "out")).values()
    assert samples == [("a", {"txt": b"1", "cls": b"3"}), ("b", {"txt": b"2", "cls": b"4"})]
    with tarfile.open(tmp_path / "twice.tar", "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("a.txt"))
    assert "a: has two parts with the same name" in convert(tmp_path / "twice.tar", tmp_path / "twice").stderr


def test_files_that_make_no_sample_or_share_a_key_because_of_dots_are_told(raw: Path, tmp_path: Path) -> None:
    for name in ("README", ".DS_Store", "LICENSE", "Makefile", "README.md", "dataset_infos.json", "checksums.md5"):
        (raw / name).touch()
    for number in (1, 2):
        (raw / f"my.photo.{number}.png").write_bytes(picture(1))
    stderr = convert(raw, tmp_path / "out").stderr
    for expected in (
        "left out, as their names have no ending (0001.png), begin with a dot, or are those of a README: 7 files, "
        "such as '.DS_Store', 'LICENSE', 'Makefile'",
        "its key ends at the first dot of the name, in 1 of 13, such as 'my': photo.1.png, photo.2.png. If each",
    ):
        assert expected in stderr
    names = [f"{number % 4}.{'left' if number < 4 else 'right'}.png" for number in range(8)]
    pairs = write_files(tmp_path / "pairs", dict.fromkeys(names, picture(1)))
    assert "first dot" not in convert(pairs, tmp_path / "meant").stderr


@pytest.mark.parametrize("form", ["files", "tars"])
def test_other_parts_than_most_samples_have_are_told_or_broken(form: str, raw: Path, tmp_path: Path) -> None:
    (raw / "000003.json").unlink()
    (raw / "000004.png").rename(raw / "000004.jpg")  # which is an image as well
    (raw / "000007.cls").write_text("1")
    crude = ("--sample-type", "crude")
    source = raw if form == "files" else converted(raw, tmp_path / "tars", *crude)
    result = convert(source, tmp_path / "out", *crude)
    expected = "other parts than most samples (json, png, txt) in 2 of 12, such as '000003': png, txt"
    assert result.exit_code == 0 and expected in result.stderr
    broken = ("000003: lacks json: most samples have json, png, txt", "000007: also has cls")
    refused(source, tmp_path / "strict", *crude, "--same-parts", told=("2 records are broken", *broken))
    found = contents(converted(source, tmp_path / "strict", *crude, "--same-parts", "--skip-broken"))
    assert len(found["train"]) == 10


def test_one_sample_with_other_parts_makes_data_crude_and_the_reason_and_way_out_are_told(tmp_path: Path) -> None:
    raw = write_folder(tmp_path / "raw", 12)
    for number in range(12):
        (raw / f"{number:03d}.jpg").write_bytes(picture(0))
        (raw / f"{number:03d}.png").unlink(missing_ok=True)
    (raw / "my.photo.1.jpg").write_bytes(picture(0))
    (raw / "my.photo.1.txt").write_text("a photo")
    result = convert(raw, tmp_path / "crude")
    assert "sample type: crude" in result.stdout
    assert (
        "crude because of samples with other parts than most, such as 'my': photo.1.jpg, photo.1.txt. The others would "
        "be of CaptioningSample. Rename the files; or leave such samples out by --require-parts jpg,txt, or "
        "--same-parts --skip-broken"
    ) in result.stderr
    for number, options in enumerate((["--require-parts", "jpg,txt"], ["--same-parts", "--skip-broken"])):
        result = convert(raw, tmp_path / f"out{number}", *options)
        assert "sample type: CaptioningSample" in result.stdout and "crude because" not in result.stderr
        assert f"out{number}: 12 samples" in result.stdout
    result = convert(raw, tmp_path / "chosen", "--sample-type", "crude")
    assert "crude because" not in result.stderr


def test_a_sample_with_more_parts_than_the_others_is_not_left_out_by_required_ones(raw: Path, tmp_path: Path) -> None:
    (raw / "000003.left.png").write_bytes(picture(1))
    stderr = convert(raw, tmp_path / "out").stderr
    assert "'000003': json, left.png, png, txt." in stderr and "left out by" not in stderr
    assert "leave such samples out by --same-parts --skip-broken" in stderr


def test_the_byte_order_mark_of_a_caption_is_left_out_unless_files_are_taken_as_they_are(tmp_path: Path) -> None:
    raw = write_folder(tmp_path / "raw", 2)
    (raw / "000.txt").write_text("größer", encoding="utf-8-sig")
    for options, first in (((), "größer"), (("--unchecked",), "\ufeffgrößer")):
        (samples,) = contents(converted(raw, tmp_path / f"out{len(options)}", *options)).values()
        assert [parts["txt"].decode() for _, parts in samples] == [first, (raw / "001.txt").read_text()]


def test_a_data_set_is_replaced_on_demand_and_others_never(raw: Path, tmp_path: Path) -> None:
    out = converted(raw, tmp_path / "out", "--max-samples", 2)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    result = convert(raw, out, "--max-samples", 6)
    assert result.exit_code == 1 and "holds a data set already" in result.stderr
    assert "--force-overwrite to replace it" in result.stderr
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    converted(raw, out, "--max-samples", 6, "--force-overwrite")
    names = ["train-000000.tar", "train-000001.tar"]
    assert sorted(path.name for path in out.glob("*.tar")) == names and len(contents(out)["train"]) == 12
    (out / "mine.tar").touch()
    result = convert(raw, out, "--force-overwrite")
    assert result.exit_code == 1 and "holds tars of others, such as mine.tar" in result.stderr
    assert all((out / name).exists() for name in names)


def test_links_out_of_the_folder_are_refused_unless_followed(raw: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    for number, target in ((12, secret), (11, raw / "000001.txt")):
        (raw / f"0000{number}.txt").unlink()
        (raw / f"0000{number}.txt").symlink_to(target)
    told = f"000012.txt: is a link that leads out of the folder, to {secret}; give --follow-links"
    refused(raw, tmp_path / "out", told=(told,))
    assert not (tmp_path / "out").exists()
    samples = dict(contents(converted(raw, tmp_path / "out", "--follow-links"))["train"])
    assert (samples["000012"]["txt"], samples["000011"]["txt"]) == (b"secret", b"picture number 1")


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: (os.mkfifo(path.parent / "pipe"), path.symlink_to(path.parent / "pipe")),
        lambda path: path.symlink_to(path.parent / "nothing"),
        lambda path: path.symlink_to(path),
    ],
    ids=["fifo", "link to a fifo", "broken link", "link to itself"],
)
def test_what_is_no_file_is_refused_at_once_and_links_to_folders_are_left_out(
    raw: Path, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    (raw / "folder.x").mkdir()
    (raw / "000014.txt").symlink_to(raw / "folder.x")
    converted(raw, tmp_path / "out", "--follow-links")
    make(raw / "000013.txt")
    refused(raw, tmp_path / "other", "--follow-links", told=("000013.txt: ", "remove it"))
