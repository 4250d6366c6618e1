"""Data flows one way: a module imports only what stands before it."""

import ast
import collections
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import bridge_data
from bridge_data import encoders, energon, plan
from tests.prepared import write_texts

PACKAGE = Path(bridge_data.__file__).parent

LAYERS = (
    *("later", "child_process", "process_counts", "samples", "errors", "limits", "options", "replacement"),
    *("running_hook", "topology", "storage", "shards", "plan", "order", "decode", "prepare", "dataset_loaders"),
    *("energon", "task", "run_options", "keywords", "lanes", "loader", "encoders", "datamodule", "tools"),
)
"""From the first to the last: what all stages use, then the stages and what stands beside them."""

NUMBERS = {name: number for number, name in enumerate(LAYERS)}
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = (
    *("av", "click", "cloudpickle", "lightning", "megatron", "numpy", "omegaconf", "PIL"),
    *("sqlite3", "torch", "tqdm", "transformers", "webdataset", "yaml"),
)


def layer_of(path: Path) -> str:
    """The layer that a file belongs to: a module of the package, or a package in it."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, layer) of everything in this package that a module imports, at its top or anywhere else in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "bridge_data" else [module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("bridge_data."):
                yield node.lineno, name.split(".")[1]


def test_every_module_has_a_layer() -> None:
    assert {layer_of(path) for path in MODULES} - {"__init__"} <= NUMBERS.keys()


@pytest.mark.parametrize("layer", NUMBERS)
def test_imports_lead_back_only(layer: str) -> None:
    for path in MODULES:
        if layer_of(path) == layer:
            for line, other in imported(path):
                assert other == layer or NUMBERS[other] < NUMBERS[layer], f"{path}:{line}: {layer} imports {other}"


@pytest.mark.parametrize("package", [bridge_data, encoders, energon, plan], ids=lambda package: package.__name__)
def test_the_names_of_a_package_are_those_that_type_checkers_see(package: ModuleType) -> None:
    tree = ast.parse(Path(package.__file__ or "").read_text())
    (checked, *_) = (node for node in tree.body if isinstance(node, ast.If))
    shown = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    elsewhere = energon.module_paths.public_names() if package is energon else set()
    assert sorted(shown | elsewhere) == sorted(package.__all__)
    for name in shown:
        assert getattr(package, name) is not None


def test_no_module_imports_the_package_itself() -> None:
    """Its public names are taken from all of them, so that would be a circle."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert "bridge_data" not in {alias.name for alias in node.names}, f"{path}:{node.lineno}"
            elif isinstance(node, ast.ImportFrom) and node.module == "bridge_data":
                modules = {alias.name for alias in node.names} & NUMBERS.keys()
                assert modules == {alias.name for alias in node.names}, f"{path}:{node.lineno}"


def test_no_recipe_or_test_is_imported() -> None:
    for path in MODULES:
        text = path.read_text()
        assert not re.search(r"^\s*(from|import) (recipes|tests|benchmarks)\b", text, re.MULTILINE), path


def imported_by(code: str, heavy: tuple[str, ...]) -> str:
    """Those of the modules `heavy` that `code` imports in a new process, besides what Python itself begins with."""
    code = f"import sys; begun = {{*sys.modules}}\n{code}\n"
    code += f"print([name for name in {heavy} if name in sys.modules and name not in begun])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_package_is_imported_quickly() -> None:
    assert imported_by("import bridge_data", HEAVY) == "[]"


def test_plans_and_indexes_need_neither_torch_nor_what_decodes() -> None:
    code = "import bridge_data.prepare.metadataset_joins, bridge_data.prepare.tars, bridge_data.samples\n"
    code += "from bridge_data.energon import CrudeWebdataset, load_dataset, prepare_metadataset\n"
    code += "from bridge_data.plan import load_plan"
    assert imported_by(code, ("torch", "numpy", "PIL", "av", "cloudpickle", "webdataset", "omegaconf")) == "[]"


def test_a_command_that_prepares_tars_waits_for_nothing_else() -> None:
    heavy = ("torch", "numpy", "tqdm", "multiprocessing", "concurrent", "tarfile", "hashlib", "tempfile")
    ours = ("plan.blending", "prepare.metadataset_joins", "prepare.jsonl_lines", "prepare.media")
    code = "import bridge_data.tools.cli.prepare_command"
    assert imported_by(code, (*heavy, *(f"bridge_data.{name}" for name in ours))) == "[]"


def test_what_a_training_script_imports_is_little_beside_torch() -> None:
    code = "from bridge_data import Cooker, DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset"
    heavy = ("av", "click", "lightning", "megatron", "omegaconf", "PIL.Image", "transformers", "webdataset")
    assert imported_by(code, heavy) == "[]"


def test_a_text_data_set_needs_nothing_of_other_data(tmp_path: Path) -> None:
    data = write_texts(tmp_path / "texts", 20)
    code = f"""
from bridge_data import WorkerConfig, get_loader, get_train_dataset
options = dict(worker_config=WorkerConfig(0, 1, 0), batch_size=2, shuffle_buffer_size=10, max_samples_per_sequence=10)
next(iter(get_loader(get_train_dataset({str(data)!r}, **options))))
"""
    ours = ("datamodule", "decode.av.av_decoder", "encoders", "energon", "tools", "shards.parquet_table")
    ours += ("task.crude_examples", "task.grouping", "task.stores.cache_pool", "task.stores.dataset_store")
    heavy = ("av", "duckdb", "PIL.Image", "pyarrow", "transformers")
    assert imported_by(code, (*heavy, *(f"bridge_data.{name}" for name in ours))) == "[]"


def test_workers_import_torch_and_pillow_only_where_they_are_needed() -> None:
    code = "import bridge_data.loader.workers.server, bridge_data.loader.workers.worker\n"
    code += "import bridge_data.lanes.datasets, bridge_data.task"
    assert imported_by(code, ("torch", "PIL.Image", "av", "transformers", "numpy.random")) == "[]"


def test_every_public_name_is_there() -> None:
    for name in bridge_data.__all__:
        assert getattr(bridge_data, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'get_dataset'"):
        _ = bridge_data.get_dataset


def test_a_public_class_name_is_one_thing() -> None:
    """No two public classes of the package have the same name."""
    classes: dict[str, list[str]] = collections.defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: where for name, where in classes.items() if len(where) > 1} == {}
