"""Which shards are in which part of a split, such as train.

Reads the names of shards, and a ratio or patterns. Returns the names of each part, as a list or as brace patterns.
By ratio, shards are cut into runs; by pattern, each part takes the shards whose names match a pattern from their start.

Source: the split rules of Megatron-Energon, with equal results.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction

from bridge_data.data.metadata import expand_braces
from bridge_data.errors import ConfigError, listed
from bridge_data.limits import DEFAULT_LIMITS, Limits

SHUFFLE_SEED = 42
"""Energon's, so that `--shuffle-tars` gives the same split."""

RATIO_PARTS = ("train", "val", "test")

_DIGITS = re.compile(r"(\d+)")
_SPECIAL = re.compile(r"([{}\\])")
_REGEX = frozenset("*+?[](){}|^$\\")


def parse_ratio(text: str) -> list[Fraction]:
    """The shares of train, val and test in text such as `8,1,1` or `0.5, 0.2, 0.3`; they sum to 1.

    Raises:
        ConfigError: if it is not three numbers, none below 0 and not all 0.
    """
    try:
        ratio = [Fraction(number.strip()) for number in text.split(",")]
    except (ValueError, ZeroDivisionError):
        ratio = []
    if len(ratio) != len(RATIO_PARTS) or min(ratio) < 0 or not sum(ratio):
        raise ConfigError(f'split ratio {text!r}: expected three numbers for train, val and test, such as "8,1,1"')
    return [share / sum(ratio) for share in ratio]


def split_by_ratio(names: Sequence[str], ratio: Sequence[Fraction], *, shuffle: bool = False) -> dict[str, list[str]]:
    """`names` cut into train, val and test by their shares; with `shuffle`, in a fixed random order.

    A boundary is rounded down, so that with few shards a part may get none.
    """
    shares = list(zip(RATIO_PARTS, ratio, strict=True))
    return split_by_shares(names, shares, shuffle_seed=SHUFFLE_SEED if shuffle else None)


def split_by_shares(
    names: Sequence[str], shares: Sequence[tuple[str, Fraction]], *, shuffle_seed: int | None = None
) -> dict[str, list[str]]:
    """`names` cut into any parts, (name, share) each; shuffled with `shuffle_seed`, unless it is None.

    Raises:
        ConfigError: if a share is below 0, or all are 0.
    """
    total = sum(share for _, share in shares)
    if not total or min(share for _, share in shares) < 0:
        raise ConfigError(f"split shares {shares}: expected numbers, none below 0 and not all 0")
    ordered = list(names)
    if shuffle_seed is not None:
        import random  # imported here: slow (hashlib), and few splits need it

        random.Random(shuffle_seed).shuffle(ordered)
    bounds = zip(shares, _bounds([share / total for _, share in shares], len(ordered)), strict=True)
    return {part: ordered[start:end] for (part, _), (start, end) in bounds}


def ratio_bounds(ratio: Sequence[Fraction], count: int) -> dict[str, tuple[int, int]]:
    """(first, one after the last) of `count` items in train, val and test; a boundary is rounded down."""
    return dict(zip(RATIO_PARTS, _bounds(ratio, count), strict=True))


def _bounds(ratio: Sequence[Fraction], count: int) -> Iterator[tuple[int, int]]:
    return itertools.pairwise([0, *(int(count * share) for share in itertools.accumulate(ratio))])


def parse_pattern(text: str) -> tuple[str, str]:
    """(split part, pattern) of text such as `train:shards/{000..099}.tar`.

    Raises:
        ConfigError: if it is not of that form.
    """
    part, colon, pattern = text.partition(":")
    if not (part and colon and pattern):
        raise ConfigError(f'split part {text!r}: expected "name:pattern", such as "train:shards/{{000..099}}.tar"')
    return part, pattern


def split_by_patterns(
    names: Sequence[str], patterns: Sequence[tuple[str, str]], limits: Limits = DEFAULT_LIMITS
) -> dict[str, list[str]]:
    """For each (split part, pattern), the names that match the pattern from their start. A pattern is a regular
    expression after its braces have been expanded. A part may have several patterns.

    Raises:
        ConfigError: if a pattern is no regular expression, or matches no shard.
    """
    chosen: dict[str, set[str]] = defaultdict(set)
    for part, pattern in patterns:
        matching = _matching(names, pattern, limits)
        if not matching:
            raise ConfigError(f"split part {part}:{pattern}: no shard is called so; there is {listed(names, 3)}")
        chosen[part] |= matching
    return {part: [name for name in names if name in matching] for part, matching in chosen.items()}


def _matching(names: Sequence[str], pattern: str, limits: Limits) -> set[str]:
    """Plain patterns, thousands if braces expand, are looked up by length; only real expressions are tried."""
    plain: dict[int, set[str]] = defaultdict(set)
    expressions: list[re.Pattern[str]] = []
    try:
        for expanded in expand_braces(pattern, escape=False, max_names=limits.max_shards):
            if _REGEX.isdisjoint(expanded):
                plain[len(expanded)].add(expanded)
            else:
                expressions.append(re.compile(expanded))
    except re.error as error:
        raise ConfigError(f"split pattern {pattern!r} is not a regular expression: {error}") from None
    except ValueError as error:
        raise ConfigError(f"split pattern {pattern!r} cannot be expanded: {error}") from None
    return {
        name
        for name in names
        if any(name[:length] in group for length, group in plain.items())
        or any(expression.match(name) for expression in expressions)
    }


def collapse(names: Sequence[str]) -> list[str]:
    """Brace patterns that expand to `names`, in order: runs like `data-{000000..000007}.tar` become one."""
    patterns: list[str] = []
    run: list[list[str]] = []
    varying = -1
    for name in names:
        tokens = _DIGITS.split(name)
        step = _step(run[-1], tokens) if run and not _SPECIAL.search(name) else -1
        if step < 0 or (len(run) > 1 and step != varying):
            patterns.extend(_written(run, varying))
            run, varying = [tokens], -1
        else:
            run.append(tokens)
            varying = step
    return patterns + _written(run, varying)


def _step(before: list[str], after: list[str]) -> int:
    """The only number in which two names differ, if it grows by one at the same width; else -1."""
    if len(before) != len(after):
        return -1
    different = [varying for varying, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if len(different) != 1 or different[0] % 2 == 0:
        return -1
    a, b = before[different[0]], after[different[0]]
    return different[0] if len(a) == len(b) and int(b) == int(a) + 1 else -1


def _written(run: list[list[str]], varying: int) -> list[str]:
    if not run:
        return []
    if len(run) == 1:
        return [_SPECIAL.sub(r"\\\1", "".join(run[0]))]
    tokens = list(run[0])
    tokens[varying] = f"{{{run[0][varying]}..{run[-1][varying]}}}"
    return ["".join(tokens)]
