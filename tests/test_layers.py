"""Data flows one way: a module imports only what stands before it."""

import ast
import collections
import functools
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import bridge_data
from bridge_data import encoders, energon, plan
from tests.prepared import write_texts

PACKAGE = Path(bridge_data.__file__).parent

LAYERS = (
    "later",
    "child_process",
    "counts",
    "samples",
    "errors",
    "ignored",
    "extensions",
    "limits",
    "options",
    "replacement",
    "import_hook",
    "running_hook",
    "topology",
    "storage",
    "data",
    "plan",
    "order",
    "decode",
    "prepare",
    "task",
    "run_options",
    "keywords",
    "lanes",
    "loader",
    "encoders",
    "datamodule",
    "configs",
    "runs",
    "cli",
    "plugins",
    "energon",
)
"""From the first to the last: what all stages use, the stages, and the core's last rooms: the DataModule and its
settings, training runs as commands read them, and the command line. Above the core stand
the plug-ins, whose commands use what those of the core share; and the names of Energon, which nothing imports."""

NUMBERS = {name: number for number, name in enumerate(LAYERS)}
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = (
    "av",
    "click",
    "cloudpickle",
    "lightning",
    "megatron",
    "numpy",
    "PIL",
    "sqlite3",
    "torch",
    "tqdm",
    "transformers",
    "webdataset",
    "yaml",
)


def layer_of(path: Path) -> str:
    """The layer that a file belongs to: a module of the package, or a package in it."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    """The dotted name of a file in the package, without that of the package."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


class Contents(NamedTuple):
    """What this looks for in a module."""

    imports: list[ast.Import | ast.ImportFrom]
    """At its top or anywhere else in it."""
    run_imports: list[ast.Import | ast.ImportFrom]
    """Those without what type checkers alone read."""
    classes: list[str]
    of_recipes: list[str]
    """The strings that begin as the names of their modules do."""


@functools.cache
def contents_of(path: Path) -> Contents:
    found = Contents([], [], [], [])
    left: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text()), True)]
    while left:
        node, is_run = left.pop()
        match node:
            case ast.Import() | ast.ImportFrom():
                found.imports.append(node)
                if is_run:
                    found.run_imports.append(node)
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=others):
                left += ((one, False) for one in body)
                left += ((one, is_run) for one in others)
            case _:
                if isinstance(node, ast.ClassDef):
                    found.classes.append(node.name)
                elif isinstance(node, ast.Constant) and str(node.value).startswith("recipes."):
                    found.of_recipes.append(str(node.value))
                left += ((one, is_run) for one in ast.iter_child_nodes(node))
    return found


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a module imports, at its top or anywhere else in it."""
    for node in contents_of(path).imports:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "bridge_data" else [module]
        else:
            names = [alias.name for alias in node.names]
        yield from ((node.lineno, name) for name in names)


def test_imports_lead_back_only() -> None:
    """To earlier layers: never to the package itself, whose public names are taken from all of them. The front of a
    room also has the names of the plug-in that is called as it is."""
    assert {layer_of(path) for path in MODULES} - {"__init__"} <= NUMBERS.keys()
    for path in MODULES:
        layer = layer_of(path)
        for line, name in imported(path):
            first, _, rest = name.partition(".")
            assert first not in ("recipes", "tests", "benchmarks"), f"{path}:{line}"
            other = rest.partition(".")[0]
            if path == PACKAGE / layer / "__init__.py" and rest.startswith(f"plugins.{layer}."):
                continue
            if first == "bridge_data" and layer != "__init__":
                assert other == layer or NUMBERS.get(other, len(NUMBERS)) < NUMBERS[layer], f"{path}:{line}: {name}"


def test_nothing_asks_for_the_recipes_by_name_either() -> None:
    """They are not in a wheel."""
    assert {path.name: texts for path in MODULES if (texts := contents_of(path).of_recipes)} == {}


def targets(path: Path, modules: Collection[str]) -> Iterator[str]:
    """The modules of ours that a module names in an import, anywhere in it, also for type checkers alone."""
    for node in contents_of(path).imports:
        if isinstance(node, ast.ImportFrom):
            start = (node.module or "").removeprefix("bridge_data").removeprefix(".")
            names = (f"{start}.{alias.name}".removeprefix(".") for alias in node.names)
            yield from (name if name in modules else start for name in names)
        else:
            yield from (alias.name.removeprefix("bridge_data.") for alias in node.names)


def test_no_module_leads_back_to_itself() -> None:
    """At any level: of rooms, modules, functions and type checkers."""
    paths = {module_of(path): path for path in MODULES}
    leads_to = {name: {*targets(path, paths)} & paths.keys() - {name} for name, path in paths.items()}
    for name in paths:
        reached, left = set[str](), [name]
        while left:
            new = leads_to[left.pop()] - reached
            reached |= new
            left += new
        assert name not in reached or name in CIRCLES_TO_CUT, f"{name} leads back to itself"


CIRCLES_TO_CUT: set[str] = set()
"""Modules in circles that are still to be cut."""


def run_imports(path: Path) -> Iterator[str]:
    """What a module imports when it runs, at its top or anywhere else in it: not what type checkers alone read."""
    for node in contents_of(path).run_imports:
        yield from (
            f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name for alias in node.names
        )


def shown_names(path: Path) -> dict[str, str]:
    """By each name that a package looks up when it is used: where that is, as type checkers are told."""
    checked = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If))
    imports = (one for node in checked for one in node.body if isinstance(one, ast.ImportFrom))
    return {alias.name: f"{one.module}.{alias.name}" for one in imports for alias in one.names}


def depends_on(room: str) -> set[str]:
    """The modules that hang on a room: all that its modules lead to, without the tables of plug-ins."""
    paths = {f"bridge_data.{module_of(path)}": path for path in MODULES}
    shown = {name: shown_names(path) for name, path in paths.items() if path.name == "__init__.py"}
    reached, left = set[str](), [name for name in paths if f"{name}.".startswith(f"bridge_data.{room}.")]
    while left:
        name = left.pop()
        while name not in paths and "." in name:
            package, _, last = name.rpartition(".")
            name = shown.get(package, {}).get(last, package)
        if name in paths and name not in reached:
            reached.add(name)
            left += run_imports(paths[name])
    return {name.removeprefix("bridge_data.") for name in reached}


def test_the_data_module_hangs_on_what_trains_alone() -> None:
    """On nothing that prepares data, on no names of Energon, and on no encoder but that which it makes itself."""
    found = depends_on("datamodule")
    assert {"loader.loader", "lanes.lane", "encoders.multimodal_encoder"} <= found
    assert {name.partition(".")[0] for name in found} & {"energon", "prepare", "plugins", "runs"} == set()
    assert "encoders.text" not in found
    assert {"prepare.tars", "plugins.joins.joins"} <= depends_on("energon"), "this finds what is there"


def test_a_plugin_imports_no_other() -> None:
    """But for the index of costs, which token weights and planned packs are made from."""
    found = set()
    for path in (PACKAGE / "plugins").glob("*/**/*.py"):
        own = path.relative_to(PACKAGE).parts[1]
        for _, name in imported(path):
            match name.split("."):
                case ["bridge_data", "plugins", other, *_] if other != own:
                    found.add((module_of(path), f"plugins.{other}"))
    assert found == set()


@pytest.mark.parametrize("package", [bridge_data, encoders, energon, plan], ids=lambda package: package.__name__)
def test_the_names_of_a_package_are_those_that_type_checkers_see(package: ModuleType) -> None:
    tree = ast.parse(Path(package.__file__ or "").read_text())
    (checked, *_) = (node for node in tree.body if isinstance(node, ast.If))
    shown = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    elsewhere = energon.module_paths.public_names() if package is energon else set()
    assert sorted(shown | elsewhere) == sorted(package.__all__)
    for name in shown:
        assert getattr(package, name) is not None


def imported_by(code: str, heavy: tuple[str, ...]) -> str:
    """Those of the modules `heavy` that `code` imports in a new process, besides what Python itself begins with."""
    code = f"import sys; begun = {{*sys.modules}}\n{code}\n"
    code += f"print([name for name in {heavy} if name in sys.modules and name not in begun])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


PREPARING = "torch numpy tqdm multiprocessing concurrent tarfile hashlib tempfile bridge_data.plan.blending"
PREPARING += (
    " bridge_data.plugins.joins.metadataset_joins bridge_data.prepare.jsonl_lines bridge_data.plugins.media.media"
)


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import bridge_data", " ".join(HEAVY)),
        (
            "import bridge_data.plugins.joins.metadataset_joins, bridge_data.prepare.tars, bridge_data.samples\n"
            "from bridge_data.energon import CrudeWebdataset, load_dataset, prepare_metadataset\n"
            "from bridge_data.plan import load_plan",
            "torch numpy PIL av cloudpickle webdataset",
        ),
        ("import bridge_data.cli.prepare_command", PREPARING),
        (
            "from bridge_data import Cooker, DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset",
            "av click lightning megatron PIL.Image transformers webdataset",
        ),
        (
            "import bridge_data.loader.workers.server, bridge_data.plugins.helping.helping, bridge_data.plan.source",
            "torch PIL.Image av transformers numpy.random yaml bridge_data.run_options",
        ),
    ],
    ids=["the package", "plans and indexes", "preparing tars", "a training script", "workers"],
)
def test_what_is_heavy_is_imported_where_it_is_needed(code: str, heavy: str) -> None:
    assert imported_by(code, tuple(heavy.split())) == "[]"


def test_a_text_data_set_needs_nothing_of_other_data(tmp_path: Path) -> None:
    data = write_texts(tmp_path / "texts", 20)
    code = f"""
from bridge_data import WorkerConfig, get_loader, get_train_dataset
options = dict(worker_config=WorkerConfig(0, 1, 0), batch_size=2, shuffle_buffer_size=10, max_samples_per_sequence=10)
next(iter(get_loader(get_train_dataset({str(data)!r}, **options))))
"""
    ours = ("datamodule", "decode.av.av_decoder", "encoders", "energon", "runs", "plugins.tables.parquet_table")
    ours += ("task.grouping", "task.stores.dataset_store")
    heavy = ("av", "duckdb", "PIL.Image", "pyarrow", "transformers")
    assert imported_by(code, (*heavy, *(f"bridge_data.{name}" for name in ours))) == "[]"


def test_a_public_class_name_is_one_thing() -> None:
    """No two public classes of the package have the same name."""
    classes: dict[str, list[str]] = collections.defaultdict(list)
    for path in MODULES:
        for name in contents_of(path).classes:
            if not name.startswith("_"):
                classes[name].append(str(path.relative_to(PACKAGE)))
    assert {name: where for name, where in classes.items() if len(where) > 1} == {}
