import hypothesis.strategies as st
import pytest
from hypothesis import given

from bridge_data.datamodule.trainer_loaders import distinct_names
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.plan import load_plan
from bridge_data.plan.source import MANY_EPOCHS, check_epochs, multiplied, num_together, parse_access
from tests.plan.prepared import CRUDE, write_dataset, write_meta

SHARDS = {
    "0.tar": {"a": {"txt": b"1"}, "b": {"txt": b"2"}},
    "1.tar": {"c": {"txt": b"3"}},
    "2.tar": {"d": {"txt": b"4"}},
}
SPLITS = {"train": ["0.tar", "1.tar"], "val": ["2.tar"], "turned": ["1.tar", "0.tar"]}


def fingerprint(folder, shards=SHARDS, splits=SPLITS, split_part="train", **options):
    return load_plan(write_dataset(folder, shards, splits, **options), split_part=split_part).sources[0].fingerprint


def test_the_fingerprint_is_fixed_and_stays_when_the_data_move_or_are_used_otherwise(tmp_path):
    """Another value here is another order of every data set, and a change of the state's format."""
    moved = fingerprint(tmp_path / "elsewhere" / "b", dataset_yaml=CRUDE + "subflavors: {x: 1}\n")
    assert moved == fingerprint(tmp_path / "a") == "80dc5b1dd9c5759aac35268a"


def test_the_fingerprint_changes_with_the_samples_and_their_order(tmp_path):
    longer = {**SHARDS, "0.tar": {**SHARDS["0.tar"], "b": {"txt": bytes(20_000)}}}
    more = {**SHARDS, "0.tar": {**SHARDS["0.tar"], "e": {"txt": b"5"}}}
    fingerprints = [
        fingerprint(tmp_path / "a"),
        fingerprint(tmp_path / "b", split_part="val"),
        fingerprint(tmp_path / "c", split_part="turned"),
        fingerprint(tmp_path / "d", longer),
        fingerprint(tmp_path / "e", more),
        fingerprint(tmp_path / "f", exclude=["0.tar/a"]),
        fingerprint(tmp_path / "g", exclude=["0.tar/b"]),
    ]
    assert len(set(fingerprints)) == len(fingerprints)


def test_a_missing_shard_is_named(tmp_path):
    (source,) = load_plan(write_meta(tmp_path, {"0.tar": 2}, {"train": ["0.tar"]})).sources
    with pytest.raises(DatasetError, match=r"0\.tar: no such file"):
        _ = source.fingerprint


EPOCHS = st.sampled_from([None, -1, 1, 2, 3, 8])


@given(EPOCHS, EPOCHS, EPOCHS)
def test_levels_may_be_joined_in_any_sequence(a, b, c):
    assert multiplied(a, b) == multiplied(b, a)
    assert multiplied(a, multiplied(b, c)) == multiplied(multiplied(a, b), c)
    assert multiplied(1, a) == a
    assert [multiplied(2, 3), multiplied(-1, 3), multiplied(-1, -1), multiplied(None, -1)] == [6, -1, -1, None]
    assert [num_together(epochs) for epochs in (None, 1, 5, -1)] == [None, 1, 5, MANY_EPOCHS]


@pytest.mark.parametrize("wrong", [0, -2, 1.5, "2", True])
def test_anything_else_is_refused(wrong):
    with pytest.raises(ConfigError, match="expected a number of epochs from 1 on"):
        check_epochs(wrong)


def test_sources_have_names_that_tell_them_apart(tmp_path):
    folders = ("a/tars", "b/tars", "b/more")
    sources = {name: load_plan(write_dataset(tmp_path / name, SHARDS, SPLITS)).sources[0] for name in folders}

    def names(*wanted: str) -> list[str]:
        return distinct_names([sources[folder] for folder in wanted])

    assert names("a/tars") == ["tars/train"]
    assert names("a/tars", "b/more") == ["tars/train", "more/train"]
    assert names("a/tars", "b/more", "b/tars") == ["a/tars/train", "more/train", "b/tars/train"]
    assert names("b/more", "b/more", "b/more") == ["more/train", "more/train (2)", "more/train (3)"]
    assert names("a/tars", "a/tars", "b/tars") == ["a/tars/train", "a/tars/train (2)", "b/tars/train"]


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
