"""A node of a metadataset with `join:` and `joiner:`, as a source of a plan.

Reads the node; no data set is opened. Returns a `DeclaredJoin`. Raises a `ConfigError` with file and line.
"""

import dataclasses
from collections.abc import Sequence

from bridge_data.data.plain_data import Node
from bridge_data.errors import ConfigError
from bridge_data.plan.declared import SCOPE_KEYS, Reference, Scope, read_reference, within
from bridge_data.plan.formats import Opening
from bridge_data.plan.source import Source
from bridge_data.plugins.joins.join_node import JoinNode, read_join

_JOIN_KEYS = ("join", "joiner")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeclaredJoin:
    """A join in the metadataset `file`; range and epochs in `scope` are those of the joined samples."""

    join: JoinNode
    members: tuple[Reference, ...]
    file: str
    scope: Scope

    def error(self, message: str, key: str = "join") -> ConfigError:
        """An error at the line of `key`, or else of the join."""
        entries = self.join.node.mapping("join")
        return entries.get(key, entries["join"]).error(message)

    def open(self, opening: Opening, members: Sequence[Source]) -> Source:
        """The source of the joined samples."""
        from bridge_data.plugins.joins.join import join_source  # here: to list what is joined, nothing is opened

        return join_source(self.join, members, self.file, opening.trusted_modules)


def declare_join(node: Node, what: str, file: str, scope: Scope, extra_keys: tuple[str, ...]) -> DeclaredJoin:
    """The join at a node of the metadataset `file`; see `declared.ReadNode`."""
    entries = node.mapping(what, (*_JOIN_KEYS, *SCOPE_KEYS, *extra_keys))
    join, inner = read_join(node), within(entries, file, scope)
    if inner.where:
        raise inner.where[-1].error(
            f"where: does not choose from joined samples ({file}:{node.line}): give it to other data sets of the "
            "blend, or join data that have been filtered"
        )
    below = dataclasses.replace(inner, subset=None, epochs_per_shuffle=1)
    members = tuple(read_reference(member, file, below) for member in join.members)
    return DeclaredJoin(join=join, members=members, file=file, scope=inner)
