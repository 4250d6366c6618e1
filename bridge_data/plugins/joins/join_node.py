"""A join as written in a metadataset: `join:`, a list or a mapping of references.

Reads the node. Returns a `JoinNode`. Raises a `ConfigError` with file and line.

Source: the `join` of `MetadatasetV2`, https://nvidia.github.io/Megatron-Energon/
"""

import dataclasses
from typing import cast

from bridge_data.data.plain_data import Node, given, nearest
from bridge_data.data.sample_keys import NO_MEMBER
from bridge_data.plan.dataset_yaml import TABLE_KEYS
from bridge_data.plugins.joins.joins import Nonmatch

_MEMBER_KEYS = ("path", "split_part", "subflavors", "dataset_config", "split_config", "nonmatch")
_NONMATCH = ("error", "skip", "none")
_OF_THE_JOIN = ("subset", "shuffle_over_epochs_multiplier", "weight", "repetitions")


@dataclasses.dataclass(frozen=True, slots=True)
class JoinNode:
    """A join as written: the members, the left side first, and the names under which the joiner gets them (None: by
    position)."""

    node: Node
    members: tuple[Node, ...]
    names: tuple[str, ...] | None
    nonmatches: tuple[Nonmatch, ...]


def read_join(node: Node) -> JoinNode:
    """The join at `node`; its members are not opened yet."""
    join = node.mapping("join")["join"]
    if isinstance(join.value, dict):
        names, members = tuple(join.value), tuple(join.value.values())
    else:
        names, members = None, tuple(join.sequence("join, a list or a mapping of data sets"))
    if not members:
        raise join.error("join: expected data sets, got none")
    for member in members:
        _check_keys(member)
    nonmatches = tuple(map(_nonmatch, members))
    if nonmatches[0] != "error":
        raise members[0].error(
            f"nonmatch: {nonmatches[0]}: the first data set of a join says which samples there are, so it lacks none; "
            "give nonmatch to the data sets after it, or put another one first"
        )
    return JoinNode(node, members, names, nonmatches)


def _check_keys(member: Node) -> None:
    entries = member.mapping("member of a join")
    for key in ("join", "blend", "blend_epochized"):
        if key in entries:
            raise entries[key].error(f"{key}: {NO_MEMBER}: write `path:`, and put the join into the blend")
    for key in _OF_THE_JOIN:
        if key in entries and entries[key].value not in (None, 1):
            raise entries[key].error(f"{key} is not for a member of a join: give it to the join as a whole")
    if "aux" in entries:
        raise entries["aux"].error("aux is for crude samples that are cooked; samples of a join are joined instead")
    member.mapping("member of a join", (*_MEMBER_KEYS, *TABLE_KEYS, *_OF_THE_JOIN))
    path = given(entries, "path")
    if path is None:
        raise member.error(f"member of a join: expected `path:`, got {member.shown()}")
    if path.text("path").endswith((".yaml", ".yml")):
        raise path.error(f"{NO_MEMBER}, got {path.shown()}")


def _nonmatch(member: Node) -> "Nonmatch":
    entry = given(member.mapping("member of a join"), "nonmatch")
    if entry is None:
        return "error"
    value = entry.text("nonmatch")
    if value not in _NONMATCH:
        raise entry.error(f"nonmatch: unknown mode {value!r}{nearest(value, _NONMATCH)}")
    return cast("Nonmatch", value)
