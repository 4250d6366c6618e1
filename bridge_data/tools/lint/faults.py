"""The kinds of faults of a data set, one fault, and the report of all of them."""

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

_WRITE_AGAIN = "write or copy the shard again, then run `bridge-data prepare`"

_PREPARE = "run `bridge-data prepare` on the data set"

_SPLIT_AGAIN = "fix its .split.yaml, or write another by `bridge-data prepare --split-ratio ...`"

_EXCLUDE = "fix the data, or list the samples as shard/key under `exclude` in split.yaml"


class FaultKind(NamedTuple):
    """What a kind of fault is, and how to fix it. A note is not a fault: it may be intended.
    Members without a part name are a fault, although `prepare` skips them with a note: they are in no sample."""

    what: str
    way_out: str
    is_note: bool = False


KINDS: dict[str, FaultKind] = {
    "config": FaultKind(
        "a data set or metadataset that cannot be opened", "fix the named file, or do what the message says"
    ),
    "metadata-damaged": FaultKind("metadata that cannot be understood", _PREPARE),
    "metadata-disagree": FaultKind("metadata files that contradict each other", _PREPARE),
    "missing-shard": FaultKind("prepared shards that no longer exist", "restore them, or " + _PREPARE),
    "unprepared": FaultKind(
        "folders or tars that are not prepared: indexes and fields are not checked", _PREPARE, is_note=True
    ),
    "unprepared-shard": FaultKind("tars that are not in the prepared data set", _PREPARE + ", or move them away"),
    "unused-shard": FaultKind("shards in no split part", "add them to a part in split.yaml, or to its `exclude`"),
    "split-unknown-shard": FaultKind("split parts with shards that do not exist", "fix split.yaml, or " + _PREPARE),
    "split-repeated-shard": FaultKind("shards twice in one split part", "name them once in split.yaml"),
    "exclude-unknown": FaultKind("exclusions of samples that do not exist", "fix `exclude` in split.yaml"),
    "unused-lines": FaultKind("samples of a JSONL file in no split part", _SPLIT_AGAIN),
    "shared-lines": FaultKind("samples of a JSONL file in several split parts", _SPLIT_AGAIN),
    "index-missing": FaultKind("shards without an index", "run `bridge-data prepare --tar-index-only`"),
    "index-outdated": FaultKind("indexes that do not match the shards", "run `bridge-data prepare --tar-index-only`"),
    "tar-damaged": FaultKind("shards that are truncated or damaged", _WRITE_AGAIN),
    "tar-unfinished": FaultKind("shards without the end mark of a tar", _WRITE_AGAIN),
    "zero-tail": FaultKind(
        "shards that end in a long run of zeros",
        "check that they are complete: a copy may have been cut off",
        is_note=True,
    ),
    "linked-member": FaultKind(
        "parts that are links, without their own content",
        "write the shard again: tar --dereference --hard-dereference",
    ),
    "special-member": FaultKind("devices, FIFOs and the like, which hold no data", "leave them out", is_note=True),
    "name-not-utf8": FaultKind(
        "member names that are not UTF-8: keys have surrogates in place of those bytes",
        "rename them, unless nothing reads keys as text",
        is_note=True,
    ),
    "empty-shard": FaultKind("shards without samples", "nothing, or remove them, then " + _PREPARE, is_note=True),
    "wrong-count": FaultKind("shards whose number of samples differs from the metadata", _PREPARE),
    "nameless-member": FaultKind(
        "files in shards whose names have no dot, so they are no parts", "rename them, as in 0001.jpg"
    ),
    "duplicate-part": FaultKind("samples with a part twice", "write the shard again with each name once"),
    "scattered-sample": FaultKind(
        "samples whose parts are not next to each other", "write the shard again, sorted by name"
    ),
    "duplicate-key": FaultKind(
        "keys shared by several samples of a shard, or rows of a file",
        "write the shard or file again with different keys",
    ),
    "shared-key": FaultKind(
        "keys shared by samples of several shards: SHARD/KEY distinguishes them",
        "nothing, unless samples are joined by key: then run `bridge-data prepare --fix-duplicates`",
        is_note=True,
    ),
    "missing-part": FaultKind("samples without a part that the field map needs", _EXCLUDE),
    "missing-field": FaultKind("samples without a value that the field map needs", _EXCLUDE),
    "wrong-type": FaultKind(
        "samples with a value of another type than their field", _EXCLUDE + ", or fix the field map"
    ),
    "not-utf8": FaultKind("texts that are not UTF-8", _EXCLUDE),
    "image-too-large": FaultKind(
        "images with more pixels than PIL.Image.MAX_IMAGE_PIXELS", _EXCLUDE + ", or raise the limit"
    ),
    "undecodable": FaultKind("parts that cannot be decoded", _EXCLUDE),
    "no-decoder": FaultKind("parts of a format that cannot be decoded here", "do what the message says"),
    "unbuildable": FaultKind(
        "samples that cannot be made of their parts", _EXCLUDE + ", or fix the code that makes them"
    ),
    "changed-content": FaultKind(
        "parts whose content changed since `prepare --digest` read it",
        "restore the shard, or run `bridge-data prepare` with --tar-index-only --digest --rescan",
    ),
    "unreadable": FaultKind("samples that cannot be read", _EXCLUDE),
}
"""The kinds by code, from the whole to its parts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, the cause and, if known, the data set, shard, key and part."""

    code: str
    cause: str
    dataset: str = ""
    shard: str = ""
    key: str = ""
    part: str = ""

    def where(self) -> str:
        """The location, in short: `shard/key.part`."""
        name = "/".join(filter(None, (self.shard, self.key)))
        return f"{name}.{self.part}" if self.part else name


class FaultTally:
    """Counts by code, and the first `max_kept` faults of each kind."""

    def __init__(self, max_kept: int) -> None:
        self.max_kept = max_kept
        self.counts: collections.Counter[str] = collections.Counter()
        self.kept: dict[str, list[Fault]] = collections.defaultdict(list)

    def add(self, fault: Fault) -> None:
        """Count a fault."""
        self.counts[fault.code] += 1
        if len(self.kept[fault.code]) < self.max_kept:
            self.kept[fault.code].append(fault)

    def add_all(self, faults: Iterable[Fault]) -> None:
        """Count some faults."""
        for fault in faults:
            self.add(fault)

    def merge(self, other: "FaultTally") -> None:
        """Add the counts of another tally."""
        self.counts.update(other.counts)
        for code, faults in other.kept.items():
            self.kept[code] += faults[: self.max_kept - len(self.kept[code])]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """The result of a check: exact `counts` by code, and the first faults of each kind."""

    path: str
    num_datasets: int
    num_shards: int
    num_samples: int
    is_complete: bool
    """Whether everything was checked."""
    counts: dict[str, int]
    kept: dict[str, list[Fault]]

    @property
    def num_faults(self) -> int:
        """Faults of all kinds, without notes."""
        return sum(count for code, count in self.counts.items() if not KINDS[code].is_note)

    @property
    def num_notes(self) -> int:
        """Notes of all kinds."""
        return sum(self.counts.values()) - self.num_faults

    def to_dict(self) -> dict[str, Any]:
        """A plain document, as `--json` shows it."""
        found = [
            {
                "code": code,
                "is_note": kind.is_note,
                "what": kind.what,
                "way_out": kind.way_out,
                "count": self.counts[code],
                "shown": [dataclasses.asdict(fault) for fault in self.kept.get(code, ())],
            }
            for code, kind in KINDS.items()
            if self.counts.get(code)
        ]
        return {
            "version": 1,
            "path": self.path,
            "data_sets": self.num_datasets,
            "shards": self.num_shards,
            "samples": self.num_samples,
            "complete": self.is_complete,
            "num_faults": self.num_faults,
            "num_notes": self.num_notes,
            "faults": [entry for entry in found if not entry["is_note"]],
            "notes": [entry for entry in found if entry["is_note"]],
        }
