import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.shards.names import is_meta_member, split_name, tar_index_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0001.png", ("0001", "png")),
        ("a/b.c/0001.left.png", ("a/b.c/0001", "left.png")),
        ("0001", None),
        (".hidden", None),
        ("folder.x/0001", None),
        ("__meta__/readme.txt", None),
        ("__key__", None),
        ("__a.txt", ("__a", "txt")),
        ("a/__meta__.txt", ("a/__meta__", "txt")),
        ("0001.", ("0001", "")),
    ],
)
def test_split_name(name: str, expected: tuple[str, str] | None) -> None:
    assert split_name(name) == expected


@given(st.text(alphabet="a_./", max_size=12))
def test_names_are_split_as_webdataset_and_energon_do(name: str) -> None:
    match = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", name)
    meta = re.match(r"__[^/]*__($|/)", name)
    assert split_name(name) == (match.groups() if match and not meta else None)
    assert is_meta_member(name) == bool(meta)


@pytest.mark.parametrize(
    ("shard", "expected"), [("a/data-0.tar", "a/data-0.tar.idx"), ("v1.2.tar", "v1.2.tar.idx"), ("x.tgz", "x.tar.idx")]
)
def test_tar_index_path(shard: str, expected: str) -> None:
    assert tar_index_path(shard) == Path(expected)
