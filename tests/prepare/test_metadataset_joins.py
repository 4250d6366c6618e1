import os
from pathlib import Path

import pytest

from bridge_data import prepare_metadataset
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from tests.plan.joins import BY_FIELDS, joined, metadataset, own, texts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts(tmp_path / "a", "abcd")
    texts(tmp_path / "b", "dcba")
    return tmp_path


JOIN = {"join": [{"path": "a"}, {"path": "b"}], "joiner": BY_FIELDS}


def test_joins_at_any_depth_are_prepared_where_they_stand(folder: Path) -> None:
    (folder / "sub").mkdir()
    turned = {"join": [{"path": "../b"}, {"path": "../a"}], "joiner": own("Nobody")}
    metadataset(folder / "sub" / "inner.yaml", {"blend": [turned, {"path": "../a"}]})
    path = metadataset(
        folder / "outer.yaml", {"blend_epochized": [{"blend_epochized": [JOIN]}, {"path": "sub/inner.yaml"}]}, test=None
    )
    first, second = prepare_metadataset(path)
    assert first.path.parent == folder / "outer.yaml.joins"
    assert second.path.parent == folder / "sub" / "inner.yaml.joins"
    assert [[member.path for member in index.members] for index in (first, second)] == [["a", "b"], ["../b", "../a"]]


def test_a_join_is_found_below_the_first_format_and_under_paths_with_variables(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", str(folder))
    joined(folder / "j.yaml", [{"path": "${DATA}/a"}, {"path": "b"}])
    (folder / "first.yaml").write_text("splits: {train: {datasets: [{path: $DATA/j.yaml}, {path: a}]}}\n")
    (index,) = prepare_metadataset(folder / "first.yaml")
    assert index.path.parent == folder / "j.yaml.joins"
    assert load_plan(folder / "first.yaml").num_samples == 8


def test_each_split_has_its_own_index_and_equal_ones_are_shared(folder: Path) -> None:
    other = {"join": [{"path": "b"}, {"path": "a"}], "joiner": BY_FIELDS}
    path = metadataset(
        folder / "j.yaml", JOIN, val={**other, "split_part": "train"}, test={**JOIN, "split_part": "train"}
    )
    assert len(prepare_metadataset(path)) == 2
    assert load_plan(path, split_part="val", training=False).num_samples == 4


def test_what_is_of_no_use_any_more_is_removed(folder: Path) -> None:
    path = joined(folder / "j.yaml", JOIN["join"])
    (old,) = prepare_metadataset(path)
    joined(path, [{"path": "b"}, {"path": "a"}])
    (new,) = prepare_metadataset(path)
    assert os.listdir(folder / "j.yaml.joins") == [new.path.name] != [old.path.name]


def test_a_metadataset_without_joins_has_nothing_to_prepare(folder: Path) -> None:
    assert prepare_metadataset(metadataset(folder / "j.yaml", {"path": "a"})) == []
    assert sorted(os.listdir(folder)) == ["a", "b", "j.yaml"]


def test_samples_without_match_fail_the_preparation(folder: Path) -> None:
    texts(folder / "c", "ab")
    path = joined(folder / "j.yaml", [{"path": "a"}, {"path": "c"}])
    with pytest.raises(
        DatasetError, match=r"c \[train\]: has no sample for 2 of the 4 samples of .*0001.tar/c, data-0"
    ):
        prepare_metadataset(path)


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ({"path": "j.yaml"}, "refers to itself"),
        ({"path": "other.yaml"}, "other.yaml:1: splits: no split 'train' is declared"),
    ],
)
def test_mistakes_on_the_way_are_named(folder: Path, train: dict[str, str], says: str) -> None:
    (folder / "other.yaml").write_text("splits: {val: {path: a}}\n")
    with pytest.raises(ConfigError, match=says):
        prepare_metadataset(metadataset(folder / "j.yaml", train))


def test_only_metadatasets_are_taken(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a metadataset .yaml, found no such file"):
        prepare_metadataset(folder / "nowhere.yaml")
    with pytest.raises(ConfigError, match=r"expected a metadataset .yaml$"):
        prepare_metadataset(folder / "a")
    (folder / "x.yaml").write_text("splits: 1\n")
    with pytest.raises(ConfigError, match=r"x.yaml:1: splits: expected a mapping, got 1"):
        prepare_metadataset(folder / "x.yaml")
