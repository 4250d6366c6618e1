"""`replace_energon`, and programs written for Energon under it: in processes of their own, as an import cannot be taken
back."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.data.metadata import META_FOLDER
from tests.prepared import CRUDE, write_blend, write_dataset, write_texts
from tests.ranks import run_job

ROOT = Path(__file__).parents[2]


def run(code: str, *arguments: object, environment: dict[str, str] | None = None) -> str:
    """The last line that `code` prints, which is its error if it fails; on a slow machine workers tell before what they
    wait for."""
    with mock.patch.dict(os.environ, environment or {}):
        return run_job("-c", code, *map(str, arguments))[1].splitlines()[-1]


NAMES = """
import importlib.metadata, os, sys
from bridge_data.energon import replace_energon
replace_energon()
replace_energon()
import bridge_data, megatron.energon
from megatron.energon import *
assert DefaultTaskEncoder is bridge_data.DefaultTaskEncoder and issubclass(WorkerConfig, bridge_data.WorkerConfig)
assert TextWebdataset is bridge_data.energon.TextWebdataset
assert megatron.energon.get_loader is bridge_data.get_loader

# the public names of Energon, as a star imports them
from pathlib import Path
missing = {*Path("tests/energon_7_4_1.txt").read_text().split()} - {*globals()}
from bridge_data.energon.module_paths import LEFT_OUT
assert missing <= {*LEFT_OUT} and "lightning" not in sys.modules
try:
    from megatron.energon import Nothing
except ImportError as error:
    assert "cannot import name 'Nothing' from 'megatron.energon'" in str(error)
try:
    import megatron.energon.nothing
except ImportError as error:
    assert "no counterpart of megatron.energon.nothing" in str(error)

# names that programs import from odd places
from megatron.energon.epathlib import EPath
from megatron.energon.flavors.webdataset.metadata import MAIN_FOLDER_NAME
from megatron.energon.flavors.webdataset.prepare import MAIN_FOLDER_NAME as again
from megatron.energon.task_encoder.base import get_stateless, stateless
from megatron.energon.wrappers import BatchDataset, FilterDataset, MapDataset
from megatron.energon.wrappers.map_dataset import MapDataset as Same
assert MAIN_FOLDER_NAME == again == ".nv-meta" and Same is MapDataset
assert EPath("photos").absolute() == os.path.abspath("photos")
assert get_stateless(stateless(lambda sample: sample)) and get_stateless(DefaultTaskEncoder().encode_sample)
assert not get_stateless(print)
assert all(issubclass(kind, SavableDataset) for kind in (BatchDataset, FilterDataset, MapDataset))

# importlib finds the release whose names are here
assert importlib.metadata.version("megatron-energon") == importlib.metadata.version("Megatron_Energon")
assert importlib.metadata.distribution("megatron-energon").metadata["Name"] == "megatron-energon"
print(importlib.metadata.version("megatron-energon"), megatron.energon.__version__)
try:
    importlib.metadata.version("megatron-energy")
except importlib.metadata.PackageNotFoundError:
    print("no other")
"""

TOO_LATE = """
import sys
from types import ModuleType
sys.modules["megatron.energon"] = ModuleType("megatron.energon")
from bridge_data.energon import replace_energon
replace_energon()
"""


def test_imports_of_energon_get_the_names_of_this_package() -> None:
    done = subprocess.run([sys.executable, "-c", NAMES], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "7.4.1 7.4.1\nno other\n"
    assert "call bridge_data.energon.replace_energon() before the imports that need it" in run(TOO_LATE)


SCALING = """
import json, sys
from bridge_data.energon import replace_energon
replace_energon()
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from tests.properties.jobs import Encoder

path = sys.argv[1]

def loader_of(rank, world_size, num_workers):
    config = WorkerConfig(rank=rank, world_size=world_size, num_workers=num_workers)
    return get_savable_loader(get_train_dataset(
        path, worker_config=config, batch_size=2, packing_buffer_size=16, shuffle_buffer_size=20,
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

kept = iter(loader_of(0, 1, 1))  # and with it the process that starts workers
next(kept)
expected, _ = steps(1, 4, 14)
for world_size, num_workers in ((2, 2), (4, 1)):
    begun, states = steps(world_size, num_workers, 7)
    assert begun == expected[:7], (world_size, num_workers)
    assert steps(1, 4, 7, states)[0] == expected[7:], (world_size, num_workers)
print(json.dumps([WorkerConfig(0, 2, workers).num_lanes for workers in (0, 1, 3)]))
"""


@pytest.mark.processes
def test_the_number_of_all_workers_decides_the_global_batches_as_in_energon(tmp_path: Path) -> None:
    write_texts(tmp_path / "a", 300)
    write_texts(tmp_path / "b", 90)
    path = write_blend(tmp_path / "blend.yaml", {"a": 3, "b": 1})
    assert run(SCALING, path) == "[2, 2, 6]"


OWN_PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
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
    code = OWN_PROGRAM.format(settings=settings, folder=str(folder), data=str(data), num_workers=num_workers)
    return run(code, environment=environment)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(("settings", "environment"), [(TRUSTING, {}), ("", TRUSTED_BY_ENVIRONMENT)])
def test_code_and_modules_of_data_are_trusted_where_the_program_starts(
    tmp_path: Path, settings: str, environment: dict[str, str], num_workers: int
) -> None:
    found = run_own(tmp_path, settings=settings, environment=environment, num_workers=num_workers)
    assert found == "[('0', 'here'), ('1', 'here')]"


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
    error = run_own(tmp_path, settings=settings, environment=environment)
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
    error = run(code, environment=environment)
    assert "ConfigError" in error and wrong in error


@pytest.mark.processes
def test_keys_are_bare_as_in_energon_and_everything_by_key_still_works(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", 120)
    crude = ({"__key__": f"web/{number:03d}", "txt": f"{number}", "bin": bytes([number])} for number in range(120))
    write_dataset(tmp_path / "crude", crude, definition=CRUDE)
    program = """
import itertools, json, sys
from bridge_data.energon import replace_energon
replace_energon()
from megatron.energon import *
from megatron.energon import cooker, stateless
path = sys.argv[1]

@stateless
@cooker(need_primary=True)
def cook(sample: dict, primary: FileStore) -> TextSample:
    assert "tar" not in sample["__key__"] and sample["__shard__"].endswith(".tar")
    assert primary.get(".bin", sample) == bytes([int(sample["txt"])])
    return TextSample(**basic_sample_keys(sample), text=sample["txt"])

class Cook(DefaultTaskEncoder):
    cookers = [Cooker(cook)]

def loader(folder, encoder, num_workers):
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=2)
    settings = dict(batch_size=4, shuffle_buffer_size=100, max_samples_per_sequence=100)
    dataset = get_train_dataset(f"{path}/{folder}", task_encoder=encoder, worker_config=config, **settings)
    return get_savable_loader(dataset)

for folder, encoder in (("texts", DefaultTaskEncoder()), ("crude", Cook())):
    seen = []
    for num_workers in (0, 2):
        with loader(folder, encoder, num_workers) as batches:
            if num_workers:
                assert batches.wait_for_workers()
            seen.append([batch for batch in itertools.islice(batches, 20)])
            again = batches.restore_sample(seen[-1][7].__restore_key__)
        assert again.__key__ == seen[-1][7].__key__
    first, second = ([key for batch in batches for key in batch.__key__] for batches in seen)
    assert first == second
    for batch in seen[0]:
        sources = [source for source in batch.__sources__ if any(".txt" in name for name in source.file_names)]
        for key, text, source in zip(batch.__key__, batch.text, sources, strict=True):
            name = f"{int(text):06d}" if folder == "texts" else f"web/{int(text):03d}"
            assert (key, source.shard_name[:5]) == (name, "data-") and f"{name}.txt" in source.file_names
    if folder == "texts":
        batches = loader(folder, encoder, 0)
        before = [key for batch in itertools.islice(batches, 10) for key in batch.__key__]
        told = {"keys": first, "state": batches.save_state_rank(), "before": before}
print(json.dumps(told))
"""
    told = json.loads(run(program, tmp_path))
    # The order and its states are the same; a native program resumes, and names the same samples in full.
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=2)
    shuffling: dict[str, Any] = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100}
    native = get_savable_loader(get_train_dataset(texts, batch_size=4, worker_config=config, **shuffling))
    native.restore_state_rank(told["state"])
    keys = [key for batch in itertools.islice(native, 10) for key in batch.__key__]
    assert [key.partition("/")[2] for key in keys] == told["keys"][40:] and told["before"] == told["keys"][:40]
    assert all(re.fullmatch(r"data-\d{4}\.tar/\d{6}", key) for key in keys)
