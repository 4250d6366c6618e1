"""Choosing samples by predicates: each is evaluated once over the columns of a data set, and the result is kept.

Enters: `Records` and clauses, all of which must hold. Leaves: a `Choice`, in a file in the cache of the user. Its name
identifies the predicates, the data, their columns and the clauses' files, so other processes of the machine, and later
runs, open it directly; one process makes it, while others wait. Guarantee: a file appears whole or not at all; memory
is bounded except for one bit per sample.
"""

import contextlib
import functools
import json
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from bridge_data.errors import ConfigError
from bridge_data.shards.records import Records
from bridge_data.shards.where.choices import Choice, write_choice
from bridge_data.shards.where.own_columns import OwnColumns
from bridge_data.shards.where.predicates import clipped, open_engine
from bridge_data.shards.where.query import SampleQuery
from bridge_data.shards.where.sample_columns import SampleColumns
from bridge_data.storage.atomic import locked
from bridge_data.storage.remote import CACHE_VARIABLE, cache_folder

_VERSION = 2
"""Of what a file in the cache means."""

logger = logging.getLogger("bridge_data")


class Where(Protocol):
    """A clause: a predicate, and the path of a Parquet file with more columns."""

    @property
    def text(self) -> str: ...

    @property
    def columns(self) -> str | None: ...

    def error(self, message: str) -> ConfigError:
        """The error `message`, which names the clause."""


def choose(records: Records, clauses: Sequence[Where]) -> Choice:
    """The samples of `records` for which all `clauses` hold.

    Raises:
        ConfigError: if a clause is wrong, or nothing is chosen. DatasetError: if columns cannot be read.
    """
    choice = evaluate(records, clauses)
    if not choice.num_chosen and records.num_samples:
        note = "" if choice.note is None else f" ({choice.note})"
        raise clauses[-1].error(
            f"where: {shown(clauses)} chooses none of the {records.num_samples:,} samples of {records.root} "
            f"[{records.split_part}]{note}; change the condition, or leave these data out of this part"
        )
    return choice


def evaluate(records: Records, clauses: Sequence[Where]) -> Choice:
    """The same as `choose`, but the result may be empty."""
    columns = _told(clauses[0], records.sample_columns)
    own = [_told(clause, functools.partial(_own_columns, clause)) for clause in clauses]
    path = cache_folder() / "where" / f"{_name(records, columns, clauses, own)}.choice"
    choice = Choice.open(path)
    try:
        if choice is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(str(path.with_suffix(".lock"))):
                choice = Choice.open(path) or _made(records, columns, list(zip(clauses, own, strict=True)), path)
    except OSError as error:
        raise ConfigError(
            f"{path.parent}: cannot store the chosen samples: {error.strerror or error}; set {CACHE_VARIABLE} to "
            "a folder that can be written"
        ) from error
    return choice


def shown(clauses: Sequence[Where]) -> str:
    """The predicates, for messages."""
    texts = [clipped(clause.text) for clause in clauses]
    return " and ".join(f"({text})" for text in texts) if len(texts) > 1 else repr(texts[0])


def _own_columns(clause: Where) -> OwnColumns | None:
    return None if clause.columns is None else OwnColumns(clause.columns)


def _told(clause: Where, action: Any) -> Any:
    """What `action` returns; its `ConfigError` names the clause."""
    try:
        return action()
    except ConfigError as error:
        raise clause.error(str(error)) from None


def _name(records: Records, columns: SampleColumns, clauses: Sequence[Where], own: Sequence[OwnColumns | None]) -> str:
    """A digest of everything that the choice depends on."""
    import hashlib  # here: most data sets have no predicates

    try:
        engine = metadata.version("duckdb")
    except metadata.PackageNotFoundError:
        engine = ""
    files = [None if one is None else [one.path, *one.version] for one in own]
    of = [_VERSION, engine, records.identity(), columns.identity(), [clause.text for clause in clauses], files]
    return hashlib.blake2b(json.dumps(of).encode(), digest_size=16).hexdigest()


def _made(
    records: Records, columns: SampleColumns, clauses: Sequence[tuple[Where, OwnColumns | None]], path: Path
) -> Choice:
    """Evaluate the clauses, and write what they choose to `path`."""
    import numpy as np

    started = time.monotonic()
    bits: Any = None
    notes = []
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".spill-") as spill:
        for clause, own in clauses:
            with _naming(clause, records), open_engine(Path(spill)) as engine:
                evaluated = SampleQuery(engine, columns, own, clause.text).run(records.num_samples)
            bits = evaluated.bits if bits is None else np.bitwise_and(bits, evaluated.bits)
            if evaluated.num_null and not evaluated.bits.any():
                notes.append(
                    f"NULL for {evaluated.num_null:,} samples, as values are missing: "
                    "`coalesce(column, 0)` stands in for these"
                )
            if evaluated.num_without_row:
                notes.append(
                    f"{evaluated.num_without_row:,} of {records.num_samples:,} samples have no row in "
                    f"{clause.columns}; its columns are NULL for them"
                )
    note = "; ".join(notes) or None
    write_choice(path, bits.tobytes(), records.counts, note)
    choice = Choice.open(path)
    assert choice is not None
    logger.info(
        "%s [%s]: where %s chooses %s of %s samples, found in %.1f s",
        records.root,
        records.split_part,
        shown([clause for clause, _ in clauses]),
        f"{choice.num_chosen:,}",
        f"{records.num_samples:,}",
        time.monotonic() - started,
    )
    if note is not None and choice.num_chosen:
        logger.warning("%s [%s]: %s", records.root, records.split_part, note)
    return choice


@contextlib.contextmanager
def _naming(clause: Where, records: Records) -> Iterator[None]:
    """Name the clause and the data in errors."""
    try:
        yield
    except ConfigError as error:
        raise clause.error(f"where: {error} ({records.root} [{records.split_part}])") from None
