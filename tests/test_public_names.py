"""Every public name of Megatron-Energon 7.4.1 is here too, or left out for a reason."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import bridge_data

ENERGON_7_4_1 = Path(__file__).with_name("energon_7_4_1.txt").read_text().split()

LEFT_OUT = {
    "BatchDataset": "batches are made by the lane: batch_size",
    "BlendDataset": "sources are blended by the order: `blend` in a metadataset",
    "ConcatDataset": "sources come one after the other in validation order",
    "EpochizeDataset": "virtual_epoch_length ends an iteration",
    "FilterDataset": "a hook raises SkipSample",
    "GcDataset": "workers end by themselves and hold no garbage of Python to collect by hand",
    "GroupBatchDataset": "batch_group_criterion of the task encoder",
    "IterMapDataset": "a hook may be a generator",
    "LimitDataset": "limit of get_val_dataset, virtual_epoch_length of get_train_dataset",
    "LogSampleDataset": "each batch carries its keys, and restore_sample makes it again",
    "MapDataset": "the hooks of the task encoder",
    "MixBatchDataset": "batches mix sources unless batch_group_criterion keeps them apart",
    "PackingDataset": "packing_buffer_size",
    "RepeatDataset": "repeat of get_train_dataset",
    "SavableDataset": "there is one kind of data set, LaneDataset, and its state is plain integers",
    "ShuffleBufferDataset": "shuffle_buffer_size; no buffer exists, the order itself is mixed",
}
"""The engine's wrappers, of which a user's code needs none, and what does their work here."""


def test_every_name_of_energon_is_here_or_left_out_for_a_reason() -> None:
    missing = [name for name in ENERGON_7_4_1 if not hasattr(bridge_data, name)]
    assert missing == sorted(LEFT_OUT)
    assert len(LEFT_OUT) <= 20
    assert all(name in bridge_data.__all__ for name in ENERGON_7_4_1 if name not in LEFT_OUT)


def test_the_documentation_lists_what_is_left_out() -> None:
    page = (Path(__file__).parents[1] / "docs/energon.md").read_text()
    table = page.partition("## Names left out")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(LEFT_OUT)


@pytest.mark.peer
@pytest.mark.skipif("BRIDGE_DATA_PEER" not in os.environ, reason="BRIDGE_DATA_PEER names no Python with the peer")
def test_the_names_are_those_of_the_real_package() -> None:
    program = "import json, megatron.energon; print(json.dumps(megatron.energon.__all__))"
    found = subprocess.run([os.environ["BRIDGE_DATA_PEER"], "-c", program], capture_output=True, text=True, check=True)
    assert sorted({*json.loads(found.stdout.splitlines()[-1])} - {"__version__"}) == ENERGON_7_4_1
