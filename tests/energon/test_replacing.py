"""In processes of their own, as an import cannot be taken back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridge_data.shards.metadata import META_FOLDER
from tests.prepared import write_blend, write_texts

ROOT = Path(__file__).parents[2]


def run(code: str, *, folder: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """What `code` prints in a process that finds the modules of `folder`; if it fails, its error."""
    given = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, folder)))} | (environment or {})
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
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
    assert done.returncode == 0, done.stderr
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


OWN_PROGRAM = """
from bridge_data.energon import replace_energon
replace_energon({settings})
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from my_encoder import Encoder
loader = get_savable_loader(get_train_dataset(
    {data!r}, batch_size=2, shuffle_buffer_size=None, max_samples_per_sequence=None,
    worker_config=WorkerConfig(0, 1, {num_workers}), task_encoder=Encoder(), repeat=False,
))
assert loader.wait_for_workers() == ({num_workers} > 0)
print(sorted((text, place) for batch in loader for text, place in zip(batch.text, batch.place)))
"""
"""A program for Energon, and what its data comes with: a class in a module of its own, and code beside the data."""

MY_ENCODER = """
from dataclasses import dataclass
from megatron.energon import DefaultTaskEncoder, Sample

@dataclass
class Placed(Sample):
    text: str
    place: str

class Encoder(DefaultTaskEncoder):
    pass
"""

SAMPLE_LOADER = """
def sample_loader(raw):
    return {"text": raw["txt"], "place": "here"}

def part_filter(part):
    return part == "txt"
"""

DATASET_YAML = """
__module__: my_encoder
__class__: Placed
sample_loader: sample_loader.py:sample_loader
part_filter: sample_loader.py:part_filter
"""

TRUSTING = 'trust_dataset_code=True, trusted_modules=["my_encoder"]'
TRUSTED_BY_ENVIRONMENT = {"BRIDGE_DATA_TRUST_DATASET_CODE": "1", "BRIDGE_DATA_TRUSTED_MODULES": "other, my_encoder"}


def run_own(
    folder: Path, *, settings: str = "", environment: dict[str, str] | None = None, num_workers: int = 0
) -> str:
    data = write_texts(folder / "texts", 2)
    (data / META_FOLDER / "sample_loader.py").write_text(SAMPLE_LOADER)
    (data / META_FOLDER / "dataset.yaml").write_text(DATASET_YAML)
    (folder / "my_encoder.py").write_text(MY_ENCODER)
    code = OWN_PROGRAM.format(settings=settings, data=str(data), num_workers=num_workers)
    return run(code, folder=folder, environment=environment)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(("settings", "environment"), [(TRUSTING, {}), ("", TRUSTED_BY_ENVIRONMENT)])
def test_code_and_modules_of_data_are_trusted_where_the_program_starts(
    tmp_path: Path, settings: str, environment: dict[str, str], num_workers: int
) -> None:
    found = run_own(tmp_path, settings=settings, environment=environment, num_workers=num_workers)
    assert found == "[('0', 'here'), ('1', 'here')]\n"


@pytest.mark.parametrize(
    ("settings", "environment", "refused"),
    [
        ("", {}, "my_encoder"),
        ('trusted_modules=["my_encoder"]', {}, "sample_loader.py"),
        ('trusted_modules=["my_encoder"]', {"BRIDGE_DATA_TRUST_DATASET_CODE": "0"}, "sample_loader.py"),
        ("trust_dataset_code=False, trusted_modules=[]", TRUSTED_BY_ENVIRONMENT, "my_encoder"),
    ],
)
def test_nothing_else_is_trusted(tmp_path: Path, settings: str, environment: dict[str, str], refused: str) -> None:
    error = run_own(tmp_path, settings=settings, environment=environment).splitlines()[-1]
    assert "ConfigError" in error and "dataset.yaml" in error and refused in error


@pytest.mark.parametrize(
    ("settings", "environment", "wrong"),
    [
        ('trusted_modules="my_encoder"', {}, "my_encoder"),
        ("", {"BRIDGE_DATA_TRUST_DATASET_CODE": "perhaps"}, "BRIDGE_DATA_TRUST_DATASET_CODE"),
        ("", {"BRIDGE_DATA_TRUSTED_MODULES": "a b"}, "BRIDGE_DATA_TRUSTED_MODULES"),
        (f"{TRUSTING}); replace_energon(); replace_energon(trust_dataset_code=False", {}, "trust_dataset_code=False"),
    ],
)
def test_settings_that_are_wrong_or_change_are_refused(settings: str, environment: dict[str, str], wrong: str) -> None:
    code = f"from bridge_data.energon import replace_energon; replace_energon({settings})"
    error = run(code, environment=environment).splitlines()[-1]
    assert "ConfigError" in error and wrong in error
