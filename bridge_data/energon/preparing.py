"""Preparing from Python, with the arguments of Energon's functions.

`BaseWebdatasetFactory.prepare_dataset` is `prepare_dataset` here. As in Energon, the caller does the other steps of
`bridge-data prepare` itself: choosing the sample class, writing `dataset.yaml`.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from bridge_data.data.metadata import SPLIT_YAML, expand_braces
from bridge_data.errors import ConfigError
from bridge_data.plugins.media.media import prepare_media
from bridge_data.plugins.media.media_rule import MediaRule
from bridge_data.prepare.executors import Progress, no_progress
from bridge_data.prepare.splits import split_by_patterns, split_by_shares
from bridge_data.prepare.tars import PrepareConfig, check_is_whole, prepare, refresh_index
from bridge_data.storage import absolute, location, on_disk

logger = logging.getLogger("bridge_data")

Steps = Callable[[Iterator[Any], int], Iterator[Any]]
"""Wraps an iterator with a known number of items, as `tqdm` does."""


def prepare_dataset(
    parent_path: str | os.PathLike[str],
    paths: Sequence[str],
    *,
    split_parts_ratio: Sequence[tuple[str, float]] | None = None,
    split_parts_patterns: Sequence[tuple[str, str]] | None = None,
    split_config: str = SPLIT_YAML,
    shuffle_seed: int | None = 42,
    progress_fn: Steps | None = None,
    workers: int = 32,
    tar_index_only: bool = False,
    media_filter: MediaRule | None = None,
    fix_duplicates: bool = False,
    index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
) -> set[str]:
    """Index the tars `paths` below the folder `parent_path`, and write the split; return at most 50 names of parts.

    Args:
        paths: the tars, relative to `parent_path`, with braces such as `shards/{000..099}.tar`.
        split_parts_ratio: (part of the split, its share of the tars) for each part.
        split_parts_patterns: (part, regular expression of paths, with braces) for each part.
        split_config: the file of the split in `.nv-meta`.
        shuffle_seed: shuffle the tars before they are split by ratio; None: keep their order.
        progress_fn: called with an iterator and the number of tars; its result is advanced with each tar.
        workers: processes.
        tar_index_only: renew the indexes of prepared data, and keep the split.
        media_filter: store sizes and lengths of these media.
        fix_duplicates: put the members of each tar below a folder of the tar's name, if keys occur in several tars.
        index_sqlite_tmp_path: no effect: data are prepared on a disk.

    Raises:
        ConfigError: for wrong settings.
        DatasetError: naming each tar that is damaged.
    """
    root = on_disk(location(absolute(os.fspath(parent_path))))
    try:
        names = [name for path in paths for name in expand_braces(path)]
    except ValueError as error:
        raise ConfigError(f"paths: a pattern cannot be expanded: {error}") from None
    if not names:
        raise ConfigError(f"{root}: paths is empty: name the tars")
    check_is_whole(root)
    config = PrepareConfig(num_workers=min(workers, len(names)), fix_duplicates=fix_duplicates)
    on_progress = no_progress if progress_fn is None else _advancing(progress_fn(iter(range(len(names))), len(names)))
    if tar_index_only:
        return set(refresh_index(root, config, on_progress=on_progress).parts)
    if split_parts_patterns is not None and split_parts_ratio is None:
        split = partial(split_by_patterns, patterns=split_parts_patterns)
    elif split_parts_ratio is not None and split_parts_patterns is None:
        shares = [(part, Fraction(str(share))) for part, share in split_parts_ratio]
        split = partial(split_by_shares, shares=shares, shuffle_seed=shuffle_seed)
    else:
        raise ConfigError(f"{root}: expected one of split_parts_ratio and split_parts_patterns")
    done = prepare(root, split, config, names=names, split_config=split_config, on_progress=on_progress)
    for note in done.notes:
        logger.warning("%s: %s", root, note)
    if media_filter is not None:
        prepare_media(root, media_filter, num_workers=config.num_workers)
    return set(done.parts)


def prepare_filesystem_dataset(
    root_path: str | os.PathLike[str],
    media_filter: MediaRule,
    *,
    progress: bool = True,
    workers: int = 16,
    index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
) -> int:
    """Store sizes and lengths of the media below a plain folder, for auxiliary data; return the number of files.

    `progress` and `index_sqlite_tmp_path` have no effect; `bridge-data prepare --media` shows progress.

    Raises:
        ConfigError: if there are no media.
    """
    root = on_disk(location(absolute(os.fspath(root_path))))
    return prepare_media(root, media_filter, num_workers=workers).num_stored


class WebdatasetPreparator:
    """The two functions under the name of Energon's class."""

    prepare_dataset = staticmethod(prepare_dataset)

    @staticmethod
    def add_media_metadata(
        parent_path: str | os.PathLike[str],
        *,
        media_filter: MediaRule,
        workers: int = 32,
        progress_fn: Steps | None = None,
        index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
    ) -> int:
        """Store sizes and lengths of the media of a prepared folder of tars; return the number of files.

        `progress_fn` and `index_sqlite_tmp_path` have no effect.

        Raises:
            ConfigError: if it is not prepared.
            DatasetError: naming a tar that is damaged.
        """
        return prepare_filesystem_dataset(Path(parent_path), media_filter, workers=workers)


def _advancing(steps: Iterator[Any]) -> Progress:
    return lambda done, total: next(steps, None) and None
