"""Damaged files: what is read of them is right, or refused with a clear error.

Each case damages one file of a sound data set at random (bits, runs of zeros, blocks that change places, a cut end,
more bytes) and reads every sample, or every part by its name. The seeds are fixed.
"""

import contextlib
import functools
import io
import itertools
import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.data import RecordReader, ShardSet, open_shards
from bridge_data.data.blocks import BlockBudget, BlockCache, ChunkBlocks
from bridge_data.data.jsonl_file import open_jsonl
from bridge_data.data.records import verified
from bridge_data.errors import BridgeDataError
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import PrepareConfig, prepare
from bridge_data.task.stores.part_reader import PartReader
from tests.data.tars import write_tar

NUM_SHARDS, PER_SHARD = 2, 12
SHARD = "data-1.tar"
"""The one that is damaged."""

KEYS = [f"k{number:02d}" for number in range(NUM_SHARDS * PER_SHARD)]

Sample = tuple[str, dict[str, bytes]]


def parts_of(number: int) -> dict[str, bytes]:
    """Parts of different sizes, each of which says what it is."""
    key = KEYS[number]
    return {part: f"{key}.{part};".encode() * (1 + 37 * (number % 5) * (part == "txt")) for part in ("json", "txt")}


SAMPLES: list[Sample] = [(key, parts_of(number)) for number, key in enumerate(KEYS)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set, with digests."""
    folder = tmp_path_factory.mktemp("sound")
    for shard in range(NUM_SHARDS):
        samples = SAMPLES[shard * PER_SHARD : (shard + 1) * PER_SHARD]
        members = {f"{key}.{part}": content for key, parts in samples for part, content in parts.items()}
        write_tar(folder / f"data-{shard}.tar", members, tarfile.PAX_FORMAT if shard else tarfile.GNU_FORMAT)
    config = PrepareConfig(num_workers=1, digest=True)
    prepare(folder, functools.partial(split_by_ratio, ratio=parse_ratio("1,0,0")), config)
    return folder


def damaged(data: bytes, draw: random.Random) -> bytes:
    """`data`, changed at random."""
    content = bytearray(data)
    kind = draw.choice(["bit", "bits", "cut", "zeros", "swap", "swap blocks", "append"])
    at = draw.randrange(len(content))
    if kind in ("bit", "bits"):
        for _ in range(1 if kind == "bit" else draw.randint(2, 8)):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del content[at:]
    elif kind == "zeros":
        end = min(len(content), at + draw.choice([1, 8, 64, 512, 4096]))
        content[at:end] = bytes(end - at)
    elif kind == "append":
        content += draw.randbytes(draw.choice([1, 8, 512, 2048]))
    else:
        size = min(draw.choice([4, 8, 16]) if kind == "swap" else draw.choice([512, 1024, 2048]), len(content) // 2)
        one, other = (draw.randrange(0, len(content) - size + 1, min(size, 512)) for _ in range(2))
        first, second = content[one : one + size], content[other : other + size]
        content[one : one + size], content[other : other + size] = second, first
    return bytes(content)


def read_samples(shards: ShardSet, draw: random.Random) -> list[Sample | None]:
    """Every sample, singly or in blocks; None for one that is refused."""
    reader: RecordReader | BlockCache = shards.reader()
    if draw.random() < 0.5:
        reader = BlockCache(shards.shards, shards.reader(), ChunkBlocks(8, 4), None, BlockBudget(1 << 20))
    found: list[Sample | None] = [None] * shards.num_samples
    for index in draw.sample(range(shards.num_samples), shards.num_samples):
        try:
            raw = reader.read(index)
        except BridgeDataError as error:
            assert str(shards.root) in str(error)
        else:
            found[index] = raw.key, raw.parts
    return found


def as_stored(tar: bytes, data: bytes) -> list[Sample]:
    """The samples that `data` has where the sound shard `tar` has them."""
    samples: dict[str, dict[str, bytes]] = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            key, _, part = member.name.partition(".")
            samples.setdefault(key, {})[part] = data[member.offset_data : member.offset_data + member.size]
    return list(samples.items())


def as_a_tar(data: bytes) -> list[Sample]:
    """The samples of the tar `data`, as far as it can be read."""
    samples: dict[str, dict[str, bytes]] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
            for member in archive:
                key, _, part = member.name.partition(".")
                samples.setdefault(key, {})[part] = data[member.offset_data : member.offset_data + member.size]
    except tarfile.TarError:
        pass
    return list(samples.items())


def members_anywhere(data: bytes) -> set[tuple[str, bytes]]:
    """Name and content after every sound header."""
    members = set()
    for offset in range(0, len(data), 512):
        with contextlib.suppress(tarfile.HeaderError):
            info = tarfile.TarInfo.frombuf(data[offset : offset + 512], "utf-8", "surrogateescape")
            members.add((info.name, data[offset + 512 : offset + 512 + info.size]))
    return members


def damage_index_bridge(folder: Path, draw: random.Random) -> None:
    """The other indexes serve."""
    change(folder / ".nv-meta/index.bridge", draw)
    assert read_samples(open_shards(folder, "train"), draw) == SAMPLES


def damage_tar_index(folder: Path, draw: random.Random) -> None:
    (folder / ".nv-meta/index.bridge").unlink()
    change((folder / SHARD).with_suffix(".tar.idx"), draw)
    for found, sample in zip(read_samples(open_shards(folder, "train"), draw), SAMPLES, strict=True):
        assert found in (None, sample)


def damage_sqlite(folder: Path, draw: random.Random) -> None:
    change(folder / ".nv-meta/index.sqlite", draw)
    try:
        reader = PartReader(folder)
    except BridgeDataError:
        return
    for key, parts in SAMPLES:
        for part, content in parts.items():
            try:
                stored = reader.find(f"{key}.{part}")
                found = reader.read(stored), reader.read_range(stored, 3, 5)
            except BridgeDataError:
                continue
            assert found == (content, content[3:8])


def damage_tar(folder: Path, draw: random.Random) -> None:
    """Keys and boundaries are those of the preparation; contents, as the tar has them."""
    sound_tar = (folder / SHARD).read_bytes()
    change(folder / SHARD, draw)
    expected = SAMPLES[:PER_SHARD] + as_stored(sound_tar, (folder / SHARD).read_bytes())
    others = as_a_tar((folder / SHARD).read_bytes())
    for found, sample in zip(read_samples(open_shards(folder, "train"), draw), expected, strict=True):
        assert found in (None, sample) or found in others


def damage_tar_with_digests(folder: Path, draw: random.Random) -> None:
    """With digests, contents are those of the preparation, also where the time of change is that of the sound tar."""
    before = (folder / SHARD).stat()
    change(folder / SHARD, draw)
    if draw.random() < 0.5:
        os.utime(folder / SHARD, ns=(before.st_atime_ns, before.st_mtime_ns))
    shards = verified(open_shards(folder, "train"))
    for found, sample in zip(read_samples(shards, draw), SAMPLES, strict=True):
        assert found in (None, sample)


def damage_tar_without_our_index(folder: Path, draw: random.Random) -> None:
    """Only the headers say what a content is: each that is read follows a sound header with its name and size."""
    (folder / ".nv-meta/index.bridge").unlink()
    change(folder / SHARD, draw)
    stored = members_anywhere((folder / SHARD).read_bytes())
    found = read_samples(open_shards(folder, "train"), draw)
    for sample, expected in zip(found[:PER_SHARD], SAMPLES, strict=False):
        assert sample in (None, expected)
    for sample in filter(None, found[PER_SHARD:]):
        assert stored >= {(f"{sample[0]}.{part}", content) for part, content in sample[1].items()}


LINES = [json.dumps({"key": key, "more": "x" * (7 * number % 50)}).encode() for number, key in enumerate(KEYS)]


def damage_jsonl_index(folder: Path, draw: random.Random) -> None:
    change(write_jsonl(folder).with_suffix(".jsonl.idx"), draw)
    for found, line in zip(read_lines(folder / "a.jsonl", draw), LINES, strict=True):
        assert found in (None, line)


def damage_jsonl(folder: Path, draw: random.Random) -> None:
    """Lines begin and end where they did."""
    path = write_jsonl(folder)
    change(path, draw)
    data = path.read_bytes()
    ends = list(itertools.accumulate(len(line) + 1 for line in LINES))
    for found, start, end in zip(read_lines(path, draw), [0, *ends], ends, strict=False):
        assert found in (None, data[start:end].strip())


def write_jsonl(folder: Path) -> Path:
    path = folder / "a.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in LINES))
    prepare_jsonl(path, num_workers=1)
    return path


def read_lines(path: Path, draw: random.Random) -> list[bytes | None]:
    """Every line, singly or in blocks; None for one that is refused."""
    found: list[bytes | None] = [None] * len(LINES)
    try:
        records = open_jsonl(path, "train")
    except BridgeDataError:
        return found
    reader: RecordReader | BlockCache = records.reader()
    if draw.random() < 0.5:
        reader = BlockCache(records.shards, records.reader(), ChunkBlocks(8, 4), None, BlockBudget(1 << 20))
    for index in draw.sample(range(len(LINES)), len(LINES)):
        with contextlib.suppress(BridgeDataError):
            found[index] = reader.read(index).parts["json"]
    return found


KINDS = [
    damage_jsonl_index,
    damage_jsonl,
    damage_index_bridge,
    damage_tar_index,
    damage_sqlite,
    damage_tar,
    damage_tar_with_digests,
    damage_tar_without_our_index,
]


def change(path: Path, draw: random.Random) -> None:
    """Damage the file at `path`."""
    before = path.read_bytes()
    path.write_bytes(damaged(before, draw))


@pytest.mark.seconds
@pytest.mark.parametrize("damage", KINDS)
@pytest.mark.parametrize("seeds", [range(70), pytest.param(range(1000, 3000), marks=pytest.mark.slow)], ids=len)
def test_what_is_read_of_damaged_files_is_right_or_refused(
    sound: Path, tmp_path: Path, damage: Callable[[Path, random.Random], None], seeds: range
) -> None:
    """Seeds from 1,000 on are drawn where there is time."""
    folder = tmp_path / "data"
    for seed in seeds:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(sound, folder)
        storage.close_files()
        try:
            damage(folder, random.Random(seed))
        except BaseException as error:
            error.add_note(f"{damage.__name__}, seed {seed}")
            raise


def test_an_undamaged_copy_is_read_and_samples_that_changed_places_are_found_out(sound: Path, tmp_path: Path) -> None:
    """With other times; the size of the shard is the same, and so is its last sample."""
    shutil.copytree(sound, tmp_path / "data", copy_function=shutil.copyfile)
    shards = open_shards(tmp_path / "data", "train")
    for seed in range(4):
        assert read_samples(shards, random.Random(seed)) == SAMPLES
        assert read_samples(verified(shards), random.Random(seed)) == SAMPLES
    path = tmp_path / "data" / SHARD
    samples, size = SAMPLES[PER_SHARD:], path.stat().st_size
    order = [5, 1, 2, 3, 4, 0, *range(6, PER_SHARD)]
    members = {f"{samples[n][0]}.{part}": content for n in order for part, content in samples[n][1].items()}
    write_tar(path, members, tarfile.PAX_FORMAT)
    assert path.stat().st_size == size
    storage.close_files()
    reader = open_shards(tmp_path / "data", "train").reader()
    for index in (12, 17):
        with pytest.raises(BridgeDataError, match=rf"{SHARD}: sample '{KEYS[index]}'.*was replaced.*restore it"):
            reader.read(index)
    assert reader.read(PER_SHARD + 1).parts == samples[1][1]


def test_an_index_that_is_overwritten_while_it_is_in_use_is_an_error_or_not_needed(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "data")
    shards = open_shards(tmp_path / "data", "train")
    reader = shards.reader()
    path = tmp_path / "data/.nv-meta/index.bridge"
    assert reader.read(0).key == KEYS[0]
    whole = path.read_bytes()
    for cut in (len(whole) // 2, 100, 0):
        with open(path, "r+b") as file:
            file.truncate(cut)
        for found, sample in zip(read_samples(shards, random.Random(cut)), SAMPLES, strict=True):
            assert found in (None, sample)
