"""Kill a process that saves: `python -m tests.loader.checkpoint.killed_saves FOLDER COUNT`.

The process saves step after step into one folder, without end, and is killed at random moments; after each kill the
folder is loaded. Prints how often it was whole and how often not. A program of its own, because it forks.
"""

import collections
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

from bridge_data import StateError
from bridge_data.loader.checkpoint import read_checkpoint, save_states
from tests.loader.checkpoint.states import make_state

NUM_RANKS = 4


def save_for_ever(folder: Path, timing: int, first_step: int) -> None:
    """Save, and rest for as long as that took, so that a kill falls into either; the first time is written down."""
    step = first_step
    while True:
        begin = time.monotonic()
        save_states(folder, make_state(step=step), step=step, world_size=NUM_RANKS)
        took = time.monotonic() - begin
        if step == first_step:
            os.write(timing, struct.pack("d", took))
        time.sleep(took)
        step += 1


def main(folder: Path, count: int) -> None:
    chance = random.Random(0)
    found: collections.Counter[str] = collections.Counter()
    reading, writing = os.pipe()
    for kill in range(count):
        child = os.fork()
        if not child:
            save_for_ever(folder, writing, 1_000 * kill + 1)
        (took,) = struct.unpack("d", os.read(reading, 8))
        time.sleep(chance.uniform(0, 4 * took))  # the moment of the kill is what is random
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        try:
            checkpoint = read_checkpoint(folder)
        except StateError as error:
            assert "train_dataloader_manifest.json is missing" in str(error) or "holds no data state" in str(error), (
                error
            )
            found["refused"] += 1
            continue
        assert checkpoint.step is not None
        assert checkpoint.state.to_dict() == make_state(step=checkpoint.step)
        found["whole"] += 1
    save_states(folder, make_state(), step=10, world_size=NUM_RANKS)
    assert len(os.listdir(folder)) == NUM_RANKS + 1, "something of the killed saves is left"
    print(f"{found['whole']} whole, {found['refused']} refused")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
