"""What a process that reads many data sets keeps of each."""

import gc
import itertools
import os
import pickle
import tracemalloc
from pathlib import Path

from tests.prepared import train_dataset, write_blend, write_texts

NUM_SOURCES, LARGE = 300, 17_000
"""Samples of so many bytes are read one by one, all over their data set."""


def test_of_a_data_set_a_process_keeps_little(tmp_path: Path) -> None:
    write_texts(tmp_path / "s0", 512, lambda number: "x" * LARGE, per_shard=512)
    for number in range(1, NUM_SOURCES):
        os.symlink("s0", tmp_path / f"s{number}")
    weights = {f"s{number}": 1.0 for number in range(NUM_SOURCES)}
    sent = pickle.dumps(train_dataset(write_blend(tmp_path / "blend.yaml", weights), batch_size=32))
    tracemalloc.start()
    try:
        dataset = pickle.loads(sent)
        lane = dataset.lane(0, dataset.new_state())
        for _ in itertools.repeat(None, NUM_SOURCES * 8 // 32):
            lane.next()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / NUM_SOURCES < 30_000  # a third of it are the pages of indexes, of all sources together
