"""Comparing what two preparations of the same shards have written."""

import shutil
import sqlite3
from pathlib import Path

TABLES = ("samples", "sample_parts", "media_metadata", "bridge_media_seen")


def copy_unprepared(source: Path, folder: Path) -> None:
    """A copy of the shards, with their times of change, without what a preparation wrote."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))


def rows_of(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """The rows of the database of `folder` by table, sorted."""
    db = sqlite3.connect(folder / ".nv-meta/index.sqlite")
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return {table: sorted(db.execute(f"SELECT * FROM {table}")) for table in TABLES if table in there}


def schema_of(folder: Path) -> list[str]:
    """What creates the tables and indexes of the database."""
    db = sqlite3.connect(folder / ".nv-meta/index.sqlite")
    return sorted(sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))


def files_of(folder: Path) -> dict[str, bytes]:
    """All files that a preparation writes but the database, by path."""
    written = [*(folder / ".nv-meta").iterdir(), *folder.rglob("*.idx")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in written if path.name != "index.sqlite"}


def assert_same_indexes(one: Path, other: Path) -> None:
    """The files are equal byte for byte, the databases row for row."""
    assert files_of(one) == files_of(other)
    assert rows_of(one) == rows_of(other)
    assert schema_of(one) == schema_of(other)
