"""Preparing a data set: from a folder of tars to one that can be read by sample number.

Enters: a folder, a rule for the split. Leaves: `.nv-meta` as Energon 7.4 writes it, a `.tar.idx` beside each shard, and
our index. The files in `.nv-meta` are replaced together, and none before all shards have been accepted.

A split gives each part, such as train, some of the shards. By ratio, shards are cut into runs; by pattern, each part
takes the shards whose names begin with what a pattern describes. Names are written as brace patterns.

Source: the split rules and the form of `split.yaml` of Megatron-Energon, whose results these equal.
"""

import dataclasses
import itertools
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.prepare.commit import preparing_alone
from bridge_data.prepare.key_prefixes import is_interrupted, prefix_keys
from bridge_data.prepare.processes import Progress, no_progress
from bridge_data.prepare.scan import has_surrogates
from bridge_data.prepare.tar_indexes import Preparation, PrepareConfig, SharedKeysError, write_indexes
from bridge_data.shards.metadata import (
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    SPLIT_YAML,
    expand_braces,
    read_shard_counts,
    tar_index_path,
)
from bridge_data.shards.tar_bytes import GZIP_SUFFIXES
from bridge_data.storage.atomic import write_file, writing

ENERGON_VERSION = "7.4.1"
"""The version of Energon whose formats are written."""

SHUFFLE_SEED = 42
"""Energon's, so that `--shuffle-tars` gives the same split."""

RATIO_PARTS = ("train", "val", "test")

_DIGITS = re.compile(r"(\d+)")
_SPECIAL = re.compile(r"([{}\\])")
_REGEX = frozenset("*+?[](){}|^$\\")

Split = Callable[[Sequence[str]], dict[str, list[str]]]
"""Shard names, in order, to shard names by split part: `split_by_ratio` or `split_by_patterns` with their settings."""


def find_shards(root: Path, exclude: str | None = None) -> list[str]:
    """The tars below `root`, compressed ones (.tgz, .tar.gz) too, as paths relative to it, folder by folder and sorted;
    not those that match `exclude`.

    Raises:
        ConfigError: if there are none, or two of them would share a `.tar.idx`.
    """
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder" if not root.exists() else f"{root}: expected a folder of tars")
    names = sorted(_tars(root), key=lambda name: name.split("/"))
    kept = [name for name in names if exclude is None or not re.search(exclude, name)]
    undecodable = [name for name in kept if has_surrogates(name)]
    if undecodable:
        raise ConfigError(f"{root}: the name {undecodable[0]!r} is not UTF-8: rename the file, or leave it out")
    if not kept:
        raise ConfigError(
            f"{root}: --exclude {exclude!r} leaves out all {len(names)} tars"
            if names
            else f"{root}: there are no .tar files; make some with `{bridge_command('pack', 'SRC', root)}`"
        )
    by_index: dict[Path, str] = {}
    for name in kept:
        other = by_index.setdefault(tar_index_path(name), name)
        if other != name:
            raise ConfigError(
                f"{root}: {other} and {name} would share {tar_index_path(name)}; remove one of them, or leave it out "
                "with --exclude"
            )
    return kept


def _tars(root: Path) -> Iterator[str]:
    """The tars below `root`, as paths relative to it."""
    start = len(os.path.join(root, ""))
    for folder, _, files in os.walk(root):
        for file in files:
            path = os.path.join(folder, file)
            if file.endswith((".tar", *GZIP_SUFFIXES)) and os.path.isfile(path):
                yield path[start:]


def prepare(
    root: Path,
    split: Split,
    config: PrepareConfig | None = None,
    *,
    names: Sequence[str] | None = None,
    split_config: str = SPLIT_YAML,
    definitions: Mapping[str, dict[str, Any]] | None = None,
    on_progress: Progress = no_progress,
) -> Preparation:
    """Prepare the tars below `root`, or those of them that `names` lists; write their split to `split_config`, YAML or
    JSON, and `definitions` of samples to files like dataset.yaml, by name. `on_progress` is called with shards done and
    shards in all.

    Raises:
        ConfigError: for wrong settings. DatasetError: naming each shard that is damaged.
    """
    config = config or PrepareConfig()
    check_split_config(split_config)
    names = find_shards(root, config.exclude) if names is None else list(names)
    parts = split(names)
    for what, shards in [("the list of tars", names), *((f"split part {part!r}", parts[part]) for part in parts)]:
        if len(set(shards)) < len(shards):
            name, times = Counter(shards).most_common(1)[0]
            raise ConfigError(f"{root}: {what} names {name!r} {times} times: name it once")

    def files(shard_counts: dict[str, int]) -> dict[str, str]:
        info = {"energon_version": ENERGON_VERSION, "shard_counts": shard_counts}
        found = {name: _yaml(definition) for name, definition in (definitions or {}).items()}
        write = _json if split_config.endswith(".json") else _yaml
        written = {part: collapse(shards) for part, shards in parts.items()}
        found[split_config] = write({"split_parts": written, "exclude": []})
        if (root / META_FOLDER / INFO_YAML).is_file():
            found[INFO_YAML] = _yaml(info)
        return found | {INFO_JSON: _json(info)}

    with preparing_alone(root, names):
        if is_interrupted(root):
            if not config.fix_duplicates:
                raise DatasetError(
                    f"{root}: --fix-duplicates was interrupted, so only some shards have keys with a prefix; prepare "
                    "it with --fix-duplicates again"
                )
            prefix_keys(root, names)
        try:
            preparation = write_indexes(root, names, config, on_progress, files=files)
        except SharedKeysError:
            prefix_keys(root, names)
            preparation = write_indexes(root, names, config, on_progress, files=files)
    return dataclasses.replace(preparation, notes=(*preparation.notes, *_split_notes(parts, names)))


def check_split_config(name: str) -> None:
    """Check the name of a file for the split.

    Raises:
        ConfigError: if it is a path, or names neither YAML nor JSON.
    """
    if Path(name).name != name or not name.endswith((".yaml", ".json")):
        raise ConfigError(f"split_config={name!r}: expected the name of a file that ends with .yaml or .json")


def refresh_index(
    root: Path,
    config: PrepareConfig | None = None,
    *,
    on_progress: Progress = no_progress,
) -> Preparation:
    """Write the indexes of a prepared data set again; its split and its sample type stay.

    Raises:
        ConfigError: if it is not prepared. DatasetError: naming each shard that is damaged, or whose number of samples
        has changed.
    """
    meta = root / META_FOLDER
    counts = read_shard_counts(meta)
    config = config or PrepareConfig()
    if config.fix_duplicates:
        raise ConfigError("fix_duplicates: to renew the index alone writes no shards; prepare the data set again")
    info = {"energon_version": ENERGON_VERSION, "shard_counts": counts}

    def files(shard_counts: dict[str, int]) -> dict[str, str]:
        return {} if (meta / INFO_JSON).is_file() else {INFO_JSON: _json(info)}

    with preparing_alone(root, counts):
        if is_interrupted(root):
            raise DatasetError(f"{root}: --fix-duplicates was interrupted; prepare it with --fix-duplicates again")
        return write_indexes(root, list(counts), config, on_progress, expected=counts, files=files)


def write_dataset_yaml(root: Path, definition: dict[str, Any], name: str) -> Path:
    """Write `definition`, what the samples are, to the file `name` in `.nv-meta`; its path."""
    path = root / META_FOLDER / name
    with writing(path.parent):
        write_file(path, _yaml(definition))
    return path


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False)


def _yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _split_notes(parts: dict[str, list[str]], names: Sequence[str]) -> list[str]:
    """Notes on what may be unexpected in the split."""
    notes = []
    chosen = [name for shards in parts.values() for name in shards]
    unused = len(names) - len(set(chosen))
    if unused:
        notes.append(f"{unused} of {len(names)} shards are in no split part")
    if len(chosen) > len(set(chosen)):
        notes.append(f"{len(chosen) - len(set(chosen))} shards are in more than one split part")
    return notes


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
    """`names` cut into train, val and test by their shares; with `shuffle`, in a random order that is always the same.

    A boundary is rounded down, so that with few shards a part may get none.
    """
    shares = list(zip(RATIO_PARTS, ratio, strict=True))
    return split_by_shares(names, shares, shuffle_seed=SHUFFLE_SEED if shuffle else None)


def split_by_shares(
    names: Sequence[str], shares: Sequence[tuple[str, Fraction]], *, shuffle_seed: int | None = None
) -> dict[str, list[str]]:
    """The same for any parts, (name, share) each; in the random order of `shuffle_seed`, unless it is None.

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
    ends = [int(len(ordered) * share / total) for share in itertools.accumulate(share for _, share in shares)]
    bounds = itertools.pairwise([0, *ends])
    return {part: ordered[start:end] for (part, _), (start, end) in zip(shares, bounds, strict=True)}


def ratio_bounds(ratio: Sequence[Fraction], count: int) -> dict[str, tuple[int, int]]:
    """(first, the one after the last) of `count` items in train, val and test; a boundary is rounded down."""
    ends = [int(count * sum(ratio[: number + 1])) for number in range(len(ratio))]
    return dict(zip(RATIO_PARTS, itertools.pairwise([0, *ends]), strict=True))


def parse_pattern(text: str) -> tuple[str, str]:
    """(split part, pattern) of text such as `train:shards/{000..099}.tar`.

    Raises:
        ConfigError: if it is not of that form.
    """
    part, colon, pattern = text.partition(":")
    if not (part and colon and pattern):
        raise ConfigError(f'split part {text!r}: expected "name:pattern", such as "train:shards/{{000..099}}.tar"')
    return part, pattern


def split_by_patterns(names: Sequence[str], patterns: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """For each (split part, pattern), the names that the pattern describes from their beginning on. A pattern is a
    regular expression after its braces have been expanded. A part may have several patterns.

    Raises:
        ConfigError: if a pattern is no regular expression, or describes no shard.
    """
    chosen: dict[str, set[str]] = defaultdict(set)
    for part, pattern in patterns:
        matching = _matching(names, pattern)
        if not matching:
            raise ConfigError(
                f"split part {part}:{pattern}: no shard is called so; there is {', '.join(names[:3])}"
                + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            )
        chosen[part] |= matching
    return {part: [name for name in names if name in matching] for part, matching in chosen.items()}


def _matching(names: Sequence[str], pattern: str) -> set[str]:
    """Plain patterns, of which braces make thousands, are looked up by length; only real expressions are tried."""
    plain: dict[int, set[str]] = defaultdict(set)
    expressions: list[re.Pattern[str]] = []
    try:
        for expanded in expand_braces(pattern, escape=False):
            if _REGEX.isdisjoint(expanded):
                plain[len(expanded)].add(expanded)
            else:
                expressions.append(re.compile(expanded))
    except (ValueError, re.error) as error:
        raise ConfigError(f"split pattern {pattern!r} is not a regular expression: {error}") from None
    return {
        name
        for name in names
        if any(name[:length] in group for length, group in plain.items())
        or any(expression.match(name) for expression in expressions)
    }


def collapse(names: Sequence[str]) -> list[str]:
    """Brace patterns that expand to `names`, in their order: runs like `data-{000000..000007}.tar` become one."""
    patterns: list[str] = []
    run: list[list[str]] = []
    slot = -1
    for name in names:
        tokens = _DIGITS.split(name)
        step = _step(run[-1], tokens) if run and not _SPECIAL.search(name) else -1
        if step < 0 or (len(run) > 1 and step != slot):
            patterns.extend(_written(run, slot))
            run, slot = [tokens], -1
        else:
            run.append(tokens)
            slot = step
    return patterns + _written(run, slot)


def _step(before: list[str], after: list[str]) -> int:
    """The one number in which two names differ, if it goes up by one at the same width; else -1."""
    if len(before) != len(after):
        return -1
    different = [slot for slot, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if len(different) != 1 or different[0] % 2 == 0:
        return -1
    a, b = before[different[0]], after[different[0]]
    return different[0] if len(a) == len(b) and int(b) == int(a) + 1 else -1


def _written(run: list[list[str]], slot: int) -> list[str]:
    if not run:
        return []
    if len(run) == 1:
        return [_SPECIAL.sub(r"\\\1", "".join(run[0]))]
    tokens = list(run[0])
    tokens[slot] = f"{{{run[0][slot]}..{run[-1][slot]}}}"
    return ["".join(tokens)]
