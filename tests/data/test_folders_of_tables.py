"""What MDS shards, litData's chunks and Lance data sets have in common: rows by columns and keys, split parts, stores,
and files that are replaced. (What every kind of records has in common: `test_records_contract.py`.)"""

import gzip
import pickle
import shutil
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bridge_data import TextSample, WorkerConfig, get_loader, get_train_dataset, prepare_metadataset
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plan.opening import split_parts
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from bridge_data.plugins.tables.table_columns import columns_of
from bridge_data.plugins.tables.table_records import open_table
from bridge_data.storage import location
from tests.data.chunks import write_chunks, write_rows
from tests.object_store import Bucket
from tests.plan.joins import joined, own
from tests.plugins.convert.originals import write_mds
from tests.tables import opened, read


def samples(numbers: Iterable[int]) -> list[dict[str, bytes]]:
    return [{"text": b"text %d" % n, "__key__": b"k%d" % n, "n": struct.pack("<q", n)} for n in numbers]


def rows(numbers: Iterable[int]) -> pa.Table:
    texts = {"text": [f"text {n}" for n in numbers], "__key__": [f"k{n}" for n in numbers], "n": list(numbers)}
    return pa.table(texts)


def write_lance(path: Path, numbers: Iterable[int]) -> Path:
    pytest.importorskip("lance").write_dataset(rows(numbers), path, max_rows_per_file=10)
    return path


FORMATS = {"text": "str", "__key__": "str", "n": "int"}
WRITERS: dict[str, Callable[[Path, Any], Path]] = {
    "MDS": lambda path, numbers: write_mds(path, samples(numbers), FORMATS),
    "MDS.gz": lambda path, numbers: write_mds(path, samples(numbers), FORMATS, compression="gz", pack=gzip.compress),
    "litData": lambda path, numbers: write_chunks(path, samples(numbers), FORMATS),
    "litData rows": lambda path, numbers: write_rows(path, rows(numbers)),
    "a.lance": write_lance,
}
"""Tables of ten samples, but for rows of litData; by the names of their folders."""


@pytest.mark.parametrize("kind", WRITERS)
def test_rows_are_chosen_forgotten_and_joined_by_their_keys(tmp_path: Path, kind: str) -> None:
    path = WRITERS[kind](tmp_path / kind, range(90))
    assert read(opened(path, where="n % 10 = 3 and key <> 'k13'"))[:2] == ["text 3", "text 23"]
    forget_samples(path, [f"{opened(path).records.shards[0][0]}/k7", "k8"], "asked for")
    settings: dict[str, Any] = {"batch_size": 10, "shuffle_buffer_size": 20, "max_samples_per_sequence": 10}
    fields: dict[str, Any] = {"sample_type": TextSample, "field_map": {"text": "text"}}
    data = get_train_dataset(path, worker_config=WorkerConfig(0, 1, 0), repeat=False, **settings, **fields)
    found = [text for batch in get_loader(data) for text in batch.text]
    assert sorted(found) == sorted(f"text {n}" for n in range(90) if n not in (7, 8))
    next(tmp_path.rglob("_forgotten.bridge")).unlink()
    other = WRITERS[kind](tmp_path / "b" / kind, (5, 3, 80)).relative_to(tmp_path)
    texts = {"sample_type": "TextSample", "field_map": {"text": "text"}}
    members = {"left": {"path": str(other), **texts}, "right": {"path": kind, **texts}}
    prepare_metadataset(joined(tmp_path / "m.yaml", members, own("Both")))
    (source,) = load_plan(tmp_path / "m.yaml", trusted_modules=["tests"]).sources
    keys = [[member.key for member in source.records.reader().read(row).members] for row in range(3)]
    assert keys == [["k5", "k5"], ["k3", "k3"], ["k80", "k80"]]


@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_replaced_while_it_is_in_use_is_told(tmp_path: Path, kind: str) -> None:
    path = WRITERS[kind](tmp_path / kind, range(25))
    sent, used = pickle.dumps(opened(path).records), opened(path).records.reader()
    used.read(0)
    shutil.rmtree(path)
    WRITERS[kind](path, range(100, 126))
    for reader, number in ((pickle.loads(sent).reader(), 15), (used, 22)):
        if kind != "litData rows" or reader is not used:  # whose one chunk is still open
            with pytest.raises(DatasetError, match=rf"{path}.*(was replaced while it was in use|cannot be read)"):
                reader.read(number)


@pytest.mark.parametrize("kind", [kind for kind in WRITERS if "lance" not in kind])
def test_folders_are_split_parts_on_a_disk_and_in_a_store(bucket: Bucket, kind: str) -> None:
    for name, numbers in (("val", range(5)), ("train", range(5, 30))):
        WRITERS[kind](bucket.folder / "a" / name, numbers)
    for path in (str(bucket.folder / "a"), f"{bucket.url}/a"):
        assert split_parts(location(path)) == ["train", "val"]
        assert read(opened(path, split_part="val")) == [f"text {n}" for n in range(5)]
        assert read(opened(path, split_part="train")) == [f"text {n}" for n in range(5, 30)]
        assert opened(path, split_part="train").records.reader().read(0).full_key.startswith("train/")
        with pytest.raises(ConfigError, match="there is no split part 'test'; there is train, val"):
            opened(path, split_part="test")


@pytest.mark.parametrize(("kind", "step"), [("MDS", 1), ("litData", 1), ("litData rows", 5)])
def test_damaged_files_are_told_or_all_else_is_read_right(tmp_path: Path, kind: str, step: int) -> None:
    """Flips in offsets and sizes never give other bytes; flips in values, or in what describes rows, may."""
    file = next(WRITERS[kind](tmp_path / "a", range(10)).glob("*0*.*"))
    content = file.read_bytes()
    (first,) = struct.unpack_from("<I", content, 4)

    def found() -> list[list[Any]]:
        table = open_table(str(file))
        columns = [column for column in columns_of(table.schema, str(file)) if column.name in FORMATS]
        assert (len(columns), table.counts) == (2, [10])
        return [[table.values(one, 0, at, at + 1)[0] for one in columns] for at in range(10)]

    right = found()
    for number in range(0, len(content), step):
        flips = [content[:number] + bytes([content[number] ^ mask]) + content[number + 1 :] for mask in (1, 255)]
        for damaged in (content[:number], *flips):
            file.write_bytes(damaged)
            try:
                mine = found()
            except DatasetError as error:
                assert str(file) in str(error)
            except (ConfigError, AssertionError):  # other columns or counts
                assert len(damaged) == len(content) and (number < 4 or number >= 48)
            else:
                num_wrong = sum(one != other for one, other in zip(mine, right, strict=True))
                assert len(damaged) == len(content)
                assert kind == "litData rows" or (number >= 48 and (num_wrong <= 1 or number < first))
