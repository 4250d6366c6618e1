import collections
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.plan import load_plan
from bridge_data.plugins.doctor import lint_checks
from bridge_data.plugins.doctor.lint_checks import KeyLog, digests, repeated_table_keys
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


def test_keys_are_spread_over_files_of_which_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(lint_checks, "KEYS_A_FILE", 10)
    with KeyLog(1000) as log:
        log.add(digests(0, 0, [str(number) for number in range(1000)], range(1000)))
        log.add(digests(0, 1, ["77"], [5]))
        assert len(list(tmp_path.rglob("*"))) > 100
        assert list(log.repeated()) == [((0, 77), (1, 5))]
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([7, 8, 7, 9, 7], ["rows 0 and 2 have it", "rows 0 and 4 have it"]),
        (["x", None, "x"], []),  # a row without a key is left to the reading of samples
        (None, []),
    ],
)
def test_rows_with_the_same_key_are_named_once_whatever_the_sources_have_in_common(
    tmp_path: Path, saved: bool, keys: list[object] | None, expected: list[str]
) -> None:
    rows = table_of({"text": list("abcde")} if keys is None else {"__key__": keys, "text": ["a"] * len(keys)})
    path = save_to_disk(tmp_path / "a", rows, per_batch=2) if saved else write_parquet(tmp_path / "a.parquet", rows)
    sources = [load_plan(path, split_part=part).sources[0] for part in ("train", "val")]
    file = "data-00000-of-00001.arrow" if saved else "a.parquet"
    found = [(fault.code, fault.shard, fault.key, fault.cause) for fault in repeated_table_keys(sources)]
    assert found == [("duplicate-key", file, "7", cause) for cause in expected]
