"""Where users let results be written: each path or URL is honoured, or refused by its argument's name; never a folder
`./s3:`."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from bridge_data import (
    FileStoreCachePool,
    JsonlSink,
    Memo,
    ShardWriter,
    TensorBoardSink,
    get_savable_loader,
    save_rank_state,
    save_states,
)
from bridge_data.cli import main
from bridge_data.cli.terminal import LOCATION, ON_DISK, OUTPUT, OUTPUT_ON_DISK
from bridge_data.datamodule.bridge import EnergonDatasetConfig
from bridge_data.errors import ConfigError
from bridge_data.loader.checkpoint import load_states
from bridge_data.plugins.ledger.ledger_files import RunLedger
from bridge_data.storage import copies
from tests.cli.runner import run_command
from tests.object_store import Bucket
from tests.prepared import train_dataset, write_texts

Given = str | os.PathLike[str]

STORES = ("s3://bucket/out", "gs://bucket/out", "az://bucket/out", "msc://profile/out", "hf://datasets/a/b/out")
NOWHERE = (
    "https://host/out",
    "hf://datasets/a/b/out",
    "hf://buckets/a/out",
    "s3:///out",
    Path("s3://bucket/out"),
    "s3:bucket/out",
    "file:out",
    "$BRIDGE_DATA_NOT_SET/out",
)
"""URLs of no store that is written to, or without slashes, of which `pathlib` removes one; a variable not set."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("outputs") / "texts", 60)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, which a test leaves empty."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    assert not [*folder.iterdir()]


def cache_of_copies(where: Given) -> Path:
    os.environ[copies.CACHE_VARIABLE] = os.fspath(where)
    return copies.cache_folder()


def bridge_config(where: Given) -> None:
    config = EnergonDatasetConfig(path="texts", seq_length=64, micro_batch_size=1)
    config.dataloader_save = where  # type: ignore[assignment]
    config.finalize()


ON_DISK_ONLY: dict[str, Callable[[Given], Any]] = {
    "memo: folder": lambda where: Memo(where, version="1"),  # type: ignore[arg-type]
    "memo: disk": lambda where: Memo("/dev/shm/run", version="1", disk=where),  # type: ignore[arg-type]
    "parent_cache_dir": lambda where: FileStoreCachePool(parent_cache_dir=where).close(),
    "JsonlSink": lambda where: JsonlSink(where),
    "TensorBoardSink": lambda where: TensorBoardSink(where).close(),
    "dataloader_save": bridge_config,
    "BRIDGE_DATA_CACHE": cache_of_copies,
}


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(copies.CACHE_VARIABLE, "")
    monkeypatch.setenv("OUTPUTS_OF_TESTS", "")


@pytest.mark.parametrize("name", ON_DISK_ONLY)
def test_what_is_written_to_a_disk_only_refuses_every_url_but_that_of_a_file(
    name: str, tmp_path: Path, own_environment: None
) -> None:
    for where in (*STORES, *NOWHERE):
        with pytest.raises(ConfigError) as refused:
            ON_DISK_ONLY[name](where)
        assert name in str(refused.value) and str(where) in str(refused.value)
    ON_DISK_ONLY[name](f"file://{tmp_path}/out%20put")
    ON_DISK_ONLY[name](tmp_path / "out put")
    os.environ["OUTPUTS_OF_TESTS"] = str(tmp_path)
    ON_DISK_ONLY[name]("$OUTPUTS_OF_TESTS/out put")


def commands(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield (*names, name), command


PATHS = {
    (*names, *param.opts): param
    for names, command in commands(main)
    for param in command.params
    if isinstance(param.type, click.Path) or param.type in (LOCATION, ON_DISK, OUTPUT, OUTPUT_ON_DISK)
}
WRITTEN = {
    ("checkpoint", "redist", "target"): OUTPUT,
    ("checkpoint", "skip", "--out"): OUTPUT,
    ("convert", "target"): OUTPUT,
    ("duplicates", "--keys"): OUTPUT_ON_DISK,
    ("duplicates", "--out"): OUTPUT_ON_DISK,
    ("mount", "mountpoint"): OUTPUT_ON_DISK,
    ("order", "--out"): OUTPUT_ON_DISK,
    ("plan", "--html"): OUTPUT_ON_DISK,
    ("info", "--html"): OUTPUT_ON_DISK,
}
"""What commands write to, besides their data."""


def test_every_output_of_a_command_is_of_the_type_of_outputs() -> None:
    outputs = {name: param.type for name, param in PATHS.items() if param.type in (OUTPUT, OUTPUT_ON_DISK)}
    assert outputs == WRITTEN
    words = ("write", "draw", "made")
    told = {
        name
        for name, param in PATHS.items()
        if any(word in (getattr(param, "help", "") or "").lower() for word in words)
    }
    assert told <= WRITTEN.keys()


@pytest.mark.parametrize("name", WRITTEN)
def test_outputs_of_commands_name_their_option_when_they_refuse_a_url(name: tuple[str, ...]) -> None:
    param = PATHS[name]
    for where in (*NOWHERE, *(STORES if param.type is OUTPUT_ON_DISK else ())):
        with pytest.raises(ConfigError) as refused:
            param.type.convert(where, param, None)
        assert name[-1].lower() in str(refused.value).lower() or "DST" in str(refused.value)
        assert str(where) in str(refused.value)
    assert param.type.convert("file:///a/b", param, None) == Path("/a/b")


def test_a_command_says_which_option_it_was(data: Path) -> None:
    done = run_command("info", data, "--html", "s3://bucket/sheet.html")
    assert done.exit_code == 1 and "--html" in done.output and "s3://bucket/sheet.html" in done.output


def loader_of(data: Path, **settings: Any) -> Any:
    dataset = train_dataset(data, batch_size=4, num_lanes=2, shuffle_buffer_size=20, max_samples_per_sequence=10)
    return get_savable_loader(dataset, **settings)


@pytest.mark.parametrize("where", NOWHERE, ids=str)
def test_what_is_written_to_stores_names_its_argument_when_it_cannot_be(where: Given, data: Path) -> None:
    with loader_of(data) as loader:
        state = loader.save_state_rank()
    for name, act in {
        "save_states: folder": lambda: save_states(where, state, step=0, world_size=1),
        "save_rank_state: folder": lambda: save_rank_state(where, state, step=0),
        "ledger_path": lambda: loader_of(data, ledger_path=where),
        "ShardWriter: path": lambda: ShardWriter(where),
    }.items():
        with pytest.raises(ConfigError) as refused:
            act()
        assert name in str(refused.value) and str(where) in str(refused.value)


def test_states_are_written_to_a_store_and_read_from_it(bucket: Bucket, data: Path, tmp_path: Path) -> None:
    with loader_of(data) as loader:
        for _ in zip(range(3), loader, strict=False):
            pass
        state = loader.save_state_rank()
        rest = [batch.text for _, batch in zip(range(3), loader, strict=False)]
    for folder in (f"{bucket.url}/run/iter_0000003", f"file://{tmp_path}/run%20a/iter_0000003"):
        save_states(folder, state, step=3, world_size=2)
        save_states(folder, state, step=3, world_size=1)  # replaces it, and removes the file of rank 1
        with loader_of(data) as loader:
            loader.restore_state_rank(load_states(folder, step=3))
            assert [batch.text for _, batch in zip(range(3), loader, strict=False)] == rest
    assert os.listdir(bucket.folder / "run/iter_0000003") == ["train_dataloader_dprank000.pt"]
    assert os.listdir(tmp_path / "run a/iter_0000003") == ["train_dataloader_dprank000.pt"]
    shown = run_command("checkpoint", "info", f"{bucket.url}/run/iter_0000003", "--json")
    assert shown.exit_code == 0 and '"step": 3' in shown.output
    copied = run_command(
        "checkpoint", "redist", f"{bucket.url}/run/iter_0000003", f"{bucket.url}/of_two", "--world-size", "2"
    )
    assert copied.exit_code == 0 and len(os.listdir(bucket.folder / "of_two")) == 2


def test_a_ledger_is_in_the_store_when_the_loader_is_closed_and_goes_on_there(bucket: Bucket, data: Path) -> None:
    folder = f"{bucket.url}/ledger"
    with loader_of(data, ledger_path=folder) as loader:
        for _ in zip(range(4), loader, strict=False):
            pass
        state = loader.save_state_rank()
    assert RunLedger(folder).last == (0, 3)
    with loader_of(data, ledger_path=folder) as loader:
        loader.restore_state_rank(state)
        for _ in zip(range(3), loader, strict=False):
            pass
    ledger = RunLedger(folder)
    assert ledger.last == (0, 6) and [len(ledger.micro_batch(number)) for number in range(7)] == [4] * 7
