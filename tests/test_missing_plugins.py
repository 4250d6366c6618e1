"""Whoever asks for a plug-in that is not installed is told which one, and the way out: by a public name, a key of YAML,
an option, a file, a URL, a state or a command."""

import contextlib
import functools
import importlib.abc
import io
import json
import re
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import run_job

GONE = {"the folder": "bridge_data.plugins", "each plug-in in it": "bridge_data.plugins."}
"""How the names of the modules begin that cannot be imported."""

YAML = """\
__module__: megatron.energon
__class__: MetadatasetV2
splits: {{train: {}}}
"""

OF_PLUGINS = re.compile(r"from bridge_data\.plugins\.(\w+)\S* import (\w+) as")
"""Public names that plug-ins have."""

TABLES = ("a.parquet", "a.arrow", "a.lance", "a.mds")


class Absent(importlib.abc.MetaPathFinder):
    """Finds no module whose name begins so, as if it had been deleted."""

    def __init__(self, start: str) -> None:
        self.start = start

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name == self.start or name.startswith(f"{self.start.removesuffix('.')}."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def texts(path: Path, **options: Any) -> Any:
    from bridge_data import WorkerConfig, get_train_dataset

    shuffle = {"shuffle_buffer_size": 10, "max_samples_per_sequence": 10}
    return get_train_dataset(path, worker_config=WorkerConfig(0, 1, 0), batch_size=2, **shuffle, **options)


def cases(folder: Path, table: dict[str, dict[str, str]]) -> dict[str, tuple[str, Callable[[], Any]]]:
    """By name: a word that the message must have, and what somebody does who needs a plug-in."""
    import bridge_data
    from bridge_data import DefaultTaskEncoder, energon, get_loader, get_savable_loader, load_dataset
    from bridge_data.cli import main
    from bridge_data.datamodule.parallel import with_context_groups
    from bridge_data.errors import ConfigError
    from bridge_data.extensions import Seam
    from bridge_data.storage import read_all
    from tests.datamodule.parts import make_module

    data = folder / "data"

    class Packs(DefaultTaskEncoder[Any, Any, Any, Any]):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [samples]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return samples[0]

    for name in TABLES:
        (folder / name).write_bytes(b"some")
    (folder / "tables").mkdir()
    (folder / "tables" / "b.parquet").write_bytes(b"some")

    def opened(path: Any = data, **options: Any) -> Any:
        return texts(path, **options)

    def metadataset(node: str) -> Any:
        file = folder / "meta.yaml"
        file.write_text(YAML.format(node))
        return opened(file)

    def state_with_ledger() -> Any:
        with get_savable_loader(opened()) as loader:
            loader.restore_state_rank(json.loads((folder / "state.json").read_text()))

    def command(*words: object) -> None:
        messages = io.StringIO()
        with contextlib.redirect_stderr(messages):
            if main([*map(str, words)], standalone_mode=False):
                raise ConfigError(messages.getvalue())

    found: dict[str, tuple[str, Callable[[], Any]]] = {
        "join:": ("join", lambda: metadataset(f"{{join: [{{path: {data}}}, {{path: {data}}}], joiner: {{}}}}")),
        "where:": ("where", lambda: metadataset(f"{{path: {data}, where: txt.bytes < 9}}")),
        "weight_unit:": ("cost_weights", lambda: metadataset(f"{{blend: [{{path: {data}}}], weight_unit: tokens}}")),
        "where=": ("where", lambda: opened(where="txt.bytes < 9")),
        "weight_unit=": ("cost_weights", lambda: opened(weight_unit="tokens")),
        "packing=": ("planned", lambda: opened(packing="planned", packing_buffer_size=10, task_encoder=Packs())),
        "memo=": ("memo", lambda: get_loader(opened(), memo={"folder": str(folder / "memo"), "version": "1"})),
        "workers=": ("ray", lambda: get_loader(opened(), workers="ray")),
        "ledger_path=": ("ledger", lambda: get_loader(opened(), ledger_path=folder / "ledger")),
        "balance=": ("balance", lambda: make_module(str(data), balance="tokens")),
        "share=": ("share", lambda: make_module(str(data), share="broadcast").train_dataloader()),
        "with_context_groups": ("context_groups", lambda: with_context_groups(opened(), None, 10)),
        "a state": ("ledger", state_with_ledger),
        "prepare()": ("join_indexes", lambda: load_dataset(folder / "meta.yaml").prepare()),
        "prepare a metadataset": ("join_indexes", lambda: command("prepare", folder / "meta.yaml")),
        "a folder of tables": (".parquet", lambda: opened(folder / "tables")),
    }
    found |= {name: (Path(name).suffix, lambda name=name: opened(folder / name)) for name in TABLES}
    found |= {f"{name}://": (name, lambda name=name: read_all(f"{name}://b/k")) for name in table["stores"]}
    found |= {
        f"bridge-data {name}": (name.partition(" ")[0], lambda name=name: command(*name.split(), data))
        for name in table["commands"]
    }
    found |= {
        f"{kind}: {name}": (name, lambda kind=kind, name=name: Seam[Any](kind).get(name, needed_by="a setting"))
        for kind, names in table.items()
        for name in names
    }
    for package in (bridge_data, energon):
        for plugin, name in OF_PLUGINS.findall(Path(package.__file__ or "").read_text()):
            found[f"{package.__name__}.{name}"] = plugin, functools.partial(getattr, package, name)
    return found


def run(start: str, folder: Path, table: dict[str, dict[str, str]]) -> None:
    """Print what comes of each case, as JSON."""
    sys.meta_path.insert(0, Absent(start))
    from bridge_data.errors import BridgeDataError

    messages: dict[str, list[str]] = {}
    for name, (word, act) in cases(folder, table).items():
        try:
            act()
            messages[name] = [word, "", ""]
        except BaseException as error:
            messages[name] = [word, f"{type(error).__name__} {isinstance(error, BridgeDataError)}", str(error)]
    print(json.dumps(messages))


@pytest.mark.processes
@pytest.mark.parametrize("start", GONE.values(), ids=GONE)
def test_whoever_needs_a_plugin_that_is_missing_is_told_which(start: str, tmp_path: Path) -> None:
    from bridge_data import get_savable_loader
    from bridge_data.plugins import TABLE
    from tests.prepared import write_texts

    data = write_texts(tmp_path / "data", 20)
    with get_savable_loader(texts(data), ledger_path=tmp_path / "kept") as loader:
        next(iter(loader))
        (tmp_path / "state.json").write_text(json.dumps(loader.save_state_rank()))
    arguments = start, str(tmp_path), json.dumps(TABLE)
    status, output = run_job("tests.test_missing_plugins", *arguments, anew=("bridge_data", "tests"))
    assert status == 0, output
    messages = json.loads(output.splitlines()[-1])
    assert len(messages) > 70, [*messages]
    unnamed = {name: one for name, one in messages.items() if not is_named(*one)}
    assert not unnamed, unnamed


def is_named(word: str, kind: str, text: str) -> bool:
    """Whether an error is ours, and names the plug-in."""
    return kind.endswith("True") and word in text and "plug-in" in text


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
