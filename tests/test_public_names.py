"""Every public name of Megatron-Energon 7.4.1 is here too, or left out for a reason."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import bridge_data
import bridge_data.energon
from bridge_data.energon.module_paths import LEFT_OUT

ENERGON_7_4_1 = Path(__file__).with_name("energon_7_4_1.txt").read_text().split()

HERE_ALONE = {
    "BatchDataset",
    "FilterDataset",
    "LimitDataset",
    "MapDataset",
    "RepeatDataset",
    "SavableDataset",
}
"""Names of `bridge_data.energon` alone: programs need them only until they are rewritten."""


def test_every_name_of_energon_is_here_or_left_out_for_a_reason() -> None:
    missing = [name for name in ENERGON_7_4_1 if not hasattr(bridge_data, name)]
    left_out = {*LEFT_OUT} - {"WatchdogDataset", "VideoData"}  # which the package of 7.4.1 itself does not export
    assert missing == sorted(left_out | HERE_ALONE)
    assert all(name in bridge_data.__all__ for name in ENERGON_7_4_1 if name not in missing)
    assert all(getattr(bridge_data.energon, name) is not None for name in HERE_ALONE)


def test_the_documentation_lists_what_is_left_out() -> None:
    page = (Path(__file__).parents[1] / "docs/energon.md").read_text()
    table = page.partition("## Names left out")[2].partition("\n## ")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)) == LEFT_OUT


@pytest.mark.peer
@pytest.mark.skipif("BRIDGE_DATA_PEER" not in os.environ, reason="BRIDGE_DATA_PEER names no Python with the peer")
def test_the_names_are_those_of_the_real_package() -> None:
    program = "import json, megatron.energon; print(json.dumps(megatron.energon.__all__))"
    found = subprocess.run([os.environ["BRIDGE_DATA_PEER"], "-c", program], capture_output=True, text=True, check=True)
    assert sorted({*json.loads(found.stdout.splitlines()[-1])} - {"__version__"}) == ENERGON_7_4_1
