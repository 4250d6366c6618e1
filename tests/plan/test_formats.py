"""The contract of every format of data. To add one, add a line to `KINDS`."""

import json
import multiprocessing
import pickle
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from bridge_data.data.blocks import RecordReader
from bridge_data.data.metadata import META_FOLDER
from bridge_data.data.records import counts_of, names_of, place_of
from bridge_data.errors import ConfigError
from bridge_data.plan import Source, load_plan
from bridge_data.plan.formats import FORMATS, find_format, format_of
from bridge_data.plan.opening import split_parts
from bridge_data.plugins.tables.table_records import TABLE_FILES
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.storage.copies import CACHE_VARIABLE
from tests.data.chunks import write_chunks, write_rows
from tests.object_store import Bucket, Server, faulty_proxy
from tests.plugins.convert.originals import converted, write_mds
from tests.prepared import write_texts
from tests.tables import save_to_disk, table_of, write_parquet

TEXTS = [f"text {number}" * (1 + number % 3) for number in range(23)]
PER_GROUP = 10


class Kind(NamedTuple):
    """A kind of data: the format that it has, and what writes texts to a folder and returns the path."""

    format: str
    write: Callable[[Path, Sequence[str]], Path]


def prepared(folder: Path, texts: Sequence[str]) -> Path:
    return write_texts(folder / "tars", len(texts), texts.__getitem__, per_shard=PER_GROUP)


def unprepared(folder: Path, texts: Sequence[str]) -> Path:
    path = prepared(folder, texts)
    shutil.rmtree(path / META_FOLDER)
    return path


def lines(folder: Path, texts: Sequence[str]) -> Path:
    path = folder / "lines.jsonl"
    path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    prepare_jsonl(path)
    return path


def table(texts: Sequence[str]) -> pa.Table:
    return table_of({"text": list(texts), "number": list(range(len(texts)))})


def arrow(folder: Path, texts: Sequence[str]) -> Path:
    with pa.OSFile(str(folder / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table(texts).schema) as writer:
        writer.write_table(table(texts), max_chunksize=PER_GROUP)
    return folder / "a.arrow"


def lance(folder: Path, texts: Sequence[str]) -> Path:
    package = pytest.importorskip("lance")
    package.write_dataset(table(texts), folder / "a.lance", max_rows_per_file=PER_GROUP)
    return folder / "a.lance"


def mds(folder: Path, texts: Sequence[str]) -> Path:
    samples = [{"text": text.encode(), "number": struct.pack("<q", number)} for number, text in enumerate(texts)]
    return write_mds(folder / "mds", samples, {"text": "str", "number": "int"})


def chunks(folder: Path, texts: Sequence[str]) -> Path:
    samples = [{"text": text.encode(), "number": struct.pack("<q", number)} for number, text in enumerate(texts)]
    return write_chunks(folder / "chunks", samples, {"text": "str", "number": "int"})


KINDS = {
    "prepared folder": Kind("folder", prepared),
    "unprepared tars": Kind("tars", unprepared),
    "one tar": Kind("tars", lambda folder, texts: unprepared(folder, texts) / "data-0000.tar"),
    "pattern of tars": Kind("tars", lambda folder, texts: unprepared(folder, texts) / "data-*.tar"),
    "JSONL file": Kind("jsonl", lines),
    ".parquet": Kind("tables", lambda at, texts: write_parquet(at / "a.parquet", table(texts), per_group=PER_GROUP)),
    ".arrow": Kind("tables", arrow),
    ".lance": Kind("tables", lance),
    ".mds": Kind("tables", lambda folder, texts: mds(folder, texts) / "shard.00000.mds"),
    "folder of MDS shards": Kind("tables", mds),
    ".bin": Kind("tables", lambda folder, texts: chunks(folder, texts) / "chunk-0-0.bin"),
    "folder of litData chunks": Kind("tables", chunks),
    "rows of litData": Kind("tables", lambda folder, texts: write_rows(folder / "rows", table(texts))),
    "saved data set": Kind(
        "tables", lambda at, texts: save_to_disk(at / "saved", table(texts), per_batch=PER_GROUP, num_files=2)
    ),
    "folder of Parquet files": Kind(
        "tables", lambda at, texts: write_parquet(at / "hub" / "train.parquet", table(texts)).parent
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kind:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return KINDS[request.param]


def written(kind: Kind, folder: Path, texts: Sequence[str] = TEXTS) -> Path:
    folder.mkdir()
    return kind.write(folder, texts)


def opened(path: Path | str) -> Source:
    (source,) = load_plan(path).sources
    return source


def text_of(parts: dict[str, Any]) -> str:
    if "json" in parts:
        return json.loads(parts["json"])["text"]  # type: ignore[no-any-return]
    return parts["text"] if "text" in parts else parts["txt"].decode()  # type: ignore[no-any-return]


def all_texts(reader: RecordReader, num_samples: int) -> list[str]:
    return [text_of(reader.read(index).parts) for index in range(num_samples)]


def test_every_format_and_every_kind_of_table_is_here() -> None:
    assert {kind.format for kind in KINDS.values()} == {"tables", "tars", *(kind.name for kind in FORMATS.values())}
    assert {*TABLE_FILES} <= {*KINDS}


def test_its_format_is_found_by_its_path(kind: Kind, tmp_path: Path) -> None:
    path = written(kind, tmp_path / "a")
    assert format_of(str(path)).name == kind.format
    assert split_parts(path)[0] == "train"
    assert find_format(str(tmp_path / "nothing")) is None
    assert opened(path).format == kind.format


def test_it_is_converted_to_the_samples_that_are_read_in_place(kind: Kind, tmp_path: Path) -> None:
    path = written(kind, tmp_path / "a")
    path = path.parent if "*" in path.name else path
    made, given = (opened(at).records for at in (converted(path, tmp_path / "out", "--num-workers", 2), path))
    assert all_texts(made.reader(), made.num_samples) == all_texts(given.reader(), given.num_samples)


def test_samples_are_there_in_their_order_by_number_and_by_block(kind: Kind, tmp_path: Path) -> None:
    records = opened(written(kind, tmp_path / "a")).records
    num_samples, reader = records.num_samples, records.reader()
    assert num_samples == sum(counts_of(records))
    assert all_texts(reader, num_samples) == TEXTS[:num_samples] and num_samples >= PER_GROUP
    for index in range(num_samples):
        sample = reader.read(index)
        assert (sample.index, sample.shard_name in names_of(records)) == (index, True)
        assert {*sample.parts} == {*(reader.part_names(0) or sample.parts)}
        assert sample.shard_name in place_of(records, index)
    count = next(count for count in reversed(counts_of(records)) if count)
    first = num_samples - count
    block = reader.read_block(range(first, num_samples), None) if count > 1 else None
    if block is not None:
        singly = [reader.read(index) for index in range(first, num_samples)]
        assert block.keys == [sample.key for sample in singly]
        found = [{block.name: content} if block.name else content for content in block.contents]
        assert found == [sample.parts for sample in singly]
        assert block.num_bytes > 0
    for index in (-1, num_samples):
        with pytest.raises(IndexError):
            reader.read(index)


def test_only_wanted_parts_are_read(kind: Kind, tmp_path: Path) -> None:
    reader = opened(written(kind, tmp_path / "a")).records.reader()
    for name in reader.read(3).parts:
        assert {*reader.read(3, {name}).parts} == {name}
    assert reader.read(3, ()).parts == {}


@pytest.fixture(scope="module")
def spawned() -> Iterator[Pool]:
    """A process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork:")
def test_records_and_readers_that_are_in_use_go_to_other_processes(kind: Kind, tmp_path: Path, spawned: Pool) -> None:
    records = opened(written(kind, tmp_path / "a")).records
    reader = records.reader()
    expected = all_texts(reader, records.num_samples)
    assert all_texts(pickle.loads(pickle.dumps(records)).reader(), records.num_samples) == expected
    assert spawned.apply(all_texts, (reader, records.num_samples)) == expected
    if kind.write is not lance:  # whose threads do not survive a fork
        with multiprocessing.get_context("fork").Pool(1) as forked:
            assert forked.apply(all_texts, (reader, records.num_samples)) == expected


def test_a_copy_is_the_same_data_and_other_samples_are_not(kind: Kind, tmp_path: Path) -> None:
    path = written(kind, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = opened(tmp_path / "b" / path.relative_to(tmp_path / "a"))
    other = opened(written(kind, tmp_path / "c", ["longer" * 9_000, *TEXTS[1:]]))
    assert json.dumps(copy.records.identity()) == json.dumps(opened(path).records.identity())
    assert copy.fingerprint == opened(path).fingerprint != other.fingerprint


def test_settings_that_it_does_not_take_are_refused_with_their_line(kind: Kind, tmp_path: Path) -> None:
    path = written(kind, tmp_path / "a")
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {train: {path: "
    refused = {"dataset_config", "split_config", "sample_type", "field_map", "part_filter"} - {
        *format_of(str(path)).settings
    }
    assert refused
    for setting in refused:
        (tmp_path / "m.yaml").write_text(f"{head}'{path}',\n {setting}: x}}}}\n")
        with pytest.raises(ConfigError, match=rf"m\.yaml:4: {setting} is for ") as caught:
            load_plan(tmp_path / "m.yaml")
        assert str(path) in str(caught.value)


def test_what_is_no_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "a.yaml").touch()
    for path, told in (
        (tmp_path, "not a prepared data set"),
        (tmp_path / "b", "no such"),
        (tmp_path / "a.txt", "got"),
        (tmp_path / "a.yaml", "name the data sets themselves"),
    ):
        assert find_format(str(path)) is None
        with pytest.raises(ConfigError, match=rf"{path}.*{told}|{told}.*{path}"):
            format_of(str(path))


def test_a_store_is_asked_little_before_data_are_opened(
    bucket: Bucket, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that find the format: by the name, one for a file or the prepared folder, and one list."""
    for name in ("prepared folder", "JSONL file", ".parquet", "saved data set"):
        KINDS[name].write(bucket.folder, TEXTS)
    with faulty_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        for name, num_requests in (("a.parquet", 0), ("lines.jsonl", 1), ("tars", 1), ("saved", 3)):
            proxy.requests.clear()
            assert find_format(f"{bucket.url}/{name}") is not None
            assert len(proxy.requests) <= num_requests, name
