"""Tests with Megatron-Bridge itself; without it, this folder has none."""

import importlib.util

import pytest

from tests.bridge.imports import change_imports


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("megatron.bridge") is not None
    except ModuleNotFoundError:
        return False


collect_ignore_glob = [] if _is_installed() else ["test_*.py"]
if _is_installed():
    change_imports()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are marked `bridge`."""
    for item in items:
        if item.path.parent.name == "bridge":
            item.add_marker(pytest.mark.bridge)
