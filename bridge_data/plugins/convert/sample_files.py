"""Sources whose records are samples already: files in a folder, and members of tars.

Reads a folder, in which `0001.png` and `0001.txt` make a sample; one of pictures in a folder for each class; or the
tars of other WebDatasets. Returns a source with a record for each key with its stored parts; folders in the order of
their keys, folder by folder, tars in their own order. With classes, each picture is a sample, with the number of its
folder as `cls`. Files in no sample are counted, and so are samples with other parts than most. Raises an error for
links that lead out of the folder, and for links in tars. A sample takes about 100 bytes of memory.
"""

import abc
import collections
import functools
import os
import re
import stat
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bridge_data import storage
from bridge_data.data.index_file import Part, is_meta_member, split_name
from bridge_data.data.metadata import DATASET_YAML, META_FOLDER, parse_document
from bridge_data.data.prepared import PreparedDataset
from bridge_data.data.tar_files import FOLDER, LINKS, CompressedTar, FileTar, is_gzip, open_compressed, open_tar, walk
from bridge_data.data.withheld import ShardStamp, StoredFiles, withheld_in
from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.decode.media_kinds import kind_of_name
from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan.declared import Clause
from bridge_data.plan.folder_contents import KINDS
from bridge_data.plugins.convert.text_tables import check_count
from bridge_data.prepare.record_source import (
    BrokenRecord,
    RecordSource,
    SourceConfig,
    SourceRecord,
    chosen_of,
    digest_of_files,
    files_of_source,
    note_left_out,
)
from bridge_data.prepare.sample_definitions import CRUDE, SAMPLE_TYPES
from bridge_data.prepare.tar_scan import check_end_mark, raise_faults

_OF_WINDOWS = ("thumbs.db", "desktop.ini")
"""Files that Windows leaves in folders of pictures."""

_ABOUT_DATA = re.compile(
    r"(readme|license|licence|notice|changelog|citation|dataset_infos?|checksums?|md5sums?|sha256sums?)"
    r"\.(md|rst|txt|json|cff|bib|md5|sha256|ya?ml)",
    re.IGNORECASE,
)
"""Files beside pictures, at the top of a folder as it is published, that say something of all."""

_IN_THIS_FOLDER = re.compile(r"(\./)+")
"""What all names start with in tars from `tar -c .`."""


class UsualParts:
    """The parts that most samples of a source have. Images with different endings count as the same part."""

    def __init__(self, samples: Iterable[tuple[str, Sequence[str]]]) -> None:
        counts: collections.Counter[tuple[str, ...]] = collections.Counter()
        first: dict[tuple[str, ...], str] = {}
        for key, names in samples:
            counts[tuple(names)] += 1
            first.setdefault(tuple(names), key)
        self.note_on_dots = _note_on_dots(counts, first)
        """On samples with several media whose files may be samples of their own; empty if there are none."""
        kinds: collections.Counter[frozenset[str]] = collections.Counter()
        for known, times in counts.items():
            kinds[_kinds(known)] += times
        (self._kinds, num_usual), *_ = kinds.most_common(1)
        self._shown = _listed(next(known for known, _ in counts.most_common() if _kinds(known) == self._kinds))
        odd = next((known for known in counts if _kinds(known) != self._kinds), None)
        self.note = ""
        if odd is not None:
            num_odd = f"{counts.total() - num_usual} of {counts.total()}"
            self.note = (
                f"other parts than most samples ({self._shown}) in {num_odd}, such as {first[odd]!r}: {_listed(odd)}"
            )
        """A note on samples with other parts; empty if there are none."""

    def complaint(self, names: Sequence[str]) -> str:
        """How the parts of a sample differ from these; empty if they do not."""
        kinds = _kinds(names)
        lacks, has = sorted(self._kinds - kinds), sorted(kinds - self._kinds)
        odd = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"also has {', '.join(has)}"] * bool(has)
        return f"{' and '.join(odd)}: most samples have {self._shown}" if odd else ""


def _note_on_dots(counts: Mapping[tuple[str, ...], int], first: Mapping[tuple[str, ...], str]) -> str:
    """On samples with several media of a kind, such as those of `my.photo.1.jpg` and `my.photo.2.jpg`, unless at least
    two samples, and half of all, have these parts: they are meant, then. `first` is the key of one with these parts."""
    total = sum(counts.values())
    found = []
    for names, times in counts.items():
        media = collections.Counter(kind_of_name(f"x.{name}") for name in names)
        with_dots = {kind_of_name(f"x.{name}") for name in names if "." in name} - {None}
        if any(media[kind] > 1 for kind in with_dots) and (times == 1 or 2 * times < total):
            found.append((names, times))
    if not found:
        return ""
    names, num_samples = found[0][0], sum(times for _, times in found)
    return (
        f"several media in one sample, as its key ends at the first dot of the name, in {num_samples:,} of {total:,}, "
        f"such as {first[names]!r}: {_listed(names)}. If each of these files is a sample, rename them: with no dot but "
        "that before the ending"
    )


def _kinds(names: Sequence[str]) -> frozenset[str]:
    split = (name.lower().rpartition(".") for name in names)
    return frozenset(f"{stem}{dot}{'image' if end in IMAGE_EXTENSIONS else end}" for stem, dot, end in split)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(sorted(names))


def find_samples(folder: Path, *, follow_links: bool = False) -> tuple[list[tuple[str, tuple[str, ...]]], list[str]]:
    """([(key, names of the parts)], files that are in no sample) in `folder` and below it; the file of a part is
    `key.part`. Links to folders are skipped, and so are our metadata of media.

    Raises:
        ConfigError: if there is no such folder, or no sample in it; if a file is not a regular one (a FIFO, a device);
            or if it is a link that leads out of `folder`, unless `follow_links`.
        DatasetError: if a folder cannot be listed.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder" if not folder.exists() else f"{folder}: expected a folder")
    root = folder.resolve()
    samples: list[tuple[str, tuple[str, ...]]] = []
    left_out: list[str] = []
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    for parent, folders, files in storage.walk(folder):
        folders[:] = sorted(name for name in folders if name != META_FOLDER)
        by_key: dict[str, list[str]] = collections.defaultdict(list)
        for file in sorted(files):
            path = Path(parent, file)
            name = path.relative_to(folder).as_posix()
            parsed = split_name(name)
            is_about = _ABOUT_DATA.fullmatch(name) is not None
            if (
                file.startswith(".")
                or file.lower() in _OF_WINDOWS
                or parsed is None
                or is_meta_member(name)
                or is_about
            ):
                left_out.append(name)
            else:
                _check_file(path, None if follow_links else root)
                by_key[parsed[0]].append(parsed[1])
        for key in sorted(by_key):
            names = tuple(by_key[key])
            samples.append((key, shared.setdefault(names, names)))
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


class SampleFiles(RecordSource):
    """Samples whose keys and parts are known. With `same_parts`, those with other parts than most are broken."""

    has_parts, block_records, tells_of_dots = True, 8, False

    def __init__(self, samples: Sequence[tuple[str, Sequence[str]]], left_out: list[str], *, same_parts: bool) -> None:
        self.notes = left_out
        self._usual: UsualParts | None = None
        if samples:
            usual = UsualParts(samples)
            self._usual = usual if same_parts else None
            dots = usual.note_on_dots if self.tells_of_dots else ""
            self.notes = [*left_out, *filter(None, [usual.note, dots])]

    @abc.abstractmethod
    def _known(self, number: int) -> tuple[str, str, Sequence[str]]:
        """Where a sample is, its key, and the names of its parts."""

    @abc.abstractmethod
    def _values(self, number: int) -> dict[str, Any]:
        """The parts of a sample, read."""

    def read(self, numbers: Sequence[int]) -> Iterator[SourceRecord | BrokenRecord]:
        for number in numbers:
            where, key, names = self._known(number)
            complaint = self._usual.complaint(names) if self._usual else ""
            if len(set(names)) < len(names):
                complaint = "has two parts with the same name"
            if not complaint:
                try:
                    yield SourceRecord(number, where, self._values(number), key)
                    continue
                except DatasetError as error:
                    complaint = str(error)
                except OSError as error:
                    complaint = f"{error.filename}: cannot be read: {error.strerror}"
            yield BrokenRecord(number, where, complaint)


class FolderFiles(SampleFiles):
    """The samples in a folder. `as_classes` None: classes, if each sample is one picture in a folder of its class."""

    tells_of_dots = True

    def __init__(
        self,
        folder: Path,
        *,
        follow_links: bool = False,
        as_classes: bool | None = None,
        same_parts: bool = False,
    ) -> None:
        self._folder, self._follow_links = folder, follow_links
        self._samples, left_out = find_samples(folder, follow_links=follow_links)
        note = note_left_out(
            left_out, "as their names have no ending (0001.png), begin with a dot, or are those of a README"
        )
        super().__init__(self._samples, note, same_parts=same_parts)
        in_classes = all(_class_of(*sample) for sample in self._samples)
        if as_classes and not in_classes:
            key, names = next(sample for sample in self._samples if not _class_of(*sample))
            raise ConfigError(
                f"{folder}: {key!r} ({', '.join(names)}) is no picture in a folder of its class, such as cats/0001.jpg"
            )
        self.title = "folder of files"
        self._numbers: dict[str, int] = {}
        """The numbers of the classes, by their names."""
        if in_classes if as_classes is None else as_classes:
            classes = sorted({_class_of(*sample) for sample in self._samples})
            self._numbers = {name: number for number, name in enumerate(classes)}
            self.title = f"pictures of {len(classes)} classes"
            parts = ",".join(sorted({part for _, names in self._samples for part in names}))
            self.definition = "ImageClassificationSample", {"image": parts, "label": "cls", "label_name": "txt"}

    def __len__(self) -> int:
        return len(self._samples)

    def _known(self, number: int) -> tuple[str, str, Sequence[str]]:
        key, names = self._samples[number]
        return key, key, names

    def _values(self, number: int) -> dict[str, Any]:
        key, names = self._samples[number]
        values: dict[str, Any] = {part: (self._folder / f"{key}.{part}").read_bytes() for part in names}
        if self._numbers:
            name = _class_of(key, names)
            values |= {"cls": self._numbers[name], "txt": name}
        return values

    def fingerprint(self) -> str:
        """A digest of the files as of now, not of when the folder was opened."""
        samples, _ = find_samples(self._folder, follow_links=self._follow_links)
        return digest_of_files(self._folder / f"{key}.{part}" for key, names in samples for part in names)


def _class_of(key: str, names: Sequence[str]) -> str:
    """The folder of a sample that is a single picture; else empty."""
    return key.rpartition("/")[0] if len(names) == 1 and kind_of_name(f"x.{names[0]}") == "image" else ""


class TarCollection(SampleFiles):
    """The samples of the tars `files` of the data set at `path`, also of those that `prepare` refuses, as parts of a
    sample are not next to each other. With `prefix_keys`, keys in `shards/a.tar` start with `a/`."""

    title = "WebDataset"

    def __init__(
        self,
        path: Path,
        files: Sequence[Path],
        *,
        prefix_keys: bool = False,
        same_parts: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._path, self._files, self._limits = path.absolute(), files, limits
        self.definition = _definition(path) if path.is_dir() else None
        self._samples: list[tuple[int, str, tuple[Part, ...]]] = []
        self._firsts = [0]
        """The number of the first sample of each tar, and that of all."""
        left_out: list[str] = []
        errors: list[str] = []
        for number, file in enumerate(files):
            before = f"{file.name.partition('.')[0]}/" if prefix_keys else ""
            try:
                found, others = self._members(file)
                left_out += others
                self._samples += [(number, before + key, tuple(parts)) for key, parts in found.items()]
            except DatasetError as error:
                errors.append(str(error))
            self._firsts.append(len(self._samples))
        raise_faults(errors, len(files))
        note = note_left_out(left_out, "as they are not parts of samples")
        names = [(key, [name for name, _, _ in parts]) for _, key, parts in self._samples]
        super().__init__(names, note, same_parts=same_parts)

    def _members(self, path: Path) -> tuple[dict[str, list[Part]], list[str]]:
        """(the parts of each sample of a tar, by key; members that are no parts).

        Raises:
            DatasetError: if it is damaged, or a part is a link.
        """
        found: dict[str, list[Part]] = collections.defaultdict(list)
        others = []
        storage.close_file(path)  # the file may have been replaced
        tar = open_tar(str(path))
        self.is_scattered &= isinstance(tar, FileTar)
        end, last = 0, ""
        for member in walk(tar, 0, tar.end, file=str(path)):
            end, last = member.next_offset, member.name
            name = split_name(_IN_THIS_FOLDER.sub("", member.name))
            if name is not None and member.kind in LINKS:
                raise DatasetError(f"{path}: member {member.name!r} is a {member.kind}, without content of its own")
            if name is None or not member.is_file:
                if member.kind != FOLDER:
                    others.append(f"{path.name}: {member.name}")
                continue
            found[name[0]].append((name[1], member.content_offset, member.num_bytes))
        check_end_mark(tar, end, file=str(path), after=f"member {last!r}" if last else "")
        return found, others

    def __len__(self) -> int:
        return len(self._samples)

    def _known(self, number: int) -> tuple[str, str, Sequence[str]]:
        which, key, parts = self._samples[number]
        return f"{self._files[which].name}, {key}", key, [name for name, _, _ in parts]

    def _values(self, number: int) -> dict[str, Any]:
        which, _, parts = self._samples[number]
        path = str(self._files[which])
        if is_gzip(path):
            tar = _unpacking(path, storage.version(self._files[which]), os.getpid())
            return {name: tar.read_exactly(offset, num_bytes) for name, offset, num_bytes in parts}
        return {name: storage.read(path, offset, num_bytes) for name, offset, num_bytes in parts}

    def fingerprint(self) -> str:
        return digest_of_files(self._files)

    def chosen_numbers(self, clauses: Sequence[Clause]) -> Collection[int] | None:
        """Those of all split parts of a prepared folder."""
        if not (self._path / META_FOLDER).is_dir():
            return None
        dataset = PreparedDataset.open(self._path, self._limits)
        numbers = {file.absolute().relative_to(self._path).as_posix(): at for at, file in enumerate(self._files)}
        for name in numbers.keys() & dataset.shard_counts.keys():
            first, end = self._firsts[numbers[name] :][:2]
            check_count(self._path / name, end - first, dataset.shard_counts[name])
        found: set[int] = set()
        for shards in map(dataset.split, dataset.split_parts()):
            for index in chosen_of(shards, clauses):
                shard, position = shards.locate(index)
                if shards.names[shard] in numbers:
                    found.add(self._firsts[numbers[shards.names[shard]]] + position)
        return found

    def forgotten_numbers(self) -> Container[int]:
        """By the tars themselves: an index may be older."""

        def stamp(number: int) -> ShardStamp:
            first, end = self._firsts[number : number + 2]
            return ShardStamp(self._files[number].stat().st_size, end - first, None)

        files = [str(file.absolute()) for file in self._files]

        def number_in(file: int, position: int) -> int:
            return self._firsts[file] + position

        numbers = set()
        for file, position, key in withheld_in(StoredFiles(self._path, files, files, stamp, number_in, are_tars=True)):
            numbers.add(number := number_in(file, position))
            found = self._samples[number][1]
            if not found.endswith(key):  # it may have a prefix
                again, renew = bridge_command("prepare", self._path), bridge_command("forget", self._path, "--renew")
                raise DatasetError(
                    f"{files[file]}: has changed since {key!r} was forgotten: sample {position} is {found!r} "
                    f"now; run `{again}`, then `{renew} --reason WHY`"
                )
        return numbers


def open_folder(path: Path, config: SourceConfig, as_classes: bool | None = None) -> RecordSource:
    """A folder of files; of pictures in a folder for each class, if that is what it looks like."""
    if config.include is not None:
        raise ConfigError(f"--include: is for folders of tars or tables, but {path} is one of files: give one below it")
    links, same_parts = config.follow_links, config.same_parts
    return FolderFiles(path, follow_links=links, as_classes=as_classes, same_parts=same_parts)


def open_classes(path: Path, config: SourceConfig) -> RecordSource:
    """Pictures in a folder for each class."""
    return open_folder(path, config, as_classes=True)


def open_tars(path: Path, config: SourceConfig) -> RecordSource:
    """The tars of a WebDataset."""
    return TarCollection(
        path,
        files_of_source(path, config, KINDS["webdataset"].endings),
        prefix_keys=config.prefix_keys,
        same_parts=config.same_parts,
        limits=config.limits,
    )


@functools.lru_cache(maxsize=1)
def _unpacking(path: str, version: storage.Version, process: int) -> CompressedTar:
    """The compressed tar that was read last, reopened in each process: forked ones would share its position."""
    return open_compressed(path)


def _definition(folder: Path) -> tuple[str, dict[str, str]] | None:
    """The class and field map in the dataset.yaml of a prepared folder, if the class is one of ours."""
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
