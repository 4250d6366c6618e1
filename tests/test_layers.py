"""Data flows one way: a module imports only what stands before it."""

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bridge_data

PACKAGE = Path(bridge_data.__file__).parent

LAYERS = (
    ("collate",),
    ("samples",),
    ("errors",),
    ("current", "ignored", "packers"),
    ("worker", "storage"),
    ("index",),
    ("av",),
    ("plan",),
    ("order",),
    ("decode",),
    ("cache",),
    ("task",),
    ("pending", "restore_keys", "state"),
    ("work", "redeal", "migrate"),
    ("lane", "plan_order", "restoring"),
    ("lane_dataset",),
    ("dataset",),
    ("loader",),
    ("replica",),
    ("multimodal",),
    ("families",),
    ("checkpoint",),
    ("datamodule",),
    ("trainers",),
    ("lint", "media", "mount"),
    ("cli",),
)
"""From the first to the last; those on one line know nothing of each other."""

NUMBERS = {name: number for number, layer in enumerate(LAYERS) for name in layer}
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("av", "lightning", "megatron", "transformers", "webdataset", "omegaconf", "click")


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


def test_only_public_names_are_imported_by_the_package_itself() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    names = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    ours = {alias for alias in names if hasattr(bridge_data, alias)} - {"Any", "TYPE_CHECKING"}
    assert ours == set(bridge_data.__all__) - set(bridge_data._LAZY)


def test_no_recipe_or_test_is_imported() -> None:
    for path in MODULES:
        text = path.read_text()
        assert not re.search(r"^\s*(from|import) (recipes|tests|benchmarks)\b", text, re.MULTILINE), path


def test_the_package_is_imported_quickly() -> None:
    code = f"import sys, bridge_data; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in bridge_data.__all__:
        assert getattr(bridge_data, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'get_dataset'"):
        _ = bridge_data.get_dataset


def test_readme_shows_the_layers_in_their_order() -> None:
    readme = (PACKAGE.parent / "README.md").read_text()
    (shown,) = re.findall(r"```text\n(collate[^`]*)```", readme)
    places = [re.search(rf"\b{name}\b", shown) for name in itertools.chain.from_iterable(LAYERS)]
    assert None not in places
    starts = [min(place.start() for place in places if place and place[0] in layer) for layer in LAYERS]
    assert starts == sorted(starts)
