"""Preparing a JSONL file: every line is checked, and the offsets of the samples are written next to it.

Reads `data.jsonl`, and a rule for the split, or none. Writes `data.jsonl.idx`, byte for byte as Energon does, and
`data.jsonl.split.yaml`. Blocks of the file are read in parallel; memory is bounded by a few of them. Nothing is written
unless each line is a JSON object in UTF-8 or blank; the error counts all other lines. The mark with which some editors
begin UTF-8 is passed over.
"""

import array
import codecs
import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import yaml

from bridge_data.data.jsonl_file import index_path, read_ranges, split_path
from bridge_data.data.metadata import JSONL_SUFFIX
from bridge_data.data.sample_offsets import encode_offsets
from bridge_data.data.subset import SubsetRange
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan.folder_contents import why_no_lines, why_no_text
from bridge_data.prepare.commit import preparing_alone
from bridge_data.prepare.executors import LocalProcesses, Progress, no_progress
from bridge_data.storage.atomic import replacing, write_file, writing

BLOCK_BYTES = 1 << 25
"""Bytes of the file per task, which reads the lines that start in them."""

MAX_LINE_BYTES = 1 << 28
"""Longer lines are refused, unless `Limits(max_json_bytes)` is more: parsed JSON takes many times their size."""

_SHOWN = 10

LineSplit = Callable[[int], dict[str, tuple[int, int]]]
"""The number of samples to (first sample, the one after the last) by split part."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JsonlPreparation:
    """The result for a JSONL file; `num_blank` lines are blank and are no samples."""

    num_samples: int
    num_blank: int
    num_bytes: int
    parts: dict[str, tuple[int, int]] | None


@dataclasses.dataclass(slots=True)
class _LineBlock:
    """The result for a block: the offsets of its samples, and its faults by line, counted within the block."""

    offsets: "array.array[int]" = dataclasses.field(default_factory=lambda: array.array("Q"))
    num_lines: int = 0
    num_faults: int = 0
    faults: list[tuple[int, str]] = dataclasses.field(default_factory=list)


def parse_line_range(text: str) -> tuple[str, SubsetRange]:
    """(split part, range) of text such as `train:0..900`, `val:900..end` or `train:0%..90%`.

    Raises:
        ConfigError: if it is not of that form.
    """
    part, colon, bounds = text.partition(":")
    start, dots, end = bounds.partition("..")
    if not (part and colon and dots):
        raise ConfigError(
            f'split part {text!r}: of a JSONL file, expected "name:start..end", such as "train:0..900", '
            '"val:900..end" or "train:0%..90%"'
        )
    try:
        return part, SubsetRange.parse([_number(start), _number(end)])
    except ConfigError as error:
        raise ConfigError(f"split part {text!r}: {error}") from None


def _number(text: str) -> int | str:
    return int(text) if text.strip().isdecimal() else text


def split_lines_by_ranges(ranges: Sequence[tuple[str, SubsetRange]], num_samples: int) -> dict[str, tuple[int, int]]:
    """The samples of each (split part, range)."""
    parts: dict[str, tuple[int, int]] = {}
    for part, subset in ranges:
        if part in parts:
            raise ConfigError(f"split part {part!r} has two ranges; a part of a JSONL file is one range")
        try:
            parts[part] = subset.resolve(num_samples)
        except ConfigError as error:
            raise ConfigError(f"split part {part!r}: {error}") from None
    return parts


def prepare_jsonl(
    path: Path,
    split: LineSplit | None = None,
    *,
    num_workers: int = 1,
    limits: Limits = DEFAULT_LIMITS,
    on_progress: Progress = no_progress,
) -> JsonlPreparation:
    """Prepare the JSONL file `path`; without `split`, an existing split stays. `on_progress` is called with blocks done
    and blocks in all. `limits` apply to its lines and to an existing split. Temporary files that a killed preparation
    left are removed.

    Raises:
        ConfigError: if the split does not fit.
        DatasetError: naming the lines that are damaged, or if another process prepares the file.
    """
    if not path.is_file() or path.suffix != JSONL_SUFFIX:
        raise ConfigError(
            why_no_lines(str(path))
            or f"{path}: expected a {JSONL_SUFFIX} file" + ("" if path.exists() else ", but there is none")
        )
    if (complaint := why_no_text(str(path))) is not None:
        raise DatasetError(f"{path}: {complaint}")
    with writing(path.parent), preparing_alone(path) as remove_temporary:
        remove_temporary([index_path(path), split_path(path)])
        before = os.stat(path)
        with replacing(index_path(path)) as temporary:
            longest = max(MAX_LINE_BYTES, limits.max_json_bytes)
            num_samples, num_lines = _write_offsets(path, before.st_size, temporary, longest, num_workers, on_progress)
            if not num_samples:
                why = f"its {num_lines:,} lines are blank" if num_lines else "it is empty"
                raise DatasetError(f"{path}: holds no samples: {why}. Remove it, or write a JSON object on each line.")
            after = os.stat(path)
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise DatasetError(
                    f"{path}: was written to while it was prepared; prepare it again when it is complete"
                )
            parts = _parts(path, split, num_samples, limits)
            if split is not None and parts is not None:  # before the index: with a stale index, the file is not opened
                content = {"split_parts": {part: list(bounds) for part, bounds in parts.items()}}
                write_file(split_path(path), yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return JsonlPreparation(
        num_samples=num_samples, num_blank=num_lines - num_samples, num_bytes=before.st_size, parts=parts
    )


def _parts(path: Path, split: LineSplit | None, num_samples: int, limits: Limits) -> dict[str, tuple[int, int]] | None:
    if split is not None:
        return split(num_samples)
    ranges = read_ranges(path, limits=limits)
    if ranges is None:
        return None
    try:
        return split_lines_by_ranges(list(ranges.items()), num_samples)
    except ConfigError as error:
        raise ConfigError(
            f"{split_path(path)}: {error}; fix it, remove it, or write it again with --split-ratio or --split-parts"
        ) from None


def _write_offsets(
    path: Path, num_bytes: int, target: Path, max_line_bytes: int, num_workers: int, on_progress: Progress
) -> tuple[int, int]:
    """(samples, lines) of the file; the offsets of the samples go to `target`."""
    starts = range(0, num_bytes, BLOCK_BYTES)
    scan = functools.partial(_scan, path, max_line_bytes)
    num_samples = num_lines = num_faults = 0
    shown: list[str] = []
    executor = LocalProcesses(max(1, min(num_workers, len(starts))))
    blocks = executor.map(scan, starts, what=f"read lines of {path}")
    with open(target, "wb") as file, contextlib.closing(blocks):
        for done, block in enumerate(blocks):
            if block.offsets and not num_samples:
                block.offsets[0] = 0  # blank lines at the start belong to the first sample, as in Energon
            file.write(encode_offsets(block.offsets))
            shown += [f"line {num_lines + line}: {what}" for line, what in block.faults[: _SHOWN - len(shown)]]
            num_samples, num_lines = num_samples + len(block.offsets), num_lines + block.num_lines
            num_faults += block.num_faults
            on_progress(done + 1, len(starts))
        file.write(encode_offsets(array.array("Q", [num_bytes])))
    if num_faults:
        more = f"\n  and {num_faults - len(shown):,} more" if num_faults > len(shown) else ""
        raise DatasetError(
            f"{path}: {num_faults:,} of {num_lines:,} lines {'is' if num_faults == 1 else 'are'} no JSON object; fix "
            "or remove them, then prepare again:\n  " + "\n  ".join(shown) + more
        )
    return num_samples, num_lines


def _scan(path: Path, max_line_bytes: int, start: int) -> _LineBlock:
    """The lines that begin at bytes `start` to `start` + `BLOCK_BYTES` - 1."""
    found = _LineBlock()
    with open(path, "rb") as file:
        if start:
            file.seek(start - 1)
            _finish_line(file)  # of the block before
        offset = file.tell()
        while offset < start + BLOCK_BYTES and (line := file.readline(max_line_bytes + 1)):
            is_long = len(line) > max_line_bytes and not line.endswith(b"\n")
            end = offset + len(line) + (_finish_line(file) if is_long else 0)
            found.num_lines += 1
            line = line if offset else line.removeprefix(codecs.BOM_UTF8)
            if is_long or not line.isspace():
                found.offsets.append(offset)
                fault = _fault(line) if not is_long else f"longer than {max_line_bytes} bytes (Limits(max_json_bytes))"
                if fault is not None:
                    found.num_faults += 1
                    if len(found.faults) < _SHOWN:
                        found.faults.append((found.num_lines, fault))
            offset = end
    return found


def _finish_line(file: BinaryIO) -> int:
    """Skip to the start of the next line, however far it is; return the number of bytes."""
    num_bytes = 0
    while piece := file.readline(1 << 20):
        num_bytes += len(piece)
        if piece.endswith(b"\n"):
            break
    return num_bytes


def _fault(line: bytes) -> str | None:
    """The fault of a line; None if it is a JSON object."""
    try:
        content = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return f"not UTF-8: {line[error.start]:#04x} (byte {error.start + 1})"
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg} (character {error.pos + 1})"
    except RecursionError:
        return "not readable: nested too deeply"
    except ValueError:
        return "not readable: a number of thousands of digits"
    if not isinstance(content, dict):
        return f'expected an object such as {{"text": "..."}}, got {type(content).__name__}'
    return None
