"""Data prepared here loads in Megatron-Energon, and data prepared by Megatron-Energon loads here."""

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge_data.data import PreparedDataset, ShardReader, open_shards
from bridge_data.plugins.unindexed.energon_index import index_of_energon
from bridge_data.prepare.tars import PrepareConfig, refresh_index
from tests.cli.runner import run_command, write_picture_tars
from tests.data.tars import write_shards, write_tar
from tests.peer.running import MARKS, PEER, run_python

pytestmark = MARKS

Samples = list[dict[str, Any]]

READ = """
import hashlib, json, sys
from megatron.energon import Cooker, DefaultTaskEncoder, Sample, WorkerConfig, basic_sample_keys, edataclass
from megatron.energon import get_loader, get_val_dataset, stateless

@edataclass
class Parts(Sample):
    parts: dict

@stateless
def cook(sample):
    parts = {k: hashlib.sha256(v).hexdigest() for k, v in sample.items() if not k.startswith("__")}
    return Parts(**basic_sample_keys(sample), parts=parts)

class Encoder(DefaultTaskEncoder):
    decoder = None
    cookers = [Cooker(cook)]

config = WorkerConfig(rank=0, world_size=1, num_workers=0)
path, *split_parts = sys.argv[1:]
found = {}
for part in split_parts:
    data = get_val_dataset(path, split_part=part, batch_size=None, worker_config=config, task_encoder=Encoder())
    samples = get_loader(data)
    found[part] = [{"key": s.__key__, "shard": s.__sources__[0].shard_name, "parts": s.parts} for s in samples]
json.dump(found, sys.stdout)
"""

READ_CAPTIONS = """
import json, sys
from megatron.energon import WorkerConfig, get_loader, get_val_dataset
config = WorkerConfig(rank=0, world_size=1, num_workers=0)
data = get_val_dataset(sys.argv[1], split_part="train", batch_size=None, worker_config=config)
found = [[s.__key__, s.caption, list(s.image.shape)] for s in get_loader(data)]
json.dump(found, sys.stdout)
"""

READ_BY_KEY = """
import hashlib, json, sys
from megatron.energon.cache.file_store import WebdatasetFileStore
from megatron.energon.epathlib import EPath
store = WebdatasetFileStore(EPath(sys.argv[1]))
json.dump([hashlib.sha256(store[name][0]).hexdigest() for name in sys.argv[2:]], sys.stdout)
"""


def energon(code: str, *arguments: object) -> Any:
    """What a script prints as JSON under the peer's Python."""
    return json.loads(run_python(PEER, code, *map(str, arguments)).splitlines()[-1])


def energon_prepare(folder: Path, *flags: str, typed: str | None = None) -> None:
    """`energon prepare`, as its users run it."""
    command = [
        str(Path(PEER).parent / "energon"),
        "prepare",
        str(folder),
        "--no-progress",
        "--num-workers",
        "2",
        *flags,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, input=typed)
    assert done.returncode == 0, done.stdout + done.stderr


def ours(folder: Path, *split_parts: str) -> dict[str, Samples]:
    """What we read of a data set, with digests in place of contents."""
    found: dict[str, Samples] = {}
    for split_part in split_parts:
        reader = ShardReader(open_shards(folder, split_part))
        found[split_part] = [
            {
                "key": sample.key,
                "shard": sample.shard_name,
                "parts": {part: hashlib.sha256(content).hexdigest() for part, content in sample.parts.items()},
            }
            for sample in map(reader.read, range(len(reader)))
        ]
    assert all(found.values())
    return found


def theirs(folder: Path, *split_parts: str) -> dict[str, Samples]:
    """What Energon reads of it."""
    found: dict[str, Samples] = energon(READ, folder, *split_parts)
    return found


FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


@pytest.fixture(params=["webdataset", *FORMATS])
def shards(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of shards in one of the dialects, with folders, dots and odd members."""
    folder = tmp_path / "data"
    if request.param == "webdataset":
        write_shards(folder, num_shards=10, samples_per_shard=7)
        return folder
    for shard in range(10):
        members = {f"part{shard}/": b"", "README": b"no data", "__meta__/about.txt": b"no data"}
        for number in range(3):
            key = f"part{shard}/v1.0/{number:04d}"
            members |= {f"{key}.left.png": os.urandom(number * 700), f"{key}.txt": f"{shard} {number}".encode()}
        if request.param != "ustar":
            members[f"part{shard}/{'long' * 40}.ä.txt"] = b"long"
        write_tar(folder / f"sub.{shard % 2}/shard_{shard:03d}.v2.tar", members, FORMATS[request.param])
    return folder


QUIET = ("--non-interactive", "--split-ratio", "8,1,1", "--sample-type", "CrudeWebdataset")
PARTS = ("train", "val", "test")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A folder of shards as webdataset writes them."""
    write_shards(tmp_path / "data", num_shards=10, samples_per_shard=7)
    return tmp_path / "data"


def test_data_prepared_here_loads_there(shards: Path) -> None:
    assert run_command("prepare", shards, *QUIET).exit_code == 0
    assert theirs(shards, *PARTS) == ours(shards, *PARTS)
    sample = ours(shards, "train")["train"][4]
    names = [f"{sample['key']}.{part}" for part in sample["parts"]]
    assert energon(READ_BY_KEY, shards, *names) == list(sample["parts"].values())


def test_data_prepared_there_loads_here(shards: Path) -> None:
    """Also by the index that is made of its files, which is that of our own preparation."""
    energon_prepare(shards, *QUIET)
    assert PreparedDataset.open(shards).index is None
    read = theirs(shards, *PARTS)
    assert ours(shards, *PARTS) == read
    made = PreparedDataset.open(shards, make_index=index_of_energon).index
    assert made is not None
    by_name = {name: (made.entries[name].num_bytes, made.segment_bytes(name)) for name in made.entries}
    refresh_index(shards, PrepareConfig(num_workers=1, rescan=True))
    index = PreparedDataset.open(shards).index
    assert index is not None
    assert by_name == {name: (index.entries[name].num_bytes, index.segment_bytes(name)) for name in index.entries}
    assert ours(shards, *PARTS) == read == theirs(shards, *PARTS)


def test_both_write_the_same_files(shards: Path) -> None:
    other = shards.with_name("other")
    shutil.copytree(shards, other)
    assert run_command("prepare", shards, *QUIET).exit_code == 0
    energon_prepare(other, *QUIET)
    names = sorted(path.relative_to(shards) for path in shards.rglob("*.tar.idx"))
    assert names == sorted(path.relative_to(other) for path in other.rglob("*.tar.idx")) != []
    for name in [*names, Path(".nv-meta/.info.json")]:
        assert (shards / name).read_bytes() == (other / name).read_bytes()
    for name in ("split.yaml", "dataset.yaml"):
        mine, peers = ((folder / ".nv-meta" / name).read_text() for folder in (shards, other))
        assert yaml.safe_load(mine) == yaml.safe_load(peers)
    mine_db, peers_db = (sqlite3.connect(folder / ".nv-meta/index.sqlite") for folder in (shards, other))
    for table, order in (("samples", "1, 3"), ("sample_parts", "1, 2, 4")):
        columns = f"SELECT name, type, \"notnull\" FROM pragma_table_info('{table}')"
        assert mine_db.execute(columns).fetchall() == peers_db.execute(columns).fetchall()
        rows = f"SELECT * FROM {table} ORDER BY {order}"
        assert mine_db.execute(rows).fetchall() == peers_db.execute(rows).fetchall() != []


def test_both_shuffle_and_divide_alike(plain: Path) -> None:
    splits = []
    for flags in (
        ("--split-ratio", "5,3,2", "--shuffle-tars"),
        ("--split-parts", "a:data-{000000..000003}", "--split-parts", "b:.*9"),
    ):
        quiet = ("--non-interactive", "--force-overwrite", *flags)
        assert run_command("prepare", plain, *quiet).exit_code == 0
        splits.append(yaml.safe_load((plain / ".nv-meta/split.yaml").read_text()))
        energon_prepare(plain, "--skip-dataset-yaml", *quiet)
        splits.append(yaml.safe_load((plain / ".nv-meta/split.yaml").read_text()))
    assert splits[0] == splits[1] != splits[2] == splits[3]


def test_captions_by_the_questions_of_both(tmp_path: Path) -> None:
    tars = write_picture_tars(tmp_path / "raw", tmp_path / "tars")
    other = tmp_path / "other"
    shutil.copytree(tars, other)
    assert run_command("prepare", tars, typed="10,0,0\n0\npng\njson[caption]\n").exit_code == 0
    # Energon also asks whether to write dataset.yaml, and whether by a field map.
    energon_prepare(other, typed="10,0,0\ny\n0\ny\npng\njson[caption]\n")
    definition = yaml.safe_load((tars / ".nv-meta/dataset.yaml").read_text())
    assert definition == yaml.safe_load((other / ".nv-meta/dataset.yaml").read_text())
    expected = [[f"{number:06d}", f"caption {number}", [3, 30, 40 + number]] for number in range(1, 13)]
    assert [[key.rpartition("/")[2], *rest] for key, *rest in energon(READ_CAPTIONS, tars)] == expected


def test_an_index_that_energon_made_stale_is_left_aside(plain: Path) -> None:
    assert run_command("prepare", plain, *QUIET).exit_code == 0
    assert PreparedDataset.open(plain).index is not None
    write_tar(plain / "data-000000.tar", {f"replaced/{number}.txt": b"" for number in range(7)})
    energon_prepare(plain, *QUIET, "--force-overwrite")
    assert PreparedDataset.open(plain).index is None
    assert ours(plain, "train") == theirs(plain, "train")
    assert ours(plain, "train")["train"][0]["key"] == "replaced/0"


def test_a_data_set_that_has_grown_loads_there(shards: Path) -> None:
    """Its new shard comes first by name, and has the last number in the database."""
    flags = ("--non-interactive", "--no-progress", "--sample-type", "CrudeWebdataset", "--split-ratio")
    assert run_command("prepare", shards, *flags, "8,1,1").exit_code == 0
    write_tar(shards / "a-first.tar", {"first.txt": b"first"})
    assert run_command("prepare", shards, *flags, "8,1,1", "--force-overwrite").exit_code == 0
    assert energon(READ, shards, "train", "val", "test") == ours(shards, "train", "val", "test")
    assert energon(READ_BY_KEY, shards, "first.txt") == [hashlib.sha256(b"first").hexdigest()]
