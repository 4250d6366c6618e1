"""A target of fuzzing: files of a format, and what reads them."""

import dataclasses
from collections.abc import Callable
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Target:
    """`build(folder)` makes good files and returns those to damage; `read(file)` reads one after that, or all of its
    folder, as a run would. What it accepts must be right: it raises AssertionError where that can be told."""

    name: str
    build: Callable[[Path], list[Path]]
    read: Callable[[Path], object]


def parts(**contents: bytes) -> Callable[[Path], list[Path]]:
    """Builds files of these names (`_` for a dot) and contents."""

    def build(folder: Path) -> list[Path]:
        for name, content in contents.items():
            (folder / name.replace("_", ".")).write_bytes(content)
        return sorted(folder.iterdir())

    return build
