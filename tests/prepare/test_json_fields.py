import json
from typing import Any

import pytest

from bridge_data.errors import ConfigError
from bridge_data.prepare.json_fields import JsonField, common_type, parse_content, parse_fields, typed


def test_a_name_is_a_part_and_a_path_in_it() -> None:
    names = ["json.score", "json.meta.lang", "left.info.json.a", "json.json.x"]
    assert [(field.part, field.keys) for field in parse_fields(names)] == [
        ("json", ("score",)),
        ("json", ("meta", "lang")),
        ("left.info.json", ("a",)),
        ("json", ("json", "x")),
    ]


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
def test_names_that_are_no_columns_or_collide_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_fields(names)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ({"a": {"b": 1}}, 1),
        ({"a": {}}, None),
        ({"a": None}, None),
        ({}, None),
        (None, None),
        ({"a": {"b": None}}, None),
    ],
)
def test_what_is_missing_or_null_is_none(content: Any, value: Any) -> None:
    assert JsonField.parse("json.a.b").value(content) == value


def test_a_field_of_what_is_no_object_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"json\.a is a text, expected an object with a field 'b'"):
        JsonField.parse("json.a.b").value({"a": "b"})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("true", ("boolean", True)),
        ("9223372036854775807", ("integer", 9223372036854775807)),
        ("9223372036854775808", ("number", 9223372036854775808.0)),
        ("1.0", ("number", 1.0)),
        ('"\\ud83d"', ("text", "?")),
        ("[]", ("[]", [])),
        ("[null, 1]", ("integer[]", [None, 1])),
        ("[1, 0.5]", ("number[]", [1, 0.5])),
    ],
)
def test_values_have_types(content: str, expected: tuple[str, Any]) -> None:
    kind, value = typed(parse_content(content.encode()))
    assert (kind, value) == expected
    assert type(value) is type(expected[1])


@pytest.mark.parametrize("value", [{}, [[]], [{}], [1, "a"], [True, 1], 10**400])
def test_what_a_column_cannot_hold_is_an_error(value: Any) -> None:
    with pytest.raises(ValueError, match="is "):
        typed(value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 99_999, json.dumps({"a": 1}).encode()[:-1]])
def test_what_is_not_json_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not JSON"):
        parse_content(content)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("", "", ""),
        ("", "text", "text"),
        ("integer", "number", "number"),
        ("number", "boolean", None),
        ("integer", "integer[]", None),
        ("[]", "text[]", "text[]"),
        ("number[]", "integer[]", "number[]"),
        ("text[]", "integer[]", None),
        ("[]", "text", None),
    ],
)
def test_common_types_do_not_depend_on_the_order(one: str, other: str, both: str | None) -> None:
    assert common_type(one, other) == common_type(other, one) == both
