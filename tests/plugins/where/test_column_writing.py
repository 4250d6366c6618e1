import gzip
import json
import os
import random
import shutil
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge_data.data.prepared import PreparedDataset
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.where.column_writing import prepare_columns
from bridge_data.plugins.where.stored_columns import COLUMNS_PARQUET, StoredColumns
from bridge_data.prepare.tars import PrepareConfig, refresh_index
from tests.data.tars import prepare_by_ratio, write_tar
from tests.prepare.killed import in_child, killed_at

COLUMNS = ["json.score", "json.meta.lang", "left.json.tags"]


def contents(seed: int, num_samples: int = 30) -> list[dict[str, Any]]:
    """The parts of samples; values and parts are missing here and there."""
    rng = random.Random(seed)
    samples: list[dict[str, Any]] = []
    for _ in range(num_samples):
        meta = rng.choice([None, {}, {"lang": rng.choice(["de", "en", "ü\u2028", None])}])
        content = {"score": rng.choice([rng.random(), rng.randrange(9), None]), "meta": meta}
        parts: dict[str, Any] = {"txt": "x" * rng.randrange(2000)}
        if rng.random() < 0.8:
            parts["json"] = content if rng.random() < 0.9 else {}
        if rng.random() < 0.5:
            parts["left.json"] = {"tags": rng.choice([[], ["a", None], ["b"], None])}
        samples.append(parts)
    return samples


def write_shard(path: Path, samples: list[dict[str, Any]]) -> None:
    members = {f"{number:04d}.{part}": value for number, parts in enumerate(samples) for part, value in parts.items()}
    write_tar(path, {name: value.encode() if name[5:] == "txt" else dumped(value) for name, value in members.items()})


def dumped(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def write_shards(folder: Path, num_shards: int = 5) -> Path:
    for seed in range(num_shards):
        write_shard(folder / f"data-{seed}.tar", contents(seed))
    prepare_by_ratio(folder)
    return folder


def stored(root: Path) -> dict[str, dict[str, list[Any]]]:
    found, index = StoredColumns(root, root / ".nv-meta" / COLUMNS_PARQUET), PreparedDataset.open(root).index
    assert index is not None
    return {name: found.table(shard, found.kinds).to_pydict() for name, shard in index.entries.items()}


def file_of(root: Path) -> bytes:
    return (root / ".nv-meta" / COLUMNS_PARQUET).read_bytes()


def by_python(samples: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {
        "json.score": [parts.get("json", {}).get("score") for parts in samples],
        "json.meta.lang": [(parts.get("json", {}).get("meta") or {}).get("lang") for parts in samples],
        "left.json.tags": [parts.get("left.json", {}).get("tags") for parts in samples],
    }


@pytest.mark.parametrize("compressed", [False, True])
def test_values_are_those_of_the_json_parts_and_missing_ones_are_none(tmp_path: Path, compressed: bool) -> None:
    write_shards(tmp_path)
    if compressed:
        for path in sorted(tmp_path.glob("*.tar")):
            (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        shutil.rmtree(tmp_path / ".nv-meta")
        prepare_by_ratio(tmp_path)
    done = prepare_columns(tmp_path, COLUMNS, num_workers=2)
    expected = [by_python(contents(seed)) for seed in range(5)]
    found = list(stored(tmp_path).values())
    assert found == expected
    assert {type(value) for values in found for value in values["json.score"]} == {float, type(None)}
    assert done.types == {"json.score": "number", "json.meta.lang": "text", "left.json.tags": "text[]"}
    assert done.num_missing == {
        column: sum(value is None for values in expected for value in values[column]) for column in COLUMNS
    }
    assert (done.num_samples, done.num_read, done.num_unchanged) == (150, 5, 0)
    assert not (tmp_path / ".columns").exists()


def test_the_file_is_the_same_for_any_processes_and_whatever_was_known(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_columns(tmp_path, COLUMNS, num_workers=1)
    expected = file_of(tmp_path)
    for num_workers, rescan, num_read in ((3, True, 5), (1, False, 0)):
        assert prepare_columns(tmp_path, COLUMNS, num_workers=num_workers, rescan=rescan).num_read == num_read
        assert file_of(tmp_path) == expected
    assert prepare_columns(tmp_path, COLUMNS[:0:-1]).num_read == 0  # fewer, in another order
    fewer = file_of(tmp_path)
    prepare_columns(tmp_path, COLUMNS[:0:-1], rescan=True)
    assert fewer == file_of(tmp_path)
    assert prepare_columns(tmp_path, COLUMNS).num_read == 5
    assert file_of(tmp_path) == expected


def test_only_shards_that_are_new_or_have_changed_are_read(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_columns(tmp_path, COLUMNS)
    write_shard(tmp_path / "data-1.tar", contents(11))
    with pytest.raises(DatasetError, match=r"data-1\.tar: has changed since it was indexed; run `bridge-data prepare"):
        prepare_columns(tmp_path, COLUMNS, rescan=True)
    refresh_index(tmp_path)
    with pytest.raises(DatasetError, match=r"older values of shard data-1\.tar; .* --store-columns json\.score,json"):
        stored(tmp_path)
    assert prepare_columns(tmp_path, COLUMNS).num_read == 1
    write_shard(tmp_path / "data-9.tar", contents(9))
    prepare_by_ratio(tmp_path)
    with pytest.raises(DatasetError, match=r"has no values of shard data-9\.tar"):
        stored(tmp_path)
    done = prepare_columns(tmp_path, COLUMNS)
    assert (done.num_read, done.num_unchanged) == (1, 5)
    assert list(stored(tmp_path).values()) == [by_python(contents(seed)) for seed in (0, 11, 2, 3, 4, 9)]


def test_a_damaged_file_is_written_again(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_columns(tmp_path, COLUMNS)
    expected = file_of(tmp_path)
    damaged = bytearray(expected)
    damaged[60] ^= 1  # in the values of the first shard
    (tmp_path / ".nv-meta" / COLUMNS_PARQUET).write_bytes(damaged)
    assert prepare_columns(tmp_path, COLUMNS).num_read == 1
    assert file_of(tmp_path) == expected
    (tmp_path / ".nv-meta" / COLUMNS_PARQUET).write_bytes(expected[:-1])
    assert prepare_columns(tmp_path, COLUMNS).num_read == 5
    assert file_of(tmp_path) == expected


def test_what_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_columns(tmp_path, COLUMNS[:1])
    before = file_of(tmp_path)
    expected: bytes | None = None
    num_read = []
    for step in range(4, 60):
        status = in_child(partial(killed_at, step, partial(prepare_columns, tmp_path, COLUMNS)))
        assert file_of(tmp_path) in (before, expected or file_of(tmp_path))
        done = prepare_columns(tmp_path, COLUMNS)
        num_read.append(done.num_read)
        expected = expected or file_of(tmp_path)
        assert file_of(tmp_path) == expected
        assert sorted(os.listdir(tmp_path))[:1] == [".nv-meta"]
        assert not [name for name in os.listdir(tmp_path / ".nv-meta") if name.endswith(".tmp")]
        if status == 0:
            break
        (tmp_path / ".nv-meta" / COLUMNS_PARQUET).write_bytes(before)
    assert status == 0 and num_read[0] == 1 and 0 in num_read


def write_values(folder: Path, values: list[Any]) -> Path:
    """Shards of a sample each, with these contents of its JSON part."""
    for number, content in enumerate(values):
        write_shard(folder / f"data-{number}.tar", [{"json": content}])
    prepare_by_ratio(folder)
    return folder


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([{"a": 1}, {"a": "x"}], r"json\.a: is integer in data-0\.tar/0000, but text in data-1\.tar/0000"),
        ([{"a": 1}, {"a": 2.5}, {"a": True}], r"json\.a: is number in data-1\.tar/0000, but boolean in data-2\.tar"),
        ([{"a": [1]}, {"a": 1}], r"is integer\[\] in .*, but integer in"),
        ([{"a": ["x"]}, {"a": [1]}], r"is text\[\] in .*, but integer\[\] in"),
        ([{"a": []}, {"a": "x"}], r"but text in"),
        ([{"a": {}}], r"data-0\.tar: sample '0000': json\.a: is an object; columns hold"),
        ([{"a": [[1]]}], r"json\.a: is a list; columns hold"),
        ([{"a": [{}]}], r"json\.a: is an object; columns hold"),
        ([{"a": [1, "x"]}], r"json\.a: is a list of integer and text, expected items of one type"),
        ([{"a": [True, 1]}], r"json\.a: is a list of boolean and integer"),
        ([{"a": 10**400}], r"json\.a: is an integer that is too large"),
        ([[1]], r"json\.a: json is a list, expected an object with a field 'a'"),
        ([b"{"], r"data-0\.tar: part json of sample '0000' is not JSON: "),
        ([b""], r"part json of sample '0000' is not JSON: "),
        ([b"\xff"], r"part json of sample '0000' is not JSON: "),
        ([b"{", b"[" * 99_999], r"2 of 2 shards cannot be used:\n.*data-0\.tar.*\n.*data-1\.tar.*nested too deeply"),
    ],
)
def test_what_no_column_can_hold_is_named_and_nothing_is_stored(
    tmp_path: Path, contents: list[Any], message: str
) -> None:
    write_values(tmp_path, contents)
    with pytest.raises(DatasetError, match=message):
        prepare_columns(tmp_path, ["json.a"], num_workers=2)
    assert not (tmp_path / ".nv-meta" / COLUMNS_PARQUET).exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "expected at least one field"),
        (["score"], "column 'score': expected a field of a JSON part, such as json.score"),
        (["json"], "expected a field of a JSON part"),
        (["txt.json"], "expected a field of a JSON part"),
        (["json..a"], "expected a field of a JSON part"),
        (["json.bytes"], r"json\.bytes is the size of the part json"),
        (["left.json.Bytes"], r"left\.json\.bytes is the size of the part left\.json"),
        (["json.a", "json.a"], "is named twice"),
        (["json.a", "json.A"], "differ in case only"),
        (["json.a.b", "json.A"], r"'json\.A' and 'json\.a\.b': the second is a field of the first"),
    ],
)
def test_names_that_are_no_columns_or_collide_are_refused(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare_columns(write_values(tmp_path, [{}]), names)


LARGE = (1 << 53) + 1


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([3, 2.5, 1 << 70, 1], "number", [3.0, 2.5, float(1 << 70), 1.0]),
        ([[1], [0.5, None], [], [LARGE]], "number[]", [[1.0], [0.5, None], [], [float(1 << 53)]]),
        ([LARGE, 2, None, (1 << 63) - 1], "integer", [LARGE, 2, None, (1 << 63) - 1]),
        ([[], [None, LARGE]], "integer[]", [[], [None, LARGE]]),
        ([1 << 63], "number", [float(1 << 63)]),
        ([True, None], "boolean", [True, None]),
        (["\ud83d", "ü"], "text", ["?", "ü"]),
        ([None, None], "text", [None, None]),
    ],
)
def test_a_column_has_the_type_of_its_values_in_all_shards_and_integers_among_numbers_are_numbers(
    tmp_path: Path, values: list[Any], kind: str, expected: list[Any]
) -> None:
    write_values(tmp_path, [{"json": {"a": value}, "n": {"a": value}} for value in values])
    done = prepare_columns(tmp_path, ["json.json.a", "json.n.a"])
    assert done.types == {"json.json.a": kind, "json.n.a": kind}
    for name in done.types:
        found = [table[name][0] for table in stored(tmp_path).values()]
        assert found == expected and [type(value) for value in found] == [type(value) for value in expected]


def test_integers_are_exact_again_once_no_number_is_among_them(tmp_path: Path) -> None:
    write_values(tmp_path, [{"a": value, "b": [value]} for value in (LARGE, 2.5)])
    assert prepare_columns(tmp_path, ["json.a", "json.b"]).types == {"json.a": "number", "json.b": "number[]"}
    write_shard(tmp_path / "data-1.tar", [{"json": {"a": 2, "b": []}}])
    refresh_index(tmp_path)
    done = prepare_columns(tmp_path, ["json.a", "json.b"])
    assert (done.types, done.num_read) == ({"json.a": "integer", "json.b": "integer[]"}, 2)
    found = [(values["json.a"], values["json.b"]) for values in stored(tmp_path).values()]
    assert found == [([LARGE], [[LARGE]]), ([2], [[]])]


def test_a_data_set_without_our_index_is_an_error(tmp_path: Path) -> None:
    write_shards(tmp_path, 1)
    (tmp_path / ".nv-meta/index.bridge").unlink()
    with pytest.raises(ConfigError, match=r"has no index\.bridge of its preparation; run `.* --tar-index-only` first"):
        prepare_columns(tmp_path, COLUMNS)
    refresh_index(tmp_path, PrepareConfig(num_workers=1))
    assert prepare_columns(tmp_path, COLUMNS).num_samples == 30


def test_a_list_of_which_shards_have_no_value_and_names_that_are_not_utf8(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"caf\udce9.json": b'{"l": []}', "b.json": b"{}"}, tarfile.GNU_FORMAT)
    write_tar(tmp_path / "b.tar", {"c.json": b"{}"})
    write_tar(tmp_path / "c.tar", {"d.json": b'{"l": [1.5, 2]}'})
    prepare_by_ratio(tmp_path)
    assert prepare_columns(tmp_path, ["json.l"]).types == {"json.l": "number[]"}
    values = [table["json.l"] for table in stored(tmp_path).values()]
    assert values == [[[], None], [None], [[1.5, 2]]]
