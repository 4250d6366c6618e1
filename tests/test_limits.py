"""Each limit, by the hostile input that it is for: refused by our error, in little time and memory."""

import contextlib
import gzip
import io
import itertools
import json
import struct
import subprocess
import sys
import tarfile
import time
import wave
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from bridge_data import (
    ConfigError,
    Cooker,
    DatasetError,
    DefaultTaskEncoder,
    SampleError,
    TextSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from bridge_data.data.metadata import read_split
from bridge_data.data.plain_data import parse_yaml_file
from bridge_data.data.tar_files import MemoryTar, walk
from bridge_data.decode import SampleDecoder
from bridge_data.decode.av import AVDecoder
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from tests.memory import sizes_bytes
from tests.prepared import write_texts

MAX_SECONDS, MAX_BYTES = 10.0, 3 << 28
"""Of memory, what decoding adds to that of the modules, which is 0.6 GB with the tests' own."""


def png_of(width: int, height: int) -> bytes:
    """A PNG of white pixels; its rows are compressed a block at a time."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    compress = zlib.compressobj(1)
    row = bytes(1 + width)
    data = b"".join(compress.compress(row) for _ in range(min(height, 500))) + compress.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def jpeg_of_scans(num_scans: int) -> bytes:
    """A progressive JPEG whose last scan comes many times."""
    file = io.BytesIO()
    Image.new("RGB", (3000, 3000), (90, 100, 110)).save(file, "JPEG", progressive=True)
    data = file.getvalue()[:-2]
    return data + data[data.rfind(b"\xff\xda") :] * num_scans + b"\xff\xd9"


def gzip_of(num_bytes: int) -> bytes:
    """A gzip file of zeros, made of members of 64 MiB."""
    return gzip.compress(bytes(1 << 26), 1) * (num_bytes >> 26)


def zip_of(num_bytes: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for number in range(num_bytes >> 26):
            archive.writestr(f"archive/data/{number}", bytes(1 << 26))
    return file.getvalue()


def wav_of(seconds: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 1, 8000, 0, "NONE", "none"))
        sound.writeframes(bytes([128]) * 8000 * seconds)
    return file.getvalue()


PARTS: dict[str, Callable[[], bytes]] = {
    "txt.gz": lambda: gzip_of(8 << 30),
    "json.gz.gz.gz": lambda: gzip.compress(gzip.compress(gzip_of(8 << 30))),
    "txt.gz.gz.gz.gz": lambda: b"",
    "npz": lambda: zip_of(5 << 26),
    "pth": lambda: zip_of(5 << 26),
    "png": lambda: png_of(60_000, 60_000),
    "jpg": lambda: jpeg_of_scans(10_000),
    "json": lambda: b"[" * 100_000 + b"]" * 100_000,
    "deep.json": lambda: b'{"a":' * 500 + b"1" + b"}" * 500,
    "long.json": lambda: b"[" + b"1," * (20 << 20) + b"1]",
    "digits.json": lambda: b"9" * 10_000,
    "cls": lambda: b"9" * 10_000,
    "npy": lambda: (
        b"\x93NUMPY\x01\0\x76\0"
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}".ljust(117)
        + b"\n"
    ),
}


MEASURE = """
import time
from tests.memory import sizes_bytes
from tests.test_limits import PARTS, SampleDecoder, SampleError
import PIL.Image, torch, numpy
decoder = SampleDecoder()
_, imported_bytes = sizes_bytes()
for part, make in PARTS.items():
    content = make()
    begin = time.process_time()
    try:
        decoder.decode(part, content)
        told = "accepted"
    except SampleError as error:
        told = str(error)[:200].replace(chr(10), " ")
    print(part, time.process_time() - begin, sizes_bytes()[0] - imported_bytes, told, sep="|")
"""


@pytest.mark.processes
def test_parts_that_cost_too_much_are_sample_errors_in_little_time_and_memory() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    lines = [line.split("|", 3) for line in done.stdout.splitlines()]
    print(done.stdout)
    assert [line[0] for line in lines] == [*PARTS]
    for part, seconds, num_bytes, told in lines:
        assert told != "accepted", part
        assert float(seconds) < MAX_SECONDS and int(num_bytes) < MAX_BYTES, (part, seconds, num_bytes, told)


def test_limits_of_the_data_set_hold_for_decoders_without_their_own() -> None:
    image, sound = png_of(40, 30), wav_of(2)
    strict = Limits(max_image_pixels=1199, max_audio_bytes=15_000, max_json_depth=2, max_json_bytes=20)
    for part, content, told in (
        ("png", image, "40 x 30 pixels are more than the 1199 allowed"),
        ("json", b"[[[1]]]", "nested more than the 2 levels allowed"),
        ("json", b"[1, 2, 3, 4, 5, 6, 7]", "more than the 20 allowed"),
    ):
        SampleDecoder().decode(part, content)
        SampleDecoder(limits=Limits()).within(strict).decode(part, content)
        with pytest.raises(SampleError, match=told):
            SampleDecoder().within(strict).decode(part, content)
    decoder = SampleDecoder(av_decode="torch")
    assert decoder.decode("wav", sound).audio_clips[0].shape == (1, 16_000)
    with pytest.raises(SampleError, match=r"max_audio_bytes"):
        decoder.within(strict).decode("wav", sound)
    with pytest.raises(SampleError, match=r"max_audio_bytes"):
        SampleDecoder().within(strict).decode("wav", sound).get_audio()
    AVDecoder(sound).get_audio_clips([(0, 1)])


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_a_limit_is_an_integer_of_at_least_one(value: object) -> None:
    with pytest.raises(ConfigError, match=r"Limits\(max_shards="):
        Limits(max_shards=value)  # type: ignore[arg-type]


class Raw(DefaultTaskEncoder):
    cookers = (Cooker(lambda sample: TextSample(__key__=sample["__key__"], text=str(sample["json"]))),)


LINES = {"long": b'{"a": "' + b"x" * 2000 + b'"}', "deep": b'{"a": ' + b"[" * 30 + b"]" * 30 + b"}"}


@pytest.mark.parametrize("kind", LINES)
def test_a_line_beyond_a_limit_is_left_out_and_counted(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b'{"a": %d}\n' % number for number in range(9)) + LINES[kind] + b"\n")
    prepare_jsonl(path)
    for limits, num_left_out in ((DEFAULT_LIMITS, 0), (Limits(max_json_bytes=1000, max_json_depth=20), 1)):
        told: list[str] = []
        config = WorkerConfig(0, 1, 0, global_error_handler=lambda error, *_, told=told: told.append(str(error)))
        dataset = get_train_dataset(
            path, worker_config=config, batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None,
            repeat=False, limits=limits, task_encoder=Raw(),
        )  # fmt: skip
        with get_savable_loader(dataset) as loader:
            assert len(list(loader)) == 10 - num_left_out
            assert sum(loader.skipped.values()) == num_left_out
        assert len(told) == num_left_out
        assert all("Limits(max_json_" in text and "9" in text for text in told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("split_parts:\n  train:\n  - '{000000000..999999999}.tar'\n", r"split\.yaml:3: with pattern .*max_shards"),
        ("split_parts: {train: ['{0..9999}{0..9999}{a,b}.tar']}", r"split\.yaml:1: .*max_shards"),
        ("split_parts: {train: ['a{0..600000}', 'b{0..600000}']}", r"split\.yaml:1: with pattern 'b.*max_shards"),
        ("split_parts: {train: ['" + "{a,b}" * 400 + "']}", r"max_shards"),
        ("split_parts: {train: ['" + "{a," * 5000 + "}" * 5000 + "']}", r"more than 32 braces are open at once"),
        ("split_parts: {train: ['{" + "0" * 5000 + "1..2}']}", r"more than 32 digits"),
        ("split_parts: {train: ['{a..z}{a..z}{a..z}{a..z}{a..z}']}", r"max_shards"),
        ("- " * 100_000, r"split\.yaml:1: more levels than the 64 allowed"),
        ("[" * 100_000, r"split\.yaml:1: (more levels than the 64 allowed|.*nesting depth)"),  # or PyYAML's own
        ("- x\n" * 600_000, r"split\.yaml:1: more values than the 500000 allowed"),
        ("a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
         for a, b in zip("abcdefghij", "bcdefghijk", strict=True)), r"split\.yaml:7: with aliases, more values"),
        ("".join(f"a{i}: &a{i} [{f'*a{i - 1}' if i else 'x'}]\n" for i in range(5000)), r"with aliases, more levels"),
        ("x" * (65 << 20), r"Limits\(max_document_bytes\)"),
        ("split_parts: {train: " + "9" * 10_000 + "}", r"split\.yaml:1: not readable as YAML: Exceeds the limit"),
        ("split_parts: {train: 2001-99-99}", r"split\.yaml:1: not readable as YAML"),
    ],
    ids=lambda value: str(value)[:24],
)  # fmt: skip
def test_a_split_that_costs_too_much_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "split.yaml").write_text(text)
    begin, before = time.process_time(), sizes_bytes()[0]
    with pytest.raises(ConfigError, match=told) as caught:
        read_split(tmp_path).shards("train")
    assert len(str(caught.value)) < 1000
    assert time.process_time() - begin < MAX_SECONDS
    assert sizes_bytes()[0] - before < MAX_BYTES


def levels(value: object) -> int:
    if not isinstance(value, (list, dict)):
        return 0
    return 1 + max(map(levels, value.values() if isinstance(value, dict) else value), default=0)


def test_no_short_yaml_is_read_that_has_more_levels_than_are_allowed() -> None:
    limits, num_read = Limits(max_yaml_depth=2), 0
    for text in map("".join, itertools.product("[]{}-: \na", repeat=5)):
        with contextlib.suppress(ConfigError):
            assert levels(parse_yaml_file(text, "a.yaml", limits)) <= 2, text
            num_read += 1
    assert num_read > 1000


def metadataset(*paths: str, key: str = "train") -> str:
    items = "".join(f"      - path: {path}\n" for path in paths)
    return f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  {key}:\n    blend:\n{items}"


def load(path: Path, **options: object) -> None:
    get_train_dataset(
        path, worker_config=WorkerConfig(0, 1, 0), batch_size=1, shuffle_buffer_size=None,
        max_samples_per_sequence=None, **options,
    )  # fmt: skip


def test_metadatasets_that_name_each_other_deeply_or_often_are_refused_with_file_and_line(tmp_path: Path) -> None:
    write_texts(tmp_path / "data", 4)
    for level in range(20):
        below = f"m{level + 1}.yaml" if level < 19 else "data"
        (tmp_path / f"m{level}.yaml").write_text(metadataset(below, below))
    begin = time.process_time()
    with pytest.raises(ConfigError, match=r"m15\.yaml:6: .*m16\.yaml: is named through more than the 16 metadatasets"):
        load(tmp_path / "m0.yaml")
    with pytest.raises(ConfigError, match=r"m\d+\.yaml:\d: .*name more than the 65536 data sets and metadatasets"):
        load(tmp_path / "m3.yaml", limits=Limits(max_metadataset_depth=30))
    assert time.process_time() - begin < MAX_SECONDS
    load(tmp_path / "m15.yaml")
    with pytest.raises(ConfigError, match=r"more than the 20 data sets and metadatasets"):
        load(tmp_path / "m15.yaml", limits=Limits(max_references=20))


def test_metadatasets_in_a_cycle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(metadataset("b.yaml"))
    (tmp_path / "b.yaml").write_text(metadataset("a.yaml"))
    with pytest.raises(ConfigError, match=r"b\.yaml:6: .*a\.yaml refers to itself"):
        load(tmp_path / "a.yaml")


def test_what_is_no_text_or_has_numbers_of_thousands_of_digits_is_our_error(tmp_path: Path) -> None:
    write_texts(tmp_path / "data", 4)
    meta = tmp_path / "data" / ".nv-meta"
    counts = json.loads((meta / ".info.json").read_text())
    for name, content in (
        ("index.uuid", b"\xff\xfe\0"),
        (".info.json", b'{"shard_counts": {"a.tar": ' + b"9" * 10_000 + b"}}"),
        (".info.json", b"[" * 100_000),
        (".info.json", json.dumps({"shard_counts": dict.fromkeys(counts["shard_counts"], 10**30)}).encode()),
        ("dataset.yaml", b"- " * 100_000),
    ):
        kept = (meta / name).read_bytes()
        (meta / name).write_bytes(content)
        with pytest.raises((ConfigError, DatasetError), match=name):
            load(tmp_path / "data")
        (meta / name).write_bytes(kept)
    load(tmp_path / "data")


def pax_tar(num_headers: int, num_bytes: int) -> bytes:
    """A tar with one file after `num_headers` pax headers of `num_bytes` bytes each."""
    record = b"%d comment=" % num_bytes
    content = (record + b"x" * (num_bytes - len(record) - 1) + b"\n").ljust(-(-num_bytes // 512) * 512, b"\0")
    header = tarfile.TarInfo("pax")
    header.type, header.size = b"x", num_bytes
    file = tarfile.TarInfo("a.txt")
    return (header.tobuf(tarfile.USTAR_FORMAT) + content) * num_headers + file.tobuf() + bytes(1024)


@pytest.mark.parametrize(
    ("num_headers", "num_bytes", "told"),
    [(5000, 100, "more than the 16 extended headers"), (1, 20 << 20, "more than the 1048576 bytes allowed")],
)
def test_tars_with_many_or_large_pax_headers_are_refused(num_headers: int, num_bytes: int, told: str) -> None:
    begin = time.process_time()
    data = pax_tar(num_headers, num_bytes)
    with pytest.raises(DatasetError, match=rf"a\.tar: no readable tar header at byte 0, at the beginning: .*{told}"):
        list(walk(MemoryTar(data, 0), 0, len(data), file="a.tar"))
    assert time.process_time() - begin < MAX_SECONDS
    good = pax_tar(16, 100)
    assert [member.name for member in walk(MemoryTar(good, 0), 0, len(good), file="a.tar")] == ["a.txt"]
