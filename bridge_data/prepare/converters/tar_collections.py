"""Other WebDatasets: tars whose samples go into new shards.

Enters: tars, or a folder of them. Leaves: a record for each sample, with its parts as they are stored. Each tar's
headers are read once, which finds where the samples are; each takes some 100 bytes of memory. Guarantee: members that
are no part of a sample are counted, and links are refused, as they have no content.
"""

import collections
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.prepare.converters.source_records import (
    BrokenRecord,
    LastOpened,
    SourceRecord,
    digest_of_files,
    even_blocks,
)
from bridge_data.prepare.sample_definitions import CRUDE, SAMPLE_TYPES
from bridge_data.shards.metadata import DATASET_YAML, META_FOLDER, parse_document
from bridge_data.shards.segment import Part, split_name
from bridge_data.shards.tar_bytes import FileTar, GzipTar, open_tar
from bridge_data.shards.tar_headers import FOLDER, LINKS, walk

BLOCK_RECORDS = 8

_IN_THIS_FOLDER = re.compile(r"(\./)+")
"""How all names begin in what `tar -c .` writes."""


class TarCollection:
    """The samples of tars. With `prefix_keys`, those of `shards/a.tar` have keys that begin with `a/`."""

    title = "WebDataset"
    has_parts = True

    def __init__(self, files: Sequence[Path], *, prefix_keys: bool = False, folder: Path | None = None) -> None:
        self._files = list(files)
        self.definition = None if folder is None else _definition(folder)
        self._samples: list[tuple[int, str, tuple[Part, ...]]] = []
        self.left_out: list[str] = []
        self.is_scattered = True
        self._last: LastOpened[FileTar | GzipTar] = LastOpened()
        for number, path in enumerate(self._files):
            found: dict[str, list[Part]] = collections.defaultdict(list)
            storage.close_file(path)  # another file may have been there before
            tar = open_tar(str(path))
            self.is_scattered &= not isinstance(tar, GzipTar)
            for member in walk(tar, 0, tar.end, file=str(path)):
                name = split_name(_IN_THIS_FOLDER.sub("", member.name))
                if name is not None and member.kind in LINKS:
                    raise DatasetError(f"{path}: member {member.name!r} is a {member.kind}, without content of its own")
                if name is None or not member.is_file:
                    if member.kind != FOLDER:
                        self.left_out.append(f"{path.name}: {member.name}")
                    continue
                found[name[0]].append((name[1], member.content_offset, member.num_bytes))
            before = f"{path.name.partition('.')[0]}/" if prefix_keys else ""
            self._samples += [(number, before + key, tuple(parts)) for key, parts in found.items()]

    def __len__(self) -> int:
        return len(self._samples)

    def blocks(self) -> Iterator[range]:
        return even_blocks(len(self), BLOCK_RECORDS)

    def read(self, numbers: Sequence[int]) -> Iterator[SourceRecord | BrokenRecord]:
        for number in numbers:
            which, key, parts = self._samples[number]
            path = str(self._files[which])
            where = f"{self._files[which].name}, {key}"
            names = [name for name, _, _ in parts]
            if len(set(names)) < len(names):
                yield BrokenRecord(number, where, "has two parts with the same name")
                continue
            try:
                tar = self._last.get(which, self._tar)
                if isinstance(tar, GzipTar):
                    values = {name: tar.read_exactly(offset, num_bytes) for name, offset, num_bytes in parts}
                else:
                    values = {name: storage.read(path, offset, num_bytes) for name, offset, num_bytes in parts}
            except DatasetError as error:
                yield BrokenRecord(number, where, str(error))
                continue
            yield SourceRecord(number, where, values, key)

    def _tar(self, which: int) -> FileTar | GzipTar:
        return open_tar(str(self._files[which]))

    def fingerprint(self) -> str:
        return digest_of_files(self._files)


def _definition(folder: Path) -> tuple[str, dict[str, str]] | None:
    """The class and field map in the dataset.yaml of a prepared folder, if they are ours."""
    data = storage.read_if_there(folder / META_FOLDER / DATASET_YAML)
    content = None if data is None else parse_document(data, folder / META_FOLDER / DATASET_YAML)
    if not isinstance(content, dict):
        return None
    if content.get("__class__") == CRUDE:
        return CRUDE, {}
    about, field_map = content.get("sample_type"), content.get("field_map")
    name = about.get("__class__") if isinstance(about, dict) else None
    if name not in SAMPLE_TYPES or not isinstance(field_map, dict):
        return None
    return str(name), {str(field): str(access) for field, access in field_map.items()}
