"""Programs written for Energon under `replace_energon`, each in a process of its own."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset
from tests.prepared import CRUDE, write_dataset, write_texts

ROOT = Path(__file__).parents[2]
REPLACED = """
import itertools, json, sys
from bridge_data.energon import replace_energon
replace_energon()
from megatron.energon import *
path = sys.argv[1]
"""


def run(program: str, path: Path | str = "") -> str:
    command = [sys.executable, "-c", REPLACED + program, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else done.stderr


def test_importlib_finds_the_release_of_energon_whose_names_are_here() -> None:
    program = """
import importlib.metadata, megatron.energon
assert importlib.metadata.version("megatron-energon") == importlib.metadata.version("Megatron_Energon")
assert importlib.metadata.distribution("megatron-energon").metadata["Name"] == "megatron-energon"
print(importlib.metadata.version("megatron-energon"), megatron.energon.__version__)
try:
    importlib.metadata.version("megatron-energy")
except importlib.metadata.PackageNotFoundError:
    print("no other")
"""
    assert run(program) == "7.4.1 7.4.1\nno other\n"


@pytest.mark.processes
def test_keys_are_bare_as_in_energon_and_everything_by_key_still_works(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", 120)
    crude = ({"__key__": f"web/{number:03d}", "txt": f"{number}", "bin": bytes([number])} for number in range(120))
    write_dataset(tmp_path / "crude", crude, definition=CRUDE)
    program = """
from megatron.energon import cooker, stateless

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


def test_names_that_programs_import_from_odd_places_are_there() -> None:
    program = """
import os
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
"""
    assert run(program) == ""
