import collections
import tempfile
from pathlib import Path
from typing import Any, Literal, Optional

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.plan import load_plan
from bridge_data.tools import lint_checks
from bridge_data.tools.lint_checks import KeyLog, digests, is_of_type, repeated_table_keys
from tests.tables import save_to_disk, table_of, write_parquet


@given(
    shards=st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6), min_size=1, max_size=6),
    size=st.sampled_from([1, 1 << 22, 1 << 23]),
)
def test_every_repetition_is_found_once(shards: list[list[str]], size: int) -> None:
    places: dict[str, list[int]] = collections.defaultdict(list)
    with KeyLog(size) as log:
        for number, names in enumerate(shards):
            log.add(digests(0, number, names, range(len(names))))
            for name in names:
                places[name].append(number)
        found = sorted((first[0], again[0]) for first, again in log.repeated())
    assert found == sorted((numbers[0], again) for numbers in places.values() for again in numbers[1:])


def test_nothing_is_left_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(lint_checks, "KEYS_A_FILE", 10)
    with KeyLog(1000) as log:
        log.add(digests(0, 0, [str(number) for number in range(1000)], range(1000)))
        log.add(digests(0, 1, ["77"], [5]))
        assert len(list(tmp_path.rglob("*"))) > 100
        assert list(log.repeated()) == [((0, 77), (1, 5))]
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("a", str),
        (1, float),
        (None, Optional[str]),  # noqa: UP045
        (None, None),
        ("a", str | None),
        (torch.ones(1), torch.Tensor),
        (["a", "b"], list[str]),
        ([], list[int]),
        ([1, "a"], tuple[int, str]),
        ([1, 2, 3], tuple[int, ...]),
        ({"a": 1}, dict[str, int]),
        ({"a": [1]}, dict[str, list[int] | None]),
        ("x", Literal["x", "y"]),
        (object(), Any),
        ("what", "NotAType"),
    ],
)
def test_what_fits(value: object, hint: object) -> None:
    assert is_of_type(value, hint)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (1, str),
        (True, int),
        (1.5, int),
        ("a", torch.Tensor),
        ("a", list[str]),
        (["a", 1], list[str]),
        ([1], tuple[int, str]),
        ({"a": "b"}, dict[str, int]),
        (None, str),
        (b"a", str | None),
        ("z", Literal["x", "y"]),
    ],
)
def test_what_does_not(value: object, hint: object) -> None:
    assert not is_of_type(value, hint)


def table(*keys: object) -> pa.Table:
    return table_of({"__key__": keys, "text": ["a"] * len(keys)})


@pytest.mark.parametrize("saved", [False, True])
def test_rows_are_named_once_whatever_the_sources_have_in_common(tmp_path: Path, saved: bool) -> None:
    rows = table(7, 8, 7, 9, 7)
    path = save_to_disk(tmp_path / "a", rows, per_batch=2) if saved else write_parquet(tmp_path / "a.parquet", rows)
    sources = [load_plan(path, split_part=part).sources[0] for part in ("train", "val")]
    file = "data-00000-of-00001.arrow" if saved else "a.parquet"
    found = [(fault.code, fault.shard, fault.key, fault.cause) for fault in repeated_table_keys(sources)]
    assert found == [
        ("duplicate-key", file, "7", "rows 0 and 2 have it"),
        ("duplicate-key", file, "7", "rows 0 and 4 have it"),
    ]


def test_files_that_share_a_key_are_both_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "set" / "a.parquet", table("x", "y"))
    write_parquet(tmp_path / "set" / "b.parquet", table("z", "x"))
    (fault,) = repeated_table_keys(load_plan(tmp_path / "set").sources)
    assert (fault.code, fault.shard, fault.key, fault.cause) == ("shared-key", "b.parquet", "x", "a.parquet has it too")


def test_a_row_without_a_key_is_left_to_the_reading_of_samples(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", table("x", None, "x"))
    assert list(repeated_table_keys(load_plan(path).sources)) == []


def test_tables_without_a_column_of_keys_have_none_twice(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", table_of({"text": ["a", "a"]}))
    assert list(repeated_table_keys(load_plan(path).sources)) == []
