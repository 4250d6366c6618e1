"""Shards with equal names get unique keys, also if writing them is interrupted."""

import tarfile
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest

from bridge_data.errors import DatasetError
from bridge_data.prepare import key_prefixes
from bridge_data.prepare.splits import split_by_ratio
from bridge_data.prepare.tar_indexes import PrepareConfig
from bridge_data.prepare.tars import prepare
from tests.shards.tars import write_tar

NAMES = ["a.tar", "b.tar", "c.tar"]
SPLIT = partial(split_by_ratio, ratio=(Fraction(1), Fraction(0), Fraction(0)))


def test_an_interrupted_run_is_found_and_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        write_tar(tmp_path / name, {"0.txt": b"x", "1.txt": b"y"})
    whole = key_prefixes._prefix

    def interrupted(path: Path, folder: str) -> bool:
        if path.name == NAMES[-1]:
            raise KeyboardInterrupt
        return whole(path, folder)

    fix = PrepareConfig(num_workers=1, fix_duplicates=True)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(key_prefixes, "_prefix", interrupted)
        prepare(tmp_path, SPLIT, fix)
    with pytest.raises(DatasetError, match=r"was interrupted.*--fix-duplicates again"):
        prepare(tmp_path, SPLIT, PrepareConfig(num_workers=1))
    prepare(tmp_path, SPLIT, fix)
    for name in NAMES:
        with tarfile.open(tmp_path / name) as tar:
            assert tar.getnames() == [f"{name}/0.txt", f"{name}/1.txt"]
    prepare(tmp_path, SPLIT, PrepareConfig(num_workers=1))
