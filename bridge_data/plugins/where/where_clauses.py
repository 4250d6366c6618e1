"""`where:` in a metadataset: a predicate that chooses samples of the data sets below it.

Reads the entries `where` and `columns` of a node, or the options of these names. Returns clauses that know file and
line; and a source with only the samples for which all of its clauses hold. Raises a `ConfigError` with file and line.
For the columns, see `choosing`.
"""

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bridge_data.data.plain_data import Node, as_node, given
from bridge_data.data.records import Records, count_samples
from bridge_data.errors import ConfigError
from bridge_data.plan.declared import OptionError
from bridge_data.plan.source import Source
from bridge_data.storage import absolute, located


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WhereClause:
    """The predicate `text`, at `node`; `columns` is the path of the Parquet file with more columns."""

    text: str
    columns: str | None
    node: Node
    is_option: bool = False
    """Whether it is not from a file."""

    def error(self, message: str) -> ConfigError:
        """The error `message`, with file and line."""
        error = self.node.error(message)
        return OptionError(str(error)) if self.is_option else error


def read_where(entries: Mapping[str, Node], file: str) -> tuple[WhereClause, ...]:
    """The clauses of a node of the YAML file `file`: one or none.

    Raises:
        ConfigError: naming file and line, if it is no text, or there is `columns` alone.
    """
    where, columns = given(entries, "where"), given(entries, "columns")
    if where is None:
        if columns is not None:
            raise columns.error("columns: is a file of columns for `where:`, which is missing")
        return ()
    if columns is None:
        return (WhereClause(where.text("where"), None, where),)
    with columns.placed():
        return (WhereClause(where.text("where"), located(columns.text("columns"), file), where),)


def given_where(where: str | None, columns: str | os.PathLike[str] | None) -> tuple[WhereClause, ...]:
    """The clause of the options `where` and `columns`."""
    values: dict[str, Any] = {"where": where, "columns": None if columns is None else absolute(columns)}
    entries = {name: as_node(value, "") for name, value in values.items()}
    return tuple(dataclasses.replace(clause, is_option=True) for clause in read_where(entries, ""))


def choose_samples(source: Source, clauses: Sequence[WhereClause]) -> Source:
    """`source` with only the samples for which all clauses hold.

    Raises:
        ConfigError: naming file and line, if a clause is wrong, or chooses nothing.
    """
    if not source.num_samples:
        return source
    from bridge_data.plugins.where.choices import ChosenRecords
    from bridge_data.plugins.where.choosing import choose  # here: few data sets have clauses

    chosen = ChosenRecords(source.records, choose(source.records, clauses))
    return dataclasses.replace(source, records=chosen)


class SampleChoice:
    """What the core asks the plug-in for."""

    read = staticmethod(read_where)
    given = staticmethod(given_where)
    choose = staticmethod(choose_samples)

    @staticmethod
    def numbers(records: Records, clauses: Sequence[WhereClause]) -> Collection[int]:
        """The numbers of the samples for which all clauses hold, perhaps of none."""
        from bridge_data.plugins.where.choosing import evaluate

        num_samples = count_samples(records)
        return evaluate(records, clauses).between(0, num_samples) if num_samples else ()

    @staticmethod
    def count(records: Records, clauses: Sequence[WhereClause]) -> int:
        """How many samples all clauses hold for."""
        from bridge_data.plugins.where.choosing import evaluate

        return evaluate(records, clauses).num_chosen if count_samples(records) else 0

    @staticmethod
    def shown(clauses: Sequence[WhereClause]) -> str:
        """The predicates, for messages."""
        from bridge_data.plugins.where.choosing import shown

        return shown(clauses)
