"""What every test may use."""

import os

import hypothesis
import pytest
import torch

# `make test` draws the same examples each time, so that what lands does not hang on luck; `make test-all` draws anew.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.register_profile("search", print_blob=True)
hypothesis.settings.load_profile("search" if "BRIDGE_DATA_EXAMPLES" in os.environ else "repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
