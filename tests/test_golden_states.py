"""What was saved must be read by every later version: the data of `golden/data.zip`, prepared in November 2026, and
states of format 4 saved then. Pinned are the identity of every kind of data, the files that `prepare` makes, the state
after some batches of each kind of run, the batches that follow on any number of ranks, and their restore keys.

Never change these files to make a test pass: runs could not be resumed. `python -m tests.test_golden_states` adds what
is new in KINDS and RUNS, and leaves the rest.
"""

import copy
import json
import os
import shutil
import sqlite3
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bridge_data import (
    Cooker,
    LaneDataset,
    SavableDataLoader,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    load_states,
    save_states,
)
from bridge_data.cli import main as commands
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare
from tests.properties.jobs import Encoder, GroupingEncoder

MODULE = "tests.test_golden_states"
GOLDEN = Path(__file__).parent / "golden"
FILE = GOLDEN / "states_v4.json"

KINDS = ("tars", "lines.jsonl", "rows.parquet", "saved", "joined.yaml", "blend.yaml", "chosen.yaml", "memory")
"""What is opened, by its name in the folder of the data."""


class LinesEncoder(Encoder):
    """`Encoder` for crude samples."""

    cookers = (Cooker(lambda crude: TextSample(**basic_sample_keys(crude), text=crude["json"]["text"])),)


SHUFFLED: dict[str, Any] = {"batch_size": 3, "shuffle_buffer_size": 1_024, "max_samples_per_sequence": 10}
RUNS: dict[str, tuple[str, Encoder, dict[str, Any]]] = {
    "blend": ("blend.yaml", Encoder(skip_every=7, num_parts=3), SHUFFLED),
    "epochs": ("epochs.yaml", Encoder(), SHUFFLED | {"repeat": False}),
    "packs": ("blend.yaml", Encoder(skip_every=5), SHUFFLED | {"packing_buffer_size": 9}),
    "groups": ("tars", GroupingEncoder(num_groups=3), SHUFFLED),
    "packs in groups": ("rows.yaml", GroupingEncoder(num_groups=2), SHUFFLED | {"packing_buffer_size": 6}),
    "joined": ("joined.yaml", Encoder(), SHUFFLED),
    "chosen": ("chosen.yaml", Encoder(num_parts=2), SHUFFLED | {"shuffle_over_epochs_multiplier": 2}),
    "with replacement": ("saved.yaml", Encoder(), SHUFFLED | {"shuffle_over_epochs_multiplier": -1}),
    "in order": ("lines.jsonl", LinesEncoder(), SHUFFLED | {"shuffle_over_epochs_multiplier": None}),
    "memory": ("memory", Encoder(), SHUFFLED),
    "validation": ("blend.yaml", Encoder(skip_every=7), {"batch_size": 4}),
}
"""Of each run: its data, hooks and options."""

TIME_S = 1_700_000_000
NUM_BEFORE, NUM_AFTER = 10, 8
"""Micro-batches of the whole job before the state is saved, and after it."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("golden"))


def unpacked(folder: Path) -> Path:
    """The data, with the times of their tars, which indexes hold."""
    zipfile.ZipFile(GOLDEN / "data.zip").extractall(folder)
    date(folder)
    return folder


def date(folder: Path) -> None:
    for path in folder.rglob("*.tar"):
        os.utime(path, (TIME_S, TIME_S))


def opened(data: Path, kind: str) -> Any:
    return (
        [TextSample(__key__=str(number), text=str(number)) for number in range(60)] if kind == "memory" else data / kind
    )


def dataset_of(data: Path, name: str, *, rank: int = 0, world_size: int = 1, num_workers: int = 0) -> LaneDataset:
    kind, encoder, options = RUNS[name]
    config = WorkerConfig(rank, world_size, num_workers, seed_offset=7, num_lanes=8)
    make = get_val_dataset if name == "validation" else get_train_dataset
    return make(
        opened(data, kind),
        worker_config=config,
        task_encoder=copy.deepcopy(encoder),
        trusted_modules=[MODULE],
        **options,
    )


def joined(first: TextSample, second: TextSample) -> TextSample:
    """The joiner of `joined.yaml`."""
    return TextSample.derive_from(first, text=first.text)


def taken(loader: SavableDataLoader, count: int) -> list[Any]:
    return [plain(batch) for _, batch in zip(range(count), loader, strict=False)]


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def kept(path: Path) -> Any:
    return (
        json.loads(path.read_text())
        if path.exists()
        else {"identities": {}, "runs": {}, "reports": {}, "indexes": None}
    )


def begun(data: Path, name: str) -> dict[str, Any]:
    """A run's state after its first batches, and the batches before and after it."""
    with get_savable_loader(dataset_of(data, name)) as loader:
        before = taken(loader, NUM_BEFORE)
        state = plain(loader.save_state_rank())
        return {"state": state, "before": before, "after": taken(loader, NUM_AFTER)}


def indexes_of(folder: Path) -> dict[str, Any]:
    """What `prepare` writes beside and within a folder of tars: offsets, keys, counts."""
    with sqlite3.connect(folder / ".nv-meta" / "index.sqlite") as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {table: database.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall() for table in tables}
    info = json.loads((folder / ".nv-meta" / ".info.json").read_text())
    offsets = {path.name: path.read_bytes().hex() for path in sorted(folder.glob("*.idx"))}
    columns = (folder / ".nv-meta" / "index.bridge").read_bytes().hex()
    return plain({"rows": rows, "shard_counts": info["shard_counts"], "offsets": offsets, "index.bridge": columns})


@pytest.mark.parametrize("kind", KINDS)
def test_data_have_the_identity_that_states_hold(data: Path, kind: str) -> None:
    assert identity_of(data, kind) == kept(FILE)["identities"][kind]


def identity_of(data: Path, kind: str) -> list[str]:
    config = WorkerConfig(0, 1, 0)
    options: dict[str, Any] = {"batch_size": 1, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    dataset = get_train_dataset(
        opened(data, kind), worker_config=config, task_encoder=LinesEncoder(), trusted_modules=[MODULE], **options
    )
    return [source.fingerprint for source in dataset.plan.sources]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_draws_and_saves_what_it_did(data: Path, name: str) -> None:
    assert begun(data, name) == kept(FILE)["runs"][name]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("name", [name for name in RUNS if name != "validation"])
def test_a_saved_state_goes_on_with_the_same_batches(data: Path, name: str, world_size: int) -> None:
    run = kept(FILE)["runs"][name]
    streams = []
    for rank in range(world_size):
        with get_savable_loader(dataset_of(data, name, rank=rank, world_size=world_size)) as loader:
            loader.restore_state_rank(run["state"])
            streams.append(taken(loader, NUM_AFTER // world_size))
    together = [stream[number] for number in range(NUM_AFTER // world_size) for stream in streams]
    if world_size == 1:
        assert together == run["after"]
    else:  # each rank's next micro-batch is of its own lanes
        assert sorted(map(json.dumps, together)) == sorted(map(json.dumps, run["after"]))


def test_a_saved_state_of_a_validation_pass_goes_on(data: Path) -> None:
    run = kept(FILE)["runs"]["validation"]
    with get_savable_loader(dataset_of(data, "validation")) as loader:
        loader.restore_state_rank(run["state"])
        assert taken(loader, NUM_AFTER) == run["after"]


@pytest.mark.parametrize("name", ["blend", "joined", "memory"])
def test_samples_are_restored_by_the_keys_of_that_time(data: Path, name: str) -> None:
    """A batch of these runs is its samples' keys."""
    dataset = dataset_of(data, name)
    for ((key,), *_), *_ in (kept(FILE)["runs"][name]["before"],):
        sample = dataset.restore_sample(tuple(key))
        assert plain(sample.__restore_key__) == key


def test_preparing_makes_the_same_indexes(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tars"
    folder.mkdir()
    for path in (data / "tars").glob("*.tar"):
        shutil.copy2(path, folder)
    prepare_tars(folder, "3,1,0")
    assert indexes_of(folder) == kept(FILE)["indexes"] == indexes_of(data / "tars")


COMMANDS = ("info tars", "info blend.yaml", "check tars", "info tars --samples 3", "duplicates tars")
"""Whose `--json` is pinned."""


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_report_what_they_did(data: Path, command: str) -> None:
    assert reported(data, command) == kept(FILE)["reports"][command]


def reported(data: Path, command: str) -> Any:
    name, path, *options = command.split()
    done = CliRunner().invoke(commands, [name, str(data / path), *options, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.replace(str(data), "DATA"))


def test_a_checkpoint_of_two_ranks_is_read(tmp_path: Path) -> None:
    zipfile.ZipFile(GOLDEN / "checkpoint.zip").extractall(tmp_path)
    assert plain(load_states(tmp_path, step=10)) == kept(FILE)["runs"]["packs"]["state"]


def prepare_tars(folder: Path, ratio: str) -> None:
    prepare(folder, lambda shards: split_by_ratio(shards, parse_ratio(ratio)))


def write_data(folder: Path) -> None:
    """The data, once: they are kept as they were written."""
    from bridge_data.plugins.joins.metadataset_joins import prepare_metadataset
    from bridge_data.prepare.jsonl_lines import prepare_jsonl
    from tests.prepared import TEXT, write_texts
    from tests.tables import write_text_table

    write_texts(folder / "tars", 160, per_shard=40, ratio="3,1,0")
    write_texts(folder / "more", 120, text=lambda number: str(1_000 + number), per_shard=40)
    date(folder)
    prepare_tars(folder / "tars", "3,1,0")
    prepare_tars(folder / "more", "1,0,0")
    write_text_table(folder / "rows.parquet", 70, text=lambda number: str(2_000 + number))
    write_text_table(folder / "saved", 50, text=lambda number: str(3_000 + number))
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": str(4_000 + n)}) + "\n" for n in range(40)))
    prepare_jsonl(folder / "lines.jsonl")
    rows = {"path": "rows.parquet", **TEXT, "field_map": {"text": "text"}}
    saved = rows | {"path": "saved"}
    tars, more = {"path": "tars"}, {"path": "more"}
    blend = [tars | {"weight": 5}, more | {"weight": 2}, rows | {"weight": 1}, saved | {"weight": 0.5}]
    epochs = [tars | {"repetitions": 1}, saved | {"repetitions": 2.5}]
    joiner = {"__module__": MODULE, "__function__": "joined"}
    trains = {
        "rows": rows,
        "saved": saved,
        "blend": {"blend": blend},
        "epochs": {"blend_epochized": epochs},
        "chosen": rows | {"where": "text < '2050'"},
        "joined": {"join": [tars, more | {"nonmatch": "skip"}], "joiner": joiner},
    }
    for name, train in trains.items():
        head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
        (folder / f"{name}.yaml").write_text(json.dumps({**head, "splits": {"train": train, "val": tars}}))
    prepare_metadataset(folder / "joined.yaml")


def write_zip(file: Path, folder: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))


def main() -> None:
    golden = kept(FILE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not (GOLDEN / "data.zip").exists():
            write_data(folder)
            write_zip(GOLDEN / "data.zip", folder)
            shutil.rmtree(folder)
        unpacked(folder)
        golden["identities"] = {kind: identity_of(folder, kind) for kind in KINDS} | golden["identities"]
        golden["runs"] = {run: begun(folder, run) for run in RUNS} | golden["runs"]
        golden["indexes"] = golden["indexes"] or indexes_of(folder / "tars")
        golden["reports"] = {command: reported(folder, command) for command in COMMANDS} | golden["reports"]
        if not (GOLDEN / "checkpoint.zip").exists():
            save_states(folder / "checkpoint", golden["runs"]["packs"]["state"], step=10, world_size=2)
            write_zip(GOLDEN / "checkpoint.zip", folder / "checkpoint")
    FILE.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
