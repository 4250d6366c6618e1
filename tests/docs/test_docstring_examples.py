"""Docstrings: their examples (`>>>`) run and print what they say; those of packages name their modules."""

import ast
import doctest
import importlib
import re
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import bridge_data

PACKAGE = Path(bridge_data.__file__).parent
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules_with_examples() -> Iterator[str]:
    """Names of the modules of the package that have examples, found in their text: nothing else is imported."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text():
            yield ".".join(("bridge_data", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def examples_of(module: types.ModuleType) -> list[doctest.DocTest]:
    """The examples of a module, each docstring by itself."""
    found = doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__)
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_the_examples_of_a_module_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    tests = examples_of(importlib.import_module(name))
    assert tests, f"{name}: the examples are in no docstring that is found"
    printed: list[str] = []
    for test in tests:
        runner.run(test, out=printed.append)
    assert not runner.failures, "".join(printed)


def docstring_of(path: Path) -> str:
    """The docstring of a module."""
    return ast.get_docstring(ast.parse(path.read_text())) or ""


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in PACKAGE.rglob("__init__.py")), ids=lambda path: path.name
)
def test_the_docstring_of_a_package_that_names_modules_names_all_of_them(folder: Path) -> None:
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    modules |= {path.parent.name for path in folder.glob("*/__init__.py")}
    listed = "\n".join(re.findall(r"^ {4,}\S.*", docstring_of(folder / "__init__.py"), re.MULTILINE))
    missing = modules - {*re.findall(r"\w+", listed)}
    assert not missing or len(modules - missing) < 2, f"not named: {', '.join(sorted(missing))}"


def test_the_docstring_of_a_module_says_what_it_reads_and_returns_in_sentences() -> None:
    """No labels, and no lists of places to change."""
    label = re.compile(r"(^|[.;] )(Enters|Leaves|Input|Output|Guarantees?|To change)\b[^.]*:", re.MULTILINE)
    found = [path for path in PACKAGE.rglob("*.py") if label.search(docstring_of(path))]
    assert not found
