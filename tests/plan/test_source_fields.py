import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import ConfigError, SampleError
from bridge_data.plan.source import parse_access

PARTS = {
    "__key__": "a.tar/0001",
    "jpg": b"pixels",
    "json": {"caption": "a cat", "turns": [{"text": "hello"}, {"text": "there"}], "0": "zero", "none": None},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("jpg", b"pixels"),
        ("json[caption]", "a cat"),
        ("json[turns][1][text]", "there"),
        ("json[turns][-1][text]", "there"),
        ("json[0]", "zero"),
        ("json[none]", None),
        ("png,jpg", b"pixels"),
        ("json[title],json[caption],jpg", "a cat"),
        ("json[turns][7], jpg", b"pixels"),
        ("__key__", "a.tar/0001"),
    ],
)
def test_value_is_found(text, value):
    assert parse_access(text).get(PARTS) == value


def test_parts_names_all_that_may_be_needed():
    access = parse_access("json[a][0][b],png,json[c]")
    assert (access.part, access.path, access.parts) == ("json", ("a", "0", "b"), ("json", "png"))
    assert str(access) == "json[a][0][b],png,json[c]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("png", "'a.tar/0001'.*part 'png' is absent; there is jpg, json; did you mean 'jpg'?"),
        ("json[captoin]", r"json has no \[captoin\].*did you mean 'caption'?"),
        ("json[turns][2][text]", r"json\[turns\] has no \[2\].*a list of 2"),
        ("json[turns][x]", r"json\[turns\] has no \[x\]"),
        ("json[caption][x]", r"json\[caption\] has no \[x\].*it is a str"),
        ("png,json[title]", r"part 'png' is absent.*json has no \[title\]"),
    ],
)
def test_absence_names_sample_part_and_step(text, says):
    with pytest.raises(SampleError, match=says):
        parse_access(text).get(PARTS)


@pytest.mark.parametrize("text", ["", "json[", "json[]", "json]a[", "[a]", "json[a]b", "jpg,", "json[[a]]"])
def test_other_forms_are_refused(text):
    with pytest.raises(ConfigError, match="field access"):
        parse_access(text)


NAMES = st.text(st.characters(exclude_characters="[],", exclude_categories=["C", "Z"]), min_size=1, max_size=8)


@given(st.lists(st.tuples(NAMES, st.lists(NAMES, max_size=3)), min_size=1, max_size=3))
def test_text_survives_parsing(options):
    text = ",".join(part + "".join(f"[{step}]" for step in path) for part, path in options)
    access = parse_access(text)
    assert str(access) == text
    assert parse_access(str(access)) == access
