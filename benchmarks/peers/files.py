"""A sample as a file: the format of libraries without one of their own."""

import shutil
from pathlib import Path

import work

FOLDER = "files"


def convert(workload: str, data: Path) -> None:
    """The tars of a workload as files."""
    part = work.part_of(workload)
    for folder in work.sets_of(data):
        target = folder / FOLDER
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for key, parts in work.read_tars(folder / "tars"):
            (target / f"{key}.{part}").write_bytes(parts[part])


def files_of(workload: str, folder: Path) -> list[Path]:
    """The files of a data set."""
    return sorted((folder / FOLDER).glob(f"*.{work.part_of(workload)}"))
