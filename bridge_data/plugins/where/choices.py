"""A choice: the chosen samples of a data set, as a file of bits, and as a data set of their own.

Reads a bit for each sample, and the samples of each shard. Returns the mapping between samples and their numbers among
the chosen ones, from 0; and `Records` of the chosen samples alone, in the same order, without shards that have none. A
sample keeps its key and its stored number; neighbours are read together, including samples between them that are not
chosen, unless there are too many of these. A process reads only the pages of bits that it needs, each with a checksum,
and keeps some. Raises a `DatasetError` for a damaged or replaced file.

Layout: an index file (see `paged_file`), whose data are the bits, the lowest of a byte first. The table holds the
number of samples, those chosen in each shard and in each page of 4,096 samples, the CRC-32 of each page, and a digest
of all bits.
"""

from __future__ import annotations

import array
import bisect
import dataclasses
import itertools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge_data.data.paged_file import HEADER_BYTES, PagedFile, begin_index, finish_index, kept_page
from bridge_data.data.records import Selection
from bridge_data.storage.atomic import replacing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHOICE_MAGIC = b"BRIDGECH"

PAGE_SAMPLES = 1 << 12

_PAGE_BYTES = PAGE_SAMPLES // 8


class Choice:
    """The chosen ones of `num_samples` samples: `counts` of each shard, `num_chosen` in all."""

    def __init__(self, file: PagedFile, table: dict[str, Any]) -> None:
        self.num_samples: int = table["num_samples"]
        self.counts: list[int] = table["counts"]
        self.digest: str = table["digest"]
        self.note: str | None = table["note"]
        self._file = file
        self._checksums: list[int] = table["checksums"]
        self._starts: list[int] = list(itertools.accumulate(table["pages"], initial=0))

    @classmethod
    def open(cls, path: Path) -> Choice | None:
        """The choice in the file at `path`; None if there is no usable one."""
        opened = PagedFile.open(path, CHOICE_MAGIC, "; delete it and start again: the samples will be chosen again")
        return None if opened is None else cls(*opened)

    @property
    def num_chosen(self) -> int:
        return self._starts[-1]

    def sample(self, number: int) -> int:
        """The chosen sample with this number."""
        page = bisect.bisect_right(self._starts, number) - 1
        return page * PAGE_SAMPLES + kept_page(self, page)[number - self._starts[page]]

    def samples(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The chosen samples with these numbers."""
        import numpy as np  # imported here: slow, and runs without costs do not need it

        starts = np.array(self._starts)
        pages = np.searchsorted(starts, numbers, "right") - 1
        found = np.empty(len(numbers), np.int64)
        order = np.argsort(pages, kind="stable")
        for run in np.split(order, np.flatnonzero(np.diff(pages[order])) + 1) if len(order) else ():
            page = int(pages[run[0]])
            chosen = np.frombuffer(kept_page(self, page), np.uint16)
            found[run] = page * PAGE_SAMPLES + chosen[numbers[run] - starts[page]]
        return found

    def rank(self, sample: int) -> int:
        """How many samples before `sample` are chosen."""
        page, at = divmod(sample, PAGE_SAMPLES)
        if page >= len(self._checksums):
            return self.num_chosen
        start = self._starts[page]
        return start + bisect.bisect_left(kept_page(self, page), at) if at else start

    def between(self, first: int, end: int) -> list[int]:
        """The chosen samples from `first` to `end` - 1."""
        return [self.sample(number) for number in range(self.rank(first), self.rank(end))]

    def read_page(self, page: int) -> array.array[int]:
        """The chosen samples of a page, counted from its first."""
        first = page * _PAGE_BYTES
        num_bytes = min(_PAGE_BYTES, -(-self.num_samples // 8) - first)
        data = self._file.read(HEADER_BYTES + first, num_bytes, self._checksums[page])
        bits = f"{int.from_bytes(data, 'little'):b}"
        return array.array("H", itertools.compress(range(len(bits)), map("1".__eq__, reversed(bits))))


@dataclasses.dataclass(frozen=True, eq=False)
class ChosenRecords(Selection):
    """The samples of `records` in `choice`."""

    choice: Choice

    @property
    def num_samples(self) -> int:
        return self.choice.num_chosen

    @property
    def shard_counts(self) -> Sequence[int]:
        return self.choice.counts

    def to_base(self, index: int) -> int:
        return self.choice.sample(index)

    def to_base_array(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.choice.samples(indices)

    def rank(self, number: int) -> int:
        return self.choice.rank(number)

    def identity(self) -> dict[str, Any]:
        """The identity of `records`, and a digest of the choice."""
        return {"of": self.records.identity(), "chosen": [self.num_samples, self.choice.digest]}


def write_choice(path: Path, bits: bytes, shard_counts: Sequence[int], note: str | None) -> None:
    """Write the choice `bits` to the file at `path`, which appears whole; `shard_counts` are the samples of each shard,
    `note` is a remark on the choice."""
    import hashlib  # here: not needed to open a choice

    pages = [bits[start : start + _PAGE_BYTES] for start in range(0, len(bits), _PAGE_BYTES)]

    def chosen(start: int, end: int) -> int:
        around = int.from_bytes(bits[start // 8 : -(-end // 8)], "little")
        return (around >> start % 8 & (1 << end - start) - 1).bit_count()

    ends = itertools.accumulate(shard_counts, initial=0)
    table = {
        "num_samples": sum(shard_counts),
        "counts": [chosen(start, end) for start, end in itertools.pairwise(ends)],
        "pages": [int.from_bytes(page, "little").bit_count() for page in pages],
        "checksums": list(map(zlib.crc32, pages)),
        "digest": hashlib.blake2b(bits, digest_size=8).hexdigest(),
        "note": note,
    }
    with replacing(path) as temporary, open(temporary, "wb") as file:
        begin_index(file)
        file.write(bits)
        finish_index(file, CHOICE_MAGIC, table)
