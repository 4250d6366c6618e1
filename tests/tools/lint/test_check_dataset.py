import collections
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.tools import lint_checks
from bridge_data.tools.lint_checks import KeyLog, digests


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
