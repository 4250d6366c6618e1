import dataclasses
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data.decode.av import AVDecoder
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from bridge_data.plugins.view.sample_facts import facts_of, part_facts, text_of
from tests.cli.conftest import Run
from tests.cli.test_prepare_command import FIELDS, QUIET, refused, succeeded
from tests.plan.joins import joined, metadataset, texts
from tests.plugins.doctor.datasets import change
from tests.prepare.files import film, picture, sound
from tests.prepared import CRUDE, write_blend, write_dataset, write_texts
from tests.tables import table_of, write_parquet


@pytest.fixture
def prepared(run: Run, tars: Path) -> Path:
    assert run("prepare", tars, *QUIET, "--split-ratio", "0,2,1").exit_code == 0
    return tars


def asked(arguments: tuple[object, ...]) -> tuple[object, ...]:
    """Arguments of `info` that ask for samples, the first three if not for others."""
    return arguments if {"--key", "--samples"} & {*map(str, arguments)} else (*arguments, "--samples", 3)


def told(run: Run, *arguments: object) -> list[dict[str, Any]]:
    """The samples of `info --samples --json`."""
    samples: list[dict[str, Any]] = json.loads(succeeded(run("info", *asked(arguments), "--json")).stdout)["samples"]
    return samples


def shown(run: Run, *arguments: object) -> str:
    """What `info --samples` prints."""
    return succeeded(run("info", *asked(arguments))).output


def test_samples_as_json(run: Run, tars: Path) -> None:
    flags = ("--split-ratio", "1,0,0", "--sample-type", "CaptioningSample", "--field-map", FIELDS)
    run("prepare", tars, *QUIET, *flags)
    first, second = told(run, tars, "--samples", 2)
    with tarfile.open(tars / "data-000000.tar") as tar:
        sizes = {name: tar.getmember(f"000001.{name}").size for name in ("json", "png", "txt")}
    assert first == {
        "path": str(tars),
        "split_part": "train",
        "index": 0,
        "key": "data-000000.tar/000001",
        "is_forgotten": False,
        "parts": {
            "json": {"num_bytes": sizes["json"], "type": "json", "value": first["parts"]["json"]["value"]},
            "png": {
                "num_bytes": sizes["png"],
                "type": "image",
                "format": "PNG",
                "width": 41,
                "height": 30,
                "mode": "RGB",
            },
            "txt": {"num_bytes": sizes["txt"], "type": "text", "text": "picture number 1"},
        },
        "made": {
            "class": "CaptioningSample",
            "subflavors": {},
            "is_crude": False,
            "fields": {
                "image": {"type": "array", "dtype": "uint8", "shape": [3, 30, 41], "min": 9, "max": 10},
                "caption": {"type": "text", "text": "picture number 1"},
            },
        },
    }
    assert first["parts"]["json"]["value"]["caption"] == "caption 1"
    assert told(run, tars, "--key", second["key"]) == [second]
    refused(run("info", tars, "--json", "--html", tars / "sheet.html"))
    assert run("info", tars, "--key", second["key"], "--html", tars / "sheet.html").exit_code == 0
    page = (tars / "sheet.html").read_text()
    assert [one["parts"]["txt"]["text"] in page for one in (first, second)] == [False, True]
    text = "  → CaptioningSample\n    image    uint8 3×30×41, 9 … 10\n    caption  picture number 1\n"
    assert text in shown(run, tars, "--samples", 1)


def test_what_json_lacks_is_text_there(run: Run, tmp_path: Path) -> None:
    parts = {"__key__": "k", "json": '{"loss": NaN, "b": [1, 2.5]}', "bin": bytes(20)}
    sample, damaged = told(
        run, write_dataset(tmp_path / "a", [parts, {"__key__": "l", "txt": b"\xff"}], definition=CRUDE)
    )
    assert sample["parts"]["json"]["value"] == {"loss": "nan", "b": [1, 2.5]}
    assert sample["parts"]["bin"] == {"num_bytes": 20, "type": "unknown", "first_bytes": "00" * 16}
    assert damaged["parts"]["txt"]["error"].startswith("not UTF-8")
    assert damaged["made"]["error"].startswith("sample 'data-0000.tar/l': part 'txt'")
    assert sample["made"] == {"class": "CrudeSample", "subflavors": {}, "is_crude": True}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--samples", "0"], "--samples 0: expected a count from 1 on, or numbers such as 20..29"),
        (["--samples", "3..2"], "--samples 3..2: expected"),
        (["--samples", "8..9"], "--samples 8..: val has 8 samples"),
        (["--samples", "3", "--split-part", "train"], "no samples in train"),
        (["--samples", "3", "--split-part", "dev"], "there is no split part 'dev'"),
        (["--samples", "3", "--split-config", "other.yaml"], "--split-config is for what PATH holds as a whole"),
        (["--split-part", "val"], "--split-part is for --samples and --key"),
    ],
)
def test_wrong_flags(run: Run, prepared: Path, flags: list[str], message: str) -> None:
    refused(run("info", prepared, *flags), message)


def test_a_damaged_shard_is_an_error(run: Run, prepared: Path) -> None:
    (prepared / "data-000000.tar").write_bytes(b"")
    refused(run("info", prepared, "--samples", 3), "data-000000.tar")


def test_what_cannot_be_made_is_told_and_does_not_hide_the_others(run: Run, tars: Path, tmp_path: Path) -> None:
    folder = change(tmp_path / "set", png=b"?")
    output = shown(run, folder, "--split-part", "train")
    assert output.count("→ CaptioningSample") == 2
    assert "→ cannot be made: sample 'data-0.tar/0001': part 'png'" in output
    made = [sample["made"] for sample in told(run, folder, "--split-part", "train")]
    assert next(one["error"] for one in made if "error" in one).startswith("sample 'data-0.tar/0001': part 'png'")
    run("prepare", tars, *QUIET, "--split-ratio", "1,0,0")
    definition = "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: md}"
    (tars / ".nv-meta/dataset.yaml").write_text(definition)
    result = succeeded(run("info", tars, "--samples", 1))
    assert "picture number 1" in result.output
    assert "field_map: text: no shard of split part 'train' has a part 'md'" in result.stderr


def test_of_a_metadataset_each_data_set_with_its_auxiliary_data(run: Run, tmp_path: Path) -> None:
    for name in "ab":
        write_texts(tmp_path / name, 10, lambda number, name=name: f"{name} {number}")
    output = shown(run, write_blend(tmp_path / "blend.yaml", {"a": 1, "b": 2}), "--samples", "4..4")
    assert f"{tmp_path}/a\ntrain 4  data-0000.tar/000004\n" in output
    assert "    text  b 4\n" in output and '→ TextSample, subflavors {"origin": "b"}' in output
    write_dataset(tmp_path / "crude", [{"__key__": "k", "txt": "x"}], definition=CRUDE)
    (tmp_path / "files").mkdir()
    file = metadataset(tmp_path / "meta.yaml", {"path": "crude", "aux": {"pictures": "filesystem://files"}})
    assert f"{tmp_path}/crude, aux pictures\n" in shown(run, file)
    assert f"aux pictures of crude/train: {tmp_path}/files\n" in succeeded(run("info", file)).output


@pytest.mark.parametrize("name", ["000012", "data-000005.tar/000012", "data-000005.tar:000012"])
def test_one_sample_by_its_key_from_any_split_part(run: Run, prepared: Path, name: str) -> None:
    output = shown(run, prepared, "--key", name)
    assert output.startswith("test 3  data-000005.tar/000012\n")
    assert "picture number 12" in output and "picture number 11" not in output


def test_a_forgotten_sample_is_marked_until_it_is_taken_back(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    path = write_texts(tmp_path / "texts", 10)
    forget_samples(path, ["000002"], "asked for")
    marked = "data-0000.tar/000002  (forgotten: no run sees it)\n"
    assert run("info", path, "--key", "000002").output.startswith(f"train 2  {marked}")
    for more in ([], ["--where", "key <> '000001'"]):
        output = run("info", path, "--samples", 3, *more).output
        assert output.count("(forgotten") == output.count(marked) == 1
        samples = [(one["key"], one["is_forgotten"], "parts" in one) for one in told(run, path, "--samples", "2..2")]
        assert samples == [("data-0000.tar/000002", True, False)]
    forget_samples(path, ["000002"], "was a mistake", restore=True)
    assert "(forgotten" not in run("info", path, "--key", "000002").output


def test_keys_that_name_no_sample_or_several(run: Run, tmp_path: Path) -> None:
    texts(tmp_path / "a", "kl")
    texts(tmp_path / "b", "k")
    file = write_blend(tmp_path / "blend.yaml", {"a": 1, "b": 2, "./a": 1})
    both = ("'k' is the key of 2 samples; say which is meant", f"{tmp_path}/b/data-0000.tar:k")
    refused(run("info", file, "--key", "k"), *both)
    refused(run("info", file, "--key", "x"), "no sample has the key 'x'")
    refused(run("info", file, "--key", "l", "--samples", 1), "without --samples")
    output = shown(run, file, "--key", "b/data-0000.tar:k")
    assert output.startswith(f"{tmp_path}/b\ntrain 0  data-0000.tar/k\n")


def test_of_a_join_the_parts_of_each_member(run: Run, tmp_path: Path) -> None:
    texts(tmp_path / "a", "kl")
    texts(tmp_path / "b", "k")
    file = joined(tmp_path / "join.yaml", [{"path": "a"}, {"path": "b", "nonmatch": "none"}])
    run("prepare", file, "--no-progress")
    output = shown(run, file)
    assert "  data-0000.tar/k\n  txt       2 B  ak\n  data-0000.tar/k\n  txt       2 B  bk\n" in output
    assert "  no match\n" in output and "→ TextSample" in output
    first, second = told(run, file)
    assert [member["parts"]["txt"]["text"] for member in first["members"]] == ["ak", "bk"]
    assert (second["members"][0]["key"], second["members"][1]) == ("data-0000.tar/l", None)


def test_of_a_join_with_a_table_its_columns(run: Run, tmp_path: Path) -> None:
    texts(tmp_path / "a", "kl")
    write_parquet(tmp_path / "b.parquet", table_of({"__key__": ["l", "k"], "caption": ["of l", "of k"]}))
    fields = {"sample_type": "TextSample", "field_map": {"text": "caption"}}
    file = joined(tmp_path / "join.yaml", [{"path": "b.parquet", **fields}, {"path": "a"}])
    assert run("prepare", file, "--no-progress").stdout.startswith("join on b.parquet [train]: 2 samples\n")
    output = shown(run, file, "--key", "k")
    assert "  b.parquet/k\n  caption       4 B  of k\n  data-0000.tar/k\n  txt       2 B  ak\n" in output
    assert succeeded(run("check", file)).output == f"{file}: 4 samples in 1 shard of 2 data sets checked: no faults\n"
    assert "2 samples in 1 shard, joined with a/train" in succeeded(run("info", file)).output


def told_of_part(part: str, data: bytes) -> str:
    return text_of(part_facts(part, data))


def told_of_value(value: object) -> str:
    return text_of(facts_of(value))


@pytest.mark.parametrize(
    ("part", "data", "expected"),
    [
        ("txt", b"hello\nworld", "hello\nworld"),
        ("txt", b"", "empty"),
        ("txt", b"\x1b[31mred", "\\x1b[31mred"),
        ("txt", b"\xff", "not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        ("json", b"[1]", "[1]"),
        ("meta.json", b'{"a": "\xc3\xa4"}', '{"a": "ä"}'),
        ("json", b"{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("left.jpg", picture("JPEG", mode="L"), "JPEG 8×6 L"),
        ("PNG", picture("PNG", mode="RGBA"), "PNG 8×6 RGBA"),
        ("clip.wav", sound(), "audio 1 channel, 8000 Hz; 0.50 s"),
        ("bin", b"\x00\x01", "00 01"),
        ("bin", bytes(20), "00 " * 16 + "…"),
        ("bin", b"", "empty"),
    ],
)
def test_parts_are_described(part: str, data: bytes, expected: str) -> None:
    assert told_of_part(part, data) == expected
    assert told_of_part("png", b"no picture").startswith("not a readable image")
    assert told_of_value(AVDecoder(b"neither")).startswith("not a readable clip: ")


def test_long_contents_and_values_are_cut() -> None:
    assert len(told_of_part("txt", b"word " * 10_000)) < 500
    assert len(told_of_part("json", b'{"a": [' + b"1, " * 10_000 + b'1], "b": "' + b"x y " * 1000 + b'"}')) < 300
    assert len(told_of_part("txt", b"a\n" * 1000).splitlines()) == 13
    assert told_of_part("txt", b"a\n" * 14).splitlines() == ["a"] * 14, "to cut two lines saves none"
    assert told_of_part("txt", b"a\n" * 15).splitlines()[12:] == ["… 3 more lines (--json has all)"]
    assert len(told_of_value([torch.zeros(9)] * 1000).splitlines()) == 6
    assert len(told_of_value("word " * 10_000)) < 500
    assert len(told_of_value({str(number): "x" * 1000 for number in range(1000)}).splitlines()) == 13


@dataclasses.dataclass
class Box:
    """Something with fields."""

    label: str
    corners: list[int]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a text", "a text"),
        ("", "empty"),
        (None, "None"),
        (7, "7"),
        (True, "True"),
        (["a", "b"], '["a", "b"]'),
        (list(range(9)), '[0, 1, 2, 3, 4, "… 4 more"]'),
        ({"a": [1]}, '{"a": [1]}'),
        (b"", "no bytes"),
        (bytes(3), "3 bytes: 00 00 00"),
        (torch.zeros(3, 4, 5), "float32 3×4×5, 0 … 0"),
        (torch.tensor(2), "int64 scalar: 2"),
        (np.arange(3, dtype=np.int16), "int16 3: [0, 1, 2]"),
        (torch.zeros(0, 2), "float32 0×2"),
        (Image.new("L", (4, 3)), "Pillow image 4×3 L"),
        ([torch.zeros(9), torch.ones(9)], "0: float32 9, 0 … 0\n1: float32 9, 1 … 1"),
        ({"image": torch.zeros(9)}, "image: float32 9, 0 … 0"),
        (Box("cat", [1, 2]), 'Box {"label": "cat", "corners": [1, 2]}'),
        (AVDecoder(film()), "10 frames 64×48, 25 fps; audio 2 channels, 44100 Hz; 1.00 s"),
        (AVDecoder(sound()), "audio 1 channel, 8000 Hz; 0.50 s"),
    ],
)
def test_values_are_described(value: Any, expected: str) -> None:
    assert told_of_value(value) == expected


def test_the_options_of_energons_command_are_taken(run: Run, prepared: Path) -> None:
    (prepared / ".nv-meta/again.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    by_default = shown(run, prepared, "--split-part", "test")
    output = shown(run, prepared, "--split-part", "train,test", "--dataset-config", "again.yaml")
    assert "→" in output and output.split("\n")[0] == by_default.split("\n")[0]
