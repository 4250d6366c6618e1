"""The examples in docstrings (`>>>`) run, and print what they say."""

import doctest
import importlib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import bridge_data

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules_with_examples() -> Iterator[str]:
    """Names of the modules of the package that have examples, found in their text: nothing else is imported."""
    root = Path(bridge_data.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if ">>> " in path.read_text():
            yield ".".join(("bridge_data", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")


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
