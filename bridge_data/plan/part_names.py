"""Names of parts that mean the same: `JPG`, `jpeg` and `jpg`.

Reads the parts that a field map names. Returns the other names under which samples may have them: cameras and systems
write endings in capitals, and some formats have two. The names in a field map come first: a part that it names itself
stands for no other, and is taken where a sample has it. All names are known before the first sample is read, so reading
asks of each part only whether it is one of a set.
"""

import functools
import itertools
from collections.abc import Iterable, Mapping
from typing import TypeVar

from bridge_data.errors import SampleError

T = TypeVar("T")

_ALIASES = ("jpg jpeg jpe jfif", "tif tiff", "htm html", "mpg mpeg", "yml yaml", "aif aiff", "mid midi")
"""Endings of the same format."""

_MAX_LETTERS = 5
"""Up to this length an ending is known in any mix of small and capital letters, of which there are 32; longer ones in
small letters, in capitals, and with a capital first letter."""


@functools.lru_cache(maxsize=1024)
def alike(part: str) -> frozenset[str]:
    """`part`, and names that differ from it in the case of letters or in how the ending of its format is written."""
    before, dot, ending = part.rpartition(".")
    group = next((group.split() for group in _ALIASES if ending.lower() in group.split()), [ending])
    starts = {before, before.lower(), before.upper(), before.capitalize()}
    return frozenset({part, *(start + dot + one for start in starts for name in group for one in _cases(name))})


@functools.lru_cache(maxsize=1024)
def all_names(parts: tuple[str, ...]) -> frozenset[str]:
    """The names that mean one of these parts."""
    return frozenset[str]().union(*map(alike, parts))


def first_pair(parts: Iterable[str]) -> tuple[str, str] | None:
    """The first two of these names, of parts of one sample, that mean the same; None if there are none."""
    seen: list[str] = []
    for part in parts:
        names = alike(part)
        other = next((name for name in seen if name in names), None)
        if other is not None:
            return other, part
        seen.append(part)
    return None


@functools.lru_cache(maxsize=1024)
def _in_other_cases(part: str) -> frozenset[str]:
    return frozenset([name for name in alike(part) if name.lower() == part.lower()]) - {part}


def _cases(name: str) -> Iterable[str]:
    if len(name) > _MAX_LETTERS:
        return name.lower(), name.upper(), name.capitalize()
    return map("".join, itertools.product(*((letter.lower(), letter.upper()) for letter in name)))


def other_names(parts: Iterable[str]) -> Mapping[str, str]:
    """The other names of these parts, which a field map names, and the part that each stands for: the one that differs
    in case alone, if there is one."""
    return _other_names(tuple(dict.fromkeys(parts)))


@functools.lru_cache(maxsize=256)
def _other_names(named: tuple[str, ...]) -> Mapping[str, str]:
    others: dict[str, str] = {}
    for names_of in (_in_other_cases, alike):
        for part in named:
            for name in names_of(part):
                if name not in named:
                    others.setdefault(name, part)
    return others


def renamed(parts: Mapping[str, T], others: Mapping[str, str], key: str) -> dict[str, T]:
    """The parts of the sample `key`, those with one of the names `others` under the name that it stands for; left out
    if the sample has a part of that very name.

    Raises:
        SampleError: if two parts are left for one name.
    """
    found = {name: content for name, content in parts.items() if name not in others}
    taken: dict[str, str] = {}
    for name in parts:
        part = others.get(name)
        if part is None or part in parts:
            continue
        if part in taken:
            raise SampleError(
                f"sample {key!r}: its parts {taken[part]!r} and {name!r} may both be the part {part!r}: name the one "
                "that is meant in the field map, or take the other out of the data"
            )
        taken[part] = name
        found[part] = parts[name]
    return found
