"""A format as another package adds one: a folder `NAME.numbered` of texts, each in the file of its number, 100 in each
folder. Nothing here is known to the package that reads it."""

import dataclasses
import hashlib
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from bridge_data.data import ByteRange, RawSample, RecordReader
from bridge_data.errors import DatasetError
from bridge_data.plan import Source
from bridge_data.plan.declared import Reference
from bridge_data.plan.formats import Format, Opening

PER_FOLDER = 100


class NumberedTexts(Format):
    """The format, which an entry point names."""

    name = "numbered texts"

    def matches(self, path: str) -> bool:
        return (Path(path) / "0" / "0.txt").is_file()

    def describe(self, path: str) -> str:
        return "is a folder of numbered texts, whose samples are crude"

    def open(self, reference: Reference, opening: Opening) -> Source:
        root = Path(reference.path)
        folders = sorted((folder for folder in root.iterdir() if folder.name.isdigit()), key=lambda at: int(at.name))
        counts = [len([*folder.glob("*.txt")]) for folder in folders]
        return self.source(reference, TextFiles(root, tuple(counts)))


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """The records: the six members that all must have."""

    root: Path
    counts: tuple[int, ...]
    sample_bytes = 20.0
    read_bytes = 1 << 10

    @property
    def shards(self) -> Sequence[tuple[str, int]]:
        return [(str(number), count) for number, count in enumerate(self.counts)]

    def identity(self) -> dict[str, Any]:
        first = hashlib.sha256((self.root / "0" / "0.txt").read_bytes()).hexdigest()
        return {"numbered texts": [self.counts, first]}

    def reader(self) -> RecordReader:
        return TextFileReader(self)


class TextFileReader(RecordReader):
    """Reads the files, one by one."""

    def __init__(self, records: TextFiles) -> None:
        self._records, self.dataset_path = records, str(records.root)

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        path = self._path(index)
        try:
            content = {"txt": path.read_bytes()} if parts is None or "txt" in parts else {}
        except OSError as error:
            raise DatasetError(f"{path}: cannot be read: {error}") from error
        return RawSample(path.stem, path.parent.name, index, content, self.dataset_path)

    def byte_ranges(self, block: range, parts: Container[str] | None = None) -> Sequence[ByteRange]:
        path = self._path(block[0])
        return [(str(path), 0, path.stat().st_size)] if len(block) == 1 else []

    def _path(self, index: int) -> Path:
        if not 0 <= index < sum(self._records.counts):
            raise IndexError(index)
        folder, number = divmod(index, PER_FOLDER)
        return self._records.root / str(folder) / f"{number}.txt"
