import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge_data.errors import DatasetError
from bridge_data.prepare import prepare_columns
from bridge_data.shards import open_shards
from bridge_data.shards.prepared import PreparedDataset
from bridge_data.shards.where.choosing import choose
from bridge_data.shards.where.chosen_records import ChosenRecords
from bridge_data.shards.where.json_columns import COLUMNS_BRIDGE, JsonColumns, decode_values, encode_values
from tests.prepared import write_dataset
from tests.shards.where.test_choosing import Clause

COLUMNS = ["json.score", "json.meta.lang", "json.ok", "json.tags"]


def content(number: int) -> dict[str, Any]:
    """The JSON part of a sample: fields are missing here and there, and `score` is an integer in some shards."""
    score = number if number < 100 else number / 2
    found: dict[str, Any] = {"score": score, "ok": number % 2 == 0, "tags": ["a", "b"][: number % 3]}
    if number % 5:
        found["meta"] = {"lang": "de" if number % 4 else "en"}
    return found if number % 7 else {}


def score(number: int) -> float | None:
    found: float | None = content(number).get("score")
    return found


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    samples = ({"__key__": f"{number:06d}", "json": json.dumps(content(number)).encode()} for number in range(300))
    root = write_dataset(tmp_path / "data", samples, definition={"sample_type": {}, "field_map": {}})
    prepare_columns(root, COLUMNS)
    return root


def chosen(root: Path, text: str) -> list[int]:
    records = open_shards(root, "train")
    view = ChosenRecords(records, choose(records, [Clause(text)]))
    reader = view.reader()
    return [int(reader.read(index).key) for index in range(view.num_samples)]


@pytest.mark.parametrize(
    ("text", "is_chosen"),
    [
        ("json.score >= 60", lambda number: (score(number) or 0) >= 60),
        ("json.score is null", lambda number: score(number) is None),
        ("list_sum([json.score, 1]) > 100", lambda number: (score(number) or 0) + 1 > 100),
        (
            "json.meta.lang in ('en', 'fr') and json.ok",
            lambda number: content(number).get("meta") == {"lang": "en"} and content(number)["ok"],
        ),
        ("json.meta.lang <> 'de'", lambda number: content(number).get("meta") == {"lang": "en"}),
        ("list_contains(json.tags, 'b')", lambda number: "b" in content(number).get("tags", ())),
        ("json.bytes < 10 and key > '000100'", lambda number: number % 7 == 0 and number > 100),
    ],
)
def test_stored_fields_choose_what_python_chooses(data: Path, text: str, is_chosen: Callable[[int], bool]) -> None:
    assert chosen(data, text) == [number for number in range(300) if is_chosen(number)]


def test_new_values_choose_anew(data: Path) -> None:
    before = chosen(data, "json.score < 50")
    prepare_columns(data, ["json.score"])
    assert chosen(data, "json.score < 50") == before
    identities = set()
    for columns in (["json.score"], ["json.score", "json.ok"]):
        prepare_columns(data, columns)
        found = JsonColumns.find(data)
        assert found is not None
        identities.add(found.checksum)
    assert len(identities) == 2


def test_a_shard_that_was_not_stored_is_named_with_the_way_out(data: Path) -> None:
    index, found = PreparedDataset.open(data).index, JsonColumns.find(data)
    assert index is not None and found is not None
    assert found.values("data-0000.tar", index)["json.score"][:3] == [None, 1.0, 2.0]
    del found.entries["data-0002.tar"]
    with pytest.raises(DatasetError, match=r"has no values of shard data-0002\.tar; run `bridge-data prepare .*--col"):
        found.values("data-0002.tar", index)


def test_damaged_values_are_an_error(data: Path) -> None:
    path = data / ".nv-meta" / COLUMNS_BRIDGE
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"columns\.bridge: is damaged"):
        chosen(data, "json.ok")


def test_values_travel_as_they_are() -> None:
    values = [[None, "ü\u2028\0", ""], [1.5, None, float("inf")], [[], ["a", None], None], [True, False, -(1 << 63)]]
    assert decode_values(encode_values(values)) == values
