"""What adapts this package to Energon's own tests, which are run by hand, fits the package."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import pickle
import megatron.energon
from megatron.energon import DefaultTaskEncoder, SampleDecoder, TaskEncoder, WorkerConfig
for decoder in (DefaultTaskEncoder.decoder, TaskEncoder.decoder, SampleDecoder()):
    print(decoder.decode("1.pkl", pickle.dumps("a boat")))
print(WorkerConfig(rank=0, world_size=2, num_workers=3).num_lanes)
"""


def test_energons_tests_get_pickles_and_as_many_lanes_as_workers() -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'tests/compat/alias'}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["a boat", "a boat", "a boat", "6", ""]
