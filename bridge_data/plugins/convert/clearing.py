"""Making way for a conversion: what another one has left in its folder, unfinished or, if asked for, whole, is removed.

Reads the share of a writer that has not begun. Removes the shards of an unfinished conversion with other settings, or
of other records, and no other file. If it is interrupted, it goes on when it is called again. Raises a `ConfigError` if
there is other data then, and a `DatasetError` if another process writes the folder.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from bridge_data import storage
from bridge_data.data.metadata import META_FOLDER, is_unfinished, tar_index_path
from bridge_data.errors import ConfigError
from bridge_data.prepare.commit import preparing_alone
from bridge_data.prepare.shard_writer import ITEMS_SUFFIX, WritingSession, names_in
from bridge_data.storage.atomic import writing

_REMOVING = "removing"
"""The file in `.writing` that says that all is being removed."""


def make_way(session: WritingSession, *, overwrite: bool = False) -> int | None:
    """Remove what an unfinished conversion has left that this one cannot resume; with `overwrite`, also a whole data
    set. The number of the unfinished one's shards; None if there is none."""
    was_removing = (session.site / _REMOVING).is_file()
    if was_removing or (overwrite and session.begun_settings() != session.settings):
        _remove_all(session)
    num_removed = _remove_other_conversion(session)
    _check_foreign_tars(session)
    if (session.root / META_FOLDER).is_dir() and not is_unfinished(session.root):
        raise ConfigError(
            f"{session.root}: holds a data set already, which another conversion made, or this one before the source "
            "changed; give another folder, or --force-overwrite to replace it"
        )
    return num_removed


def _check_foreign_tars(session: WritingSession) -> None:
    """Ensure that there are no tars that are not prepared, if no writer has begun, so that none can have made them."""
    if not session.site.is_dir():
        known = session.prepared()
        session.refuse(name for name in session.tars() if name not in known)


def _remove_all(session: WritingSession) -> None:
    """Remove what writers left in the folder, a whole data set or a part of one."""
    if not session.root.is_dir():
        return
    with writing(session.root), preparing_alone(session.root), contextlib.ExitStack() as locks:
        session.written()
        _check_foreign_tars(session)
        storage.make_folder(session.site)
        storage.write(session.site / _REMOVING, b"")  # until all is gone, the folder is not whole
        _lock_unfinished(session, locks)
        storage.delete_below(session.root / META_FOLDER)  # before the shards: without it they are no data set
        _remove_tars(session, session.tars())
        storage.delete_below(session.site)


def _remove_other_conversion(session: WritingSession) -> int | None:
    """Remove what an unfinished conversion with other settings, or of other items, has left: `.writing`, and its shards
    that are not prepared. The number of these; None if there is no such conversion."""
    begun = session.begun_settings()
    if begun is None or begun == session.settings or "origin" not in begun:
        return None
    with writing(session.root), contextlib.ExitStack() as locks:
        _lock_unfinished(session, locks)
        lists = names_in(session.site, f"*/*{ITEMS_SUFFIX}")
        made = {os.path.basename(name).removesuffix(ITEMS_SUFFIX) for name in lists} & set(session.tars())
        left = sorted(made.difference(session.prepared()))
        _remove_tars(session, left)
        storage.delete_below(session.site)
    return len(left)


def _lock_unfinished(session: WritingSession, locks: contextlib.ExitStack) -> None:
    """Keep all writers on a disk away, until `locks` is closed."""
    if isinstance(session.site, Path):
        locks.enter_context(preparing_alone(session.site, doing="merging"))
        for path in session.site.iterdir():
            if path.is_dir():
                locks.enter_context(preparing_alone(path, doing="writing"))


def _remove_tars(session: WritingSession, names: Sequence[str]) -> None:
    for name in names:
        storage.delete(session.root / name)
        storage.delete(session.root / os.fspath(tar_index_path(name)))
