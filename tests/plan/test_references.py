"""Opening what a metadataset refers to: ranges of it, and what cannot be opened."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
from tests.plan.joins import BY_FIELDS, prepared_plan, texts


def metadataset(folder: Path, train: Any) -> Path:
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    (folder / "m.yaml").write_text(yaml.safe_dump({**head, "splits": {"train": train}}, sort_keys=False))
    return folder / "m.yaml"


def keys(source: Any) -> str:
    reader = source.records.reader()
    return "".join(reader.read(number).key for number in range(source.num_samples))


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [(["0%", "50%"], "abc"), (["50%", "100%"], "def"), ([1, 3], "bc"), ([4, "end"], "ef"), (["34%", "67%"], "cd")],
)
def test_a_reference_may_be_cut_to_a_range(tmp_path: Path, bounds: list[Any], expected: str) -> None:
    texts(tmp_path / "a", "abcdef")
    (source,) = load_plan(metadataset(tmp_path, {"path": "a", "subset": {"range": bounds}})).sources
    assert keys(source) == expected


def test_ranges_that_share_a_bound_share_no_sample_and_are_different_data(tmp_path: Path) -> None:
    texts(tmp_path / "a", "abcdefg")
    halves = [{"path": "a", "subset": {"range": bounds}} for bounds in (["0%", "50%"], ["50%", "100%"])]
    plan = load_plan(metadataset(tmp_path, {"blend": halves}))
    assert "".join(map(keys, plan.sources)) == "abcdefg"
    assert len({source.fingerprint for source in plan.sources}) == 2


def test_a_join_is_cut_after_it_is_joined(tmp_path: Path) -> None:
    texts(tmp_path / "a", "abcdef")
    texts(tmp_path / "b", "bdf")
    join = {"join": [{"path": "a"}, {"path": "b", "nonmatch": "skip"}], "joiner": BY_FIELDS}
    path = metadataset(tmp_path, {**join, "subset": {"range": [1, "end"]}, "shuffle_over_epochs_multiplier": 2})
    (source,) = prepared_plan(path).sources
    assert (keys(source), source.epochs_per_shuffle) == ("df", 2)
    path = metadataset(tmp_path, {**join, "subset": {"range": [0, 4]}})
    with pytest.raises(ConfigError, match=r"m\.yaml:\d+: subset: range: \[0, 4\] reaches beyond .* 3 samples"):
        prepared_plan(path)


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ([0, 7], "[0, 7] reaches beyond the data, which have 6 samples"),
        ([3, 3], "[3, 3] leaves none of the 6 samples of a/train"),
        (["0%", "10%"], "[0%, 10%] leaves none of the 6 samples of a/train"),
        (["60%", "50%"], "60% comes after 50%"),
        ([0, "50%"], "both percentages or both sample numbers"),
    ],
)
def test_wrong_ranges_are_named_with_their_line(tmp_path: Path, bounds: list[Any], says: str) -> None:
    texts(tmp_path / "a", "abcdef")
    with pytest.raises(ConfigError, match=r"m\.yaml:6: subset: range: ") as error:
        load_plan(metadataset(tmp_path, {"path": "a", "subset": {"range": bounds}}))
    assert says in str(error.value)
