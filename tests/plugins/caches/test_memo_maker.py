"""A maker with a memo keeps the contract of makers, while it fills the memo, and while it reads it."""

from pathlib import Path
from typing import Any

import pytest

from bridge_data import Memo
from bridge_data.plugins.caches.memo import memoized
from tests.lanes.maker_contract import ENCODERS, check_maker, write_captions


@pytest.mark.parametrize("encoder", ENCODERS)
def test_what_comes_from_the_memo_is_what_the_core_makes(tmp_path: Path, encoder: Any) -> None:
    data, memo = write_captions(tmp_path / "captions"), Memo(tmp_path / "memo", version="1")
    for _ in ("made", "found"):
        check_maker(data, encoder, lambda dataset: memoized(dataset, memo))
