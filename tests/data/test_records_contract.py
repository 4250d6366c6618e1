"""The contract of every kind of `Records`: what they know without reading samples is what their readers read. To add a
kind, add a line to `KINDS`. (Formats by their paths: `tests/plan/test_formats.py`; blocks: `test_blocks.py`.)"""

import bisect
import itertools
import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from bridge_data.data import RawSample, Records, Subset
from bridge_data.data.records import (
    contents_of,
    count_samples,
    fingerprint_of,
    place_of,
    selected_number,
    stored_number,
    stored_records,
)
from bridge_data.data.sample_keys import find, fix_repeated_keys, join_problem, keys_of
from bridge_data.data.withheld import withheld
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plan.in_memory import InMemoryDataset
from bridge_data.plugins.joins.joined_records import JoinRecords
from bridge_data.plugins.joins.joins import JoinMember
from bridge_data.plugins.joins.metadataset_joins import make_join
from bridge_data.plugins.tables import table_records
from bridge_data.plugins.where import shard_columns  # noqa: F401 - registers itself
from bridge_data.plugins.where.choices import ChosenRecords
from bridge_data.plugins.where.choosing import choose
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.sample_columns import INDEX, ROWS_AT_ONCE, columns_of
from bridge_data.runs.named_samples import find_sample
from bridge_data.samples import TextSample
from bridge_data.storage.copies import CACHE_VARIABLE
from tests.data.chunks import write_chunks, write_rows
from tests.data.joins import dataset, join, narrowed, rows
from tests.data.reads import record_reads
from tests.data.tars import write_tar
from tests.plugins.convert.originals import write_mds
from tests.plugins.where.test_choosing import Clause
from tests.tables import save_to_disk, table_of, write_parquet

KEYS = ["a/1", "2", "3", "4.5", "ä:6", "7", "8", "9", "10", "11", "12"]


def opened(path: Path) -> Records:
    (source,) = load_plan(path).sources
    return source.records


def tars(folder: Path) -> Records:
    return dataset(folder, [["a/1", "2", "3"], ["x:4", "5"], ["3", "6"]])


def without_some(folder: Path, *lost: str) -> Records:
    """Shards in another order, without two samples and without some index."""
    dataset(folder, [["a/1", "2", "3"], ["4", "5"], ["6", "7", "8"]])
    for name in lost:
        (folder / ".nv-meta" / name).unlink()
    parts = {"train": ["2.tar", "0.tar", "1.tar"]}
    return narrowed(folder, split_parts=parts, exclude=["0.tar/2", "2.tar/6", "1.tar/5"])


def unprepared(folder: Path) -> Records:
    for number, keys in enumerate((["a", "b"], ["c"], ["a", "d"])):
        write_tar(folder / f"{number}.tar", {f"{key}.txt": b"x" for key in keys})
    return opened(folder)


def lines(folder: Path) -> Records:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.jsonl").write_text('{"n": 1}\n\n' * 12)
    prepare_jsonl(folder / "a.jsonl")
    return opened(folder / "a.jsonl")


def table(*, has_keys: bool) -> pa.Table:
    return table_of(({"__key__": KEYS} if has_keys else {}) | {"text": KEYS})


def files(folder: Path, *, has_keys: bool = True) -> Records:
    """Three Parquet files, one of them without rows, with several row groups."""
    for number, (first, count) in enumerate(((0, 5), (5, 0), (5, 6))):
        rows = table(has_keys=has_keys).slice(first, count)
        write_parquet(folder / f"{number}.parquet", rows, per_group=2)
    return opened(folder)


def numbered(folder: Path) -> Records:
    """Rows whose keys are whole numbers, one of them twice."""
    return opened(write_parquet(folder / "a.parquet", table_of({"__key__": [7, 8, 9, 7, -1], "text": list("abcde")})))


def lance(folder: Path, *, has_keys: bool) -> Records:
    rows = table(has_keys=has_keys)
    pytest.importorskip("lance").write_dataset(rows, folder / "a.lance", max_rows_per_file=4)
    return opened(folder / "a.lance")


def mds(folder: Path, *, has_keys: bool) -> Records:
    rows = [{"__key__": key.encode(), "text": key.encode()} if has_keys else {"text": key.encode()} for key in KEYS]
    return opened(write_mds(folder / "a", rows, dict.fromkeys(rows[0], "str")))


def chunks(folder: Path, *, has_keys: bool) -> Records:
    rows = [{"__key__": key.encode(), "text": key.encode()} if has_keys else {"text": key.encode()} for key in KEYS]
    return opened(write_chunks(folder / "a", rows, dict.fromkeys(rows[0], "str")))


def joined(folder: Path) -> Records:
    first, second = files(folder / "a"), dataset(folder / "b", [KEYS[7:2:-1], KEYS[:2]])
    index = join(folder / "j", first, (second, "skip"))
    return JoinRecords(index=index, members=(first, second), parts=(None, None))


def in_memory(folder: Path) -> Records:
    texts = [TextSample(__key__=key, text=key) for key in (*KEYS, "2")]
    return InMemoryDataset(texts, fingerprint="1").source().records


def chosen(records: Records) -> Records:
    return ChosenRecords(records, choose(records, [Clause("index % 3 <> 1 and index <> 3")]))


KINDS: dict[str, Callable[[Path], Records]] = {
    "tars": tars,
    "tars without some": without_some,
    "tars without our index": lambda folder: without_some(folder, "index.bridge"),
    "tars without index.sqlite": lambda folder: without_some(folder, "index.sqlite"),
    "unprepared tars": unprepared,
    "JSONL file": lines,
    "Parquet files with keys": files,
    "Parquet files without keys": lambda folder: files(folder, has_keys=False),
    "whole numbers as keys": numbered,
    "saved data set": lambda folder: opened(save_to_disk(folder, table(has_keys=True), per_batch=3, num_files=2)),
    "saved without keys": lambda folder: opened(save_to_disk(folder, table(has_keys=False), per_batch=3, num_files=2)),
    "Lance with keys": lambda folder: lance(folder, has_keys=True),
    "Lance without keys": lambda folder: lance(folder, has_keys=False),
    "MDS with keys": lambda folder: mds(folder, has_keys=True),
    "MDS without keys": lambda folder: mds(folder, has_keys=False),
    "litData with keys": lambda folder: chunks(folder, has_keys=True),
    "litData without keys": lambda folder: chunks(folder, has_keys=False),
    "rows of litData with keys": lambda folder: opened(write_rows(folder, table(has_keys=True))),
    "join": joined,
    "range of a join": lambda folder: Subset(joined(folder), 2, 6),
    "in memory": in_memory,
    "range of tars": lambda folder: Subset(without_some(folder), 1, 4),
    "range of lines": lambda folder: Subset(lines(folder), 2, 9),
    "range of a range of rows": lambda folder: Subset(Subset(files(folder), 1, 10), 2, 8),
    "empty range": lambda folder: Subset(files(folder), 4, 4),
    "chosen of tars": lambda folder: chosen(tars(folder)),
    "chosen of a range of lines": lambda folder: chosen(Subset(lines(folder), 1, 10)),
    "range of chosen rows": lambda folder: Subset(chosen(files(folder)), 1, 5),
}

WITHOUT_COLUMNS = {
    "join",
    "range of a join",
    "in memory",
    "tars without our index",
    "chosen of tars",
    "chosen of a range of lines",
    "range of chosen rows",
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def records(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(table_records, "KEYS_AT_ONCE", 3)
    return KINDS[kind](tmp_path / "data")


def samples_of(records: Records) -> list[RawSample]:
    """Shard and key of each sample, as they are read."""
    reader = records.reader()
    return [reader.read(index, ()) for index in range(count_samples(records))]


def test_the_identity_is_that_of_the_samples_wherever_they_are(records: Records, kind: str, tmp_path: Path) -> None:
    known = records.identity(), fingerprint_of(records), contents_of(records), records.shards
    sent = pickle.loads(pickle.dumps(records))
    assert (sent.identity(), fingerprint_of(sent), contents_of(sent), sent.shards) == known
    assert json.loads(json.dumps(records.identity())) is not None
    if "Lance" not in kind:  # which names its files anew
        again = KINDS[kind](tmp_path / "elsewhere" / "data")
        assert (again.identity(), fingerprint_of(again), contents_of(again), again.shards) == known


def test_a_block_has_the_samples_that_are_read_singly(records: Records) -> None:
    """With all parts, and with one; None stands for a sample that is read singly."""
    reader, first = records.reader(), 0
    for _, count in records.shards:
        shard, first = range(first, first + count), first + count
        parts = next((name for index in shard for name in reader.read(index).parts), None)
        for wanted in (None, {parts}):
            block = reader.read_block(shard, wanted) if count > 1 and reader.has_blocks else None
            for at, index in enumerate(shard if block is not None else ()):
                assert block is not None
                sample, content = reader.read(index, wanted), block.contents[at]
                found = {block.name: content} if block.name else content
                assert (block.keys[at], block.shard_name, found) == (sample.key, sample.shard_name, sample.parts)
                assert block.numbers[at] == sample.index


def test_what_is_read_is_what_was_announced(records: Records, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of data that can tell before they are read; headers are read once, before the first sample."""
    reader, first, reads = records.reader(), 0, record_reads(monkeypatch)
    for _, count in records.shards:
        shard, first = range(first, first + count), first + count
        for block in (shard, *(range(index, index + 1) for index in shard)):
            ranges = reader.byte_ranges(block) if block else ()
            for index in block:
                reader.read(index)
            reads.clear()
            if len(block) == 1:
                reader.read(block[0])
            elif block and reader.has_blocks:
                reader.read_block(block, None)
            if ranges and "without our index" not in kind and "without some" not in kind:
                for path, start, num_bytes in reads:
                    spans = [(begin, begin + size) for name, begin, size in ranges if name == path]
                    assert any(begin <= start and start + num_bytes <= end for begin, end in spans), (path, start)


def test_errors_name_the_shard_of_a_sample_and_a_number_that_is_none(records: Records) -> None:
    reader, num_samples = records.reader(), count_samples(records)
    ends = [*itertools.accumulate(count for _, count in records.shards)]
    for index, sample in enumerate(samples_of(records)):
        assert place_of(records, index).startswith(sample.shard_name)
        name, _ = records.shards[bisect.bisect_right(ends, index)]
        assert name == sample.shard_name and sample.full_key.endswith(sample.key)
    for wrong in (-1, num_samples):
        with pytest.raises(IndexError):
            reader.read(wrong)
        with pytest.raises(IndexError):
            reader.byte_ranges(range(wrong, wrong + 1))


def test_keys_of_any_range_are_those_that_are_read(records: Records) -> None:
    expected, sent = [sample.key for sample in samples_of(records)], pickle.loads(pickle.dumps(records))
    for first, end in itertools.combinations_with_replacement(range(len(expected) + 1), 2):
        assert [*keys_of(records, range(first, end))] == expected[first:end], (first, end)
    assert [*keys_of(sent, range(len(expected)))] == expected


def test_samples_are_found_by_their_keys_and_no_others(records: Records) -> None:
    everything = [(index, sample.key) for index, sample in enumerate(samples_of(records))]
    several = {key for _, key in everything[::2]}
    unknown = {"", "a", "02", "-0", "٢", "1.0", "9" * 5000, "ä", "a/"} - {key for _, key in everything}
    for keys in (several, {key for _, key in everything} | unknown, unknown, set[str]()):
        assert sorted(find(records, keys)) == [(index, key) for index, key in everything if key in keys]


def test_names_with_their_shard_find_one_sample(records: Records) -> None:
    names = Counter((sample.shard_name, sample.key) for sample in samples_of(records))
    for index, sample in enumerate(samples_of(records)):
        for name in (f"{sample.shard_name}:{sample.key}", f"{sample.shard_name}/{sample.key}"):
            if names[sample.shard_name, sample.key] == 1:
                (found,) = find_sample([records], name)
                assert (found.index, found.shard, found.key) == (index, sample.shard_name, sample.key)
            else:
                with pytest.raises(ConfigError, match="is the key of 2 samples"):
                    find_sample([records], name)


def test_the_names_that_an_error_lists_find_the_samples_of_several_data_sets(
    records: Records, kind: str, tmp_path: Path
) -> None:
    several = [records, KINDS[kind](tmp_path / "other" / "data")]
    keys = Counter(sample.key for sample in samples_of(records))
    key = next((key for key, count in keys.items() if count == 1), None)
    if key is None or kind == "in memory":
        pytest.skip("no key of its own, or no path")
    with pytest.raises(ConfigError, match="is the key of 2 samples") as refused:
        find_sample(several, key)
    names = str(refused.value).partition("say which is meant: ")[2].split(", ")
    assert [find_sample(several, name)[0].records for name in names] == [0, 1]


def test_columns_are_keys_shards_and_numbers_as_they_are_read(records: Records, kind: str) -> None:
    if kind in WITHOUT_COLUMNS:
        with pytest.raises(ConfigError, match=r"where: (is for prepared data sets|needs our index)"):
            columns_of(records)
        return
    columns = columns_of(records)
    found: list[tuple[int, str, str, int]] = []
    for indices, values in columns.batches([columns.key, columns.shard, INDEX]):
        read = (values[path].to_pylist() for path in (columns.key, columns.shard, INDEX))
        found += zip(indices.tolist(), *read, strict=True)
        assert len(indices) <= ROWS_AT_ONCE and {columns.key, columns.shard} <= {*columns.types(), *values}
    expected = [(index, one.key, one.shard_name, index) for index, one in enumerate(samples_of(records))]
    assert sorted(found) == expected


def test_a_number_below_all_selections_leads_back(records: Records) -> None:
    below = stored_records(records)
    stored = [stored_number(records, index) for index in range(count_samples(records))]
    assert stored == sorted(set(stored)) and (records is not below or stored == [*range(count_samples(records))])
    numbers = {number: index for index, number in enumerate(stored)}
    assert [selected_number(records, number) for number in range(count_samples(below))] == [
        numbers.get(number) for number in range(count_samples(below))
    ]
    reader = below.reader()
    assert [reader.read(number, ()).key for number in stored] == [sample.key for sample in samples_of(records)]


def test_no_sample_is_forgotten_where_there_are_no_lists(records: Records) -> None:
    forgotten = withheld(records)
    assert not forgotten and not any(index in forgotten for index in range(count_samples(records)))


def test_they_can_be_joined_to_themselves_or_say_why_not(records: Records, kind: str, tmp_path: Path) -> None:
    def made() -> list[list[int]]:
        return rows(make_join(tmp_path / "own", [JoinMember(records, "error")] * 2, num_workers=1))

    keys = Counter(sample.key for sample in samples_of(records))
    if kind == "unprepared tars" or join_problem(records) is not None:
        with pytest.raises(ConfigError) as refused:
            made()
        assert str(refused.value) == join_problem(records) or "run `bridge-data prepare" in str(refused.value)
    elif any(count > 1 for count in keys.values()):
        with pytest.raises(DatasetError, match="duplicate key: ") as repeated:
            made()
        assert fix_repeated_keys(records) and str(repeated.value).endswith(fix_repeated_keys(records))
    else:
        assert made() == [[index, index] for index in range(count_samples(records))]


def test_what_has_no_list_of_keys_says_why(tmp_path: Path) -> None:
    records = without_some(tmp_path / "a", "index.bridge", "index.sqlite")
    assert sorted(find(records, {"3", "5", "7"})) == [(0, "7"), (3, "3")]  # searched one by one
    with pytest.raises(DatasetError, match=r"no index of its keys; run `bridge-data prepare .* --tar-index-only`"):
        next(keys_of(records, range(1)))
    dataset(tmp_path / "b", [["1"]])
    database = tmp_path / "a" / ".nv-meta" / "index.sqlite"
    (tmp_path / "b" / ".nv-meta" / "index.sqlite").rename(database)
    with pytest.raises(DatasetError, match=r"the index knows \d samples in \d.tar, but the metadata \d; run"):
        [*keys_of(narrowed(tmp_path / "a"), range(2))]
    database.write_bytes(b"x" * 5000)
    with pytest.raises(DatasetError, match=r"index.sqlite: cannot be read: file is not a database; run"):
        next(keys_of(narrowed(tmp_path / "a"), range(2)))
    keys = table_of({"__key__": pa.array(["a", "b", "c", None], pa.string()), "n": list(range(4))})
    records = opened(write_parquet(tmp_path / "t.parquet", keys, per_group=2))
    assert [*keys_of(records, range(2))] == ["a", "b"]
    with pytest.raises(DatasetError, match=r"t.parquet: row 3 has no __key__"):
        list(keys_of(records, range(4)))
