"""In processes of their own, as an import cannot be taken back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.prepared import write_blend, write_texts

ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else done.stderr


def test_imports_of_energon_get_the_names_of_this_package() -> None:
    code = """
from bridge_data.energon import replace_energon
replace_energon()
replace_energon()
import bridge_data, megatron.energon
from megatron.energon import DefaultTaskEncoder, TextWebdataset, WorkerConfig
assert DefaultTaskEncoder is bridge_data.DefaultTaskEncoder and issubclass(WorkerConfig, bridge_data.WorkerConfig)
assert TextWebdataset is bridge_data.energon.TextWebdataset
assert megatron.energon.get_loader is bridge_data.get_loader
"""
    assert run(code) == ""


SCALING = """
import json, sys
from bridge_data.energon import replace_energon
replace_energon()
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from tests.properties.jobs import Encoder

path, packing = sys.argv[1], int(sys.argv[2]) or None

def loader_of(rank, world_size, num_workers):
    config = WorkerConfig(rank=rank, world_size=world_size, num_workers=num_workers)
    return get_savable_loader(get_train_dataset(
        path, worker_config=config, batch_size=2, packing_buffer_size=packing, shuffle_buffer_size=20,
        max_samples_per_sequence=10, task_encoder=Encoder()))

def steps(world_size, num_workers, count, states=None):
    "Global batches of 8 samples or packs, and the states of the ranks after them."
    loaders = [loader_of(rank, world_size, num_workers) for rank in range(world_size)]
    if states is not None:
        [loader.restore_state_global(states) for loader in loaders]
    streams = [iter(loader) for loader in loaders]
    found = [[next(stream) for _ in range(4 // world_size) for stream in streams] for _ in range(count)]
    states = [loader.save_state_rank() for loader in loaders]
    [loader.close() for loader in loaders]
    return found, states

expected, _ = steps(1, 4, 14)
for world_size, num_workers in ((2, 2), (4, 1)):
    begun, states = steps(world_size, num_workers, 7)
    assert begun == expected[:7], (world_size, num_workers)
    assert steps(1, 4, 7, states)[0] == expected[7:], (world_size, num_workers)
print(json.dumps([WorkerConfig(0, 2, workers).num_lanes for workers in (0, 1, 3)]))
"""


@pytest.mark.processes
@pytest.mark.parametrize("packing", [0, 16])
def test_the_number_of_all_workers_decides_the_global_batches_as_in_energon(tmp_path: Path, packing: int) -> None:
    write_texts(tmp_path / "a", 300)
    write_texts(tmp_path / "b", 90)
    path = write_blend(tmp_path / "blend.yaml", {"a": 3, "b": 1})
    command = [sys.executable, "-c", SCALING, str(path), str(packing)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [2, 2, 6]


def test_a_star_imports_the_public_names_of_energon() -> None:
    code = """
import sys
from bridge_data.energon import replace_energon
replace_energon()
from megatron.energon import *
from pathlib import Path
missing = {*Path("tests/energon_7_4_1.txt").read_text().split()} - {*globals()}
from bridge_data.energon.module_paths import LEFT_OUT
print(sorted(missing - {*LEFT_OUT}), "lightning" in sys.modules)
"""
    assert run(code) == "[] False\n"


def test_what_has_no_counterpart_is_an_import_error() -> None:
    code = "from bridge_data.energon import replace_energon; replace_energon(); "
    assert "cannot import name 'Nothing' from 'megatron.energon'" in run(code + "from megatron.energon import Nothing")
    assert "no counterpart of megatron.energon.nothing" in run(code + "import megatron.energon.nothing")


def test_energon_that_has_been_imported_cannot_be_replaced() -> None:
    code = """
import sys
from types import ModuleType
sys.modules["megatron.energon"] = ModuleType("megatron.energon")
from bridge_data.energon import replace_energon
replace_energon()
"""
    assert "call bridge_data.energon.replace_energon() before the imports that need it" in run(code)
