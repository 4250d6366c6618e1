"""Which part a key is in, and what the ranks of a writer must agree on."""

from fractions import Fraction
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from bridge_data.prepare.writing_session import HashSplit, WriterConfig, writing_session


def test_a_split_by_hash_has_its_shares() -> None:
    split = HashSplit(WriterConfig(split={"train": 80, "none": 0, "val": 15, "test": 5}).shares())
    parts = [split.part_of(f"key {number}") for number in range(20_000)]
    assert {part: round(parts.count(part) / 20_000, 2) for part in ("train", "val", "test")} == {
        "train": 0.8,
        "val": 0.15,
        "test": 0.05,
    }
    assert "none" not in parts


def test_the_parts_of_keys_never_change() -> None:
    split = HashSplit({"train": Fraction(1, 2), "val": Fraction(1, 2)})
    assert [split.part_of(key) for key in ("0", "1", "2", "größe", "a/b")] == ["val", "val", "train", "val", "train"]


@pytest.mark.parametrize(
    "other", [{"world_size": 2}, {"sample_type": "TextSample", "field_map": {"text": "txt"}}, {"split": {"val": 1}}]
)
def test_ranks_agree_on_their_settings(tmp_path: Path, other: dict[str, object]) -> None:
    with (
        writing_session(tmp_path, WriterConfig(world_size=3)),
        pytest.raises(ConfigError, match=r"is being written with .*, here it is"),
        writing_session(tmp_path, WriterConfig(**{"world_size": 3, "rank": 1} | other)),  # type: ignore[arg-type]
    ):
        pass


def test_names_of_shards(tmp_path: Path) -> None:
    for config, expected in (
        (WriterConfig(), "val-000012.tar"),
        (WriterConfig(rank=3, world_size=4), "val-00003-000012.tar"),
    ):
        with writing_session(tmp_path / str(config.world_size), config) as session:
            assert session.shard_name("val", 12) == expected
            for name in ("val-000012.tar", "val-00003-000012.tar"):
                (session.root / name).touch()
            assert session.own_shards() == [(expected, "val", 12)]
