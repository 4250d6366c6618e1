from pathlib import Path

import pytest

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan.source import parse_access
from bridge_data.prepare.sample_definitions import definition
from bridge_data.samples import VQASample
from bridge_data.tools.cli.sample_types import Field, FirstSamples, fields_of
from tests.shards.tars import write_tar


def test_fields() -> None:
    assert fields_of(VQASample) == [
        Field("image", "<class 'torch.Tensor'>", True),
        Field("context", "<class 'str'>", True),
        Field("answers", "list[str] | None", False),
        Field("answer_weights", "torch.Tensor | None", False),
    ]


@pytest.fixture
def first(tmp_path: Path) -> FirstSamples:
    members = {"1.png": b"", "1.json": b'{"a": {"b": 1}, "c": [1]}', "2.png": b"", "2.json": b'{"d": 1}'}
    write_tar(tmp_path / "a.tar", members)
    return FirstSamples(tmp_path, ["a.tar"])


@pytest.mark.parametrize("access", ["png", "json", "json[a][b]", "json[c][0]", "json[d]", "jpg,png", "__key__"])
def test_what_is_there(first: FirstSamples, access: str) -> None:
    first.check_access("field", parse_access(access))
    first.check(definition("TextSample", {"text": access}))


@pytest.mark.parametrize(
    ("access", "message"),
    [
        ("jpg", r"a\.tar; the parts there are: json, png"),
        ("jpg,jpeg", "no part 'jpg' or 'jpeg'"),
        ("json[e]", r"sample '1': json has no \[e\]; there is a, c"),
        ("json[c][7]", r"json\[c\] has no \[7\]; it is a list of 1"),
    ],
)
def test_what_is_not_there(first: FirstSamples, access: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"field 'field': .*{message}"):
        first.check_access("field", parse_access(access))


def test_json_that_is_none(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.json": b"{"})
    with pytest.raises(DatasetError, match=r"a\.tar: 1\.json is not JSON"):
        FirstSamples(tmp_path, ["a.tar"]).check_access("field", parse_access("json[a]"))


def test_a_shard_without_samples(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {})
    with pytest.raises(DatasetError, match=r"none of its tars holds a sample.*a\.tar"):
        FirstSamples(tmp_path, ["a.tar"])
