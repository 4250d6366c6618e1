"""Packages that take seconds to import, imported when a test first uses them: collection stays quick."""

import importlib
from typing import Any


class Later:
    """Stands for the module `name`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


av = Later("av")
hf = Later("transformers")
