"""Samples as files: `0001.png` and `0001.txt` make a sample; or pictures in a folder for each class.

Enters: a folder. Leaves: a record for each key, in the order of the keys, folder by folder. With classes, each picture
is a sample, with the number of its folder as `cls`. Guarantee: a file that belongs to no sample is counted, and a link
that leads out of the folder is refused.
"""

import collections
import dataclasses
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from bridge_data import storage
from bridge_data.errors import ConfigError
from bridge_data.prepare.converters.source_records import BrokenRecord, SourceRecord, digest_of_files, even_blocks
from bridge_data.prepare.media_rule import kind_of_name
from bridge_data.shards.segment import is_meta_member, split_name

BLOCK_RECORDS = 8

_OF_WINDOWS = ("thumbs.db", "desktop.ini")
"""Files that Windows leaves in folders of pictures."""


@dataclasses.dataclass(frozen=True, slots=True)
class FolderSample:
    """A sample as files: its key and, by part, their paths."""

    key: str
    parts: dict[str, Path]


def find_samples(folder: Path, *, follow_links: bool = False) -> tuple[list[FolderSample], list[str]]:
    """(samples, files that are none) in `folder` and below it; links to folders are left out.

    Raises:
        ConfigError: if there is no such folder, or no sample in it; if a file is none to read (a FIFO, a device); or if
            it is a link that leads out of `folder`, unless `follow_links`. DatasetError: if a folder cannot be listed.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder" if not folder.exists() else f"{folder}: expected a folder")
    root = folder.resolve()
    samples: list[FolderSample] = []
    left_out: list[str] = []
    for parent, folders, files in storage.walk(folder):
        folders.sort()
        by_key: dict[str, dict[str, Path]] = collections.defaultdict(dict)
        for file in sorted(files):
            path = Path(parent, file)
            name = path.relative_to(folder).as_posix()
            parsed = split_name(name)
            if file.startswith(".") or file.lower() in _OF_WINDOWS or parsed is None or is_meta_member(name):
                left_out.append(name)
            else:
                _check_file(path, None if follow_links else root)
                by_key[parsed[0]][parsed[1]] = path
        samples.extend(FolderSample(key, by_key[key]) for key in sorted(by_key))
    if not samples:
        raise ConfigError(f"{folder}: holds no samples: expected files such as 000001.png and 000001.txt")
    return samples, left_out


def _check_file(path: Path, root: Path | None) -> None:
    """Check that `path` is a file, in the folder `root` if it is a link."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            target = path.resolve(strict=True)
            if root is not None and not target.is_relative_to(root):
                raise ConfigError(
                    f"{path}: is a link that leads out of the folder, to {target}; give --follow-links if that file is "
                    "meant, or remove the link"
                )
            mode = target.stat().st_mode
    except (OSError, RuntimeError) as error:  # a link to nothing, or to itself
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}; remove it") from None
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path}: is no file, but a FIFO, a socket, a device or a folder; remove it")


class FolderFiles:
    """The samples in a folder. `as_classes` None: they are classes if each is a picture alone, in a folder of its
    class."""

    has_parts = True
    is_scattered = True

    def __init__(self, folder: Path, *, follow_links: bool = False, as_classes: bool | None = None) -> None:
        self._folder, self._follow_links = folder, follow_links
        self._samples, self.left_out = find_samples(folder, follow_links=follow_links)
        in_classes = all(_class_of(sample) for sample in self._samples)
        if as_classes and not in_classes:
            odd = next(sample for sample in self._samples if not _class_of(sample))
            raise ConfigError(
                f"{folder}: {odd.key!r} ({', '.join(odd.parts)}) is no picture in a folder of its class, such as "
                "cats/0001.jpg"
            )
        self.classes: tuple[str, ...] = ()
        """The names of the classes, by their numbers."""
        if in_classes if as_classes is None else as_classes:
            self.classes = tuple(sorted({_class_of(sample) for sample in self._samples}))
        self._numbers = {name: number for number, name in enumerate(self.classes)}
        self.definition: tuple[str, dict[str, str]] | None = None
        if self.classes:
            parts = ",".join(sorted({part for sample in self._samples for part in sample.parts}))
            self.definition = "ImageClassificationSample", {"image": parts, "label": "cls", "label_name": "txt"}
        self.title = f"pictures of {len(self.classes)} classes" if self.classes else "folder of files"

    def __len__(self) -> int:
        return len(self._samples)

    def blocks(self) -> Iterator[range]:
        return even_blocks(len(self), BLOCK_RECORDS)

    def read(self, numbers: Sequence[int]) -> Iterator[SourceRecord | BrokenRecord]:
        for number in numbers:
            sample = self._samples[number]
            try:
                values: dict[str, object] = {part: path.read_bytes() for part, path in sample.parts.items()}
            except OSError as error:
                yield BrokenRecord(number, sample.key, f"{error.filename}: cannot be read: {error.strerror}")
                continue
            if self.classes:
                name = _class_of(sample)
                values |= {"cls": self._numbers[name], "txt": name}
            yield SourceRecord(number, sample.key, values, sample.key)

    def fingerprint(self) -> str:
        """Of the files as they are now, not as they were when the folder was opened."""
        samples, _ = find_samples(self._folder, follow_links=self._follow_links)
        return digest_of_files(path for sample in samples for path in sample.parts.values())


def _class_of(sample: FolderSample) -> str:
    """The folder of a sample that is a picture alone; else empty."""
    (part, *others) = sample.parts
    return sample.key.rpartition("/")[0] if not others and kind_of_name(f"x.{part}") == "image" else ""
