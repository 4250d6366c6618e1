"""Files of results: JSON in which each row of figures is a line, and pictures of it."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"


def as_json(value: Any, indent: str = "") -> str:
    """JSON whose objects of objects take a line for each entry, and all others one line."""
    if not isinstance(value, dict) or not any(isinstance(one, dict | list) for one in value.values()):
        return json.dumps(value, ensure_ascii=False)
    inside = indent + " "
    entries = (f"{inside}{json.dumps(key, ensure_ascii=False)}: {as_json(one, inside)}" for key, one in value.items())
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


def write(file: Path, document: dict[str, Any]) -> None:
    """Write a document."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(as_json(document) + "\n")


def draw(module: str, document: dict[str, Any], file: Path) -> None:
    """Draw a document by the `draw` of a module, if what draws is installed; else say how to."""
    try:
        importlib.import_module(module).draw(document, file)
    except ImportError as error:
        print(f'no picture: {error}; pip install -e ".[bench]"', file=sys.stderr)
