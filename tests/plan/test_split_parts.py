from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from bridge_data.plan.split_parts import split_parts
from tests.prepared import write_blend, write_texts


def test_every_kind_of_data_says_its_parts(tmp_path: Path) -> None:
    write_texts(tmp_path / "a", 4)
    assert split_parts(tmp_path / "a") == ["train", "val", "test"]
    assert split_parts(write_blend(tmp_path / "blend.yaml", {"a": 1}, val="a")) == ["train", "val"]
    (tmp_path / "lines.jsonl").write_text("{}\n{}\n")
    assert split_parts(tmp_path / "lines.jsonl") == ["train"]
    (tmp_path / "lines.jsonl.split.yaml").write_text("split_parts: {mine: [0, 1], yours: [1, end]}")
    assert split_parts(tmp_path / "lines.jsonl") == ["mine", "yours"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("no", None, "no such folder or file"),
        ("a.txt", "", "expected a prepared folder, a metadataset .yaml or a .jsonl file"),
        ("a.yaml", "splits: 3", "a.yaml:1: "),
    ],
)
def test_other_paths_are_refused(tmp_path: Path, name: str, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as caught:
        split_parts(tmp_path / name)
    assert says in str(caught.value)
