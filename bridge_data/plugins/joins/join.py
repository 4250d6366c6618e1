"""Joins in a metadataset: samples of several data sets that have the same key become one.

Reads a node with `join:`, a list or a mapping of references, and `joiner:`. Returns a joined `Source`, whose records
come from the index that `prepare` made. It is a left join: the first member defines the samples and their order;
`nonmatch` of each other member says what happens to samples that it lacks.

Source: the `join` of `MetadatasetV2`, https://nvidia.github.io/Megatron-Energon/
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from bridge_data.data import Records
from bridge_data.data.plain_data import Node, given
from bridge_data.data.sample_keys import NO_MEMBER, join_problem
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan.blending import Tree
from bridge_data.plan.dataset_yaml import find_class, find_object, is_our_module
from bridge_data.plan.source import SampleClass, Source
from bridge_data.plugins.joins.join_node import JoinNode
from bridge_data.plugins.joins.joined_reader import Join
from bridge_data.plugins.joins.joined_records import JoinRecords
from bridge_data.plugins.joins.joins import JoinIndex, JoinMember, join_folder, open_join
from bridge_data.samples import CrudeSample, Sample, required_fields

_EXAMPLE = "`joiner: {__module__: my_package.samples, __class__: MySample}`"


def join_source(join: JoinNode, members: Sequence[Tree], file: str, trusted_modules: Collection[str]) -> Source:
    """The source of the join of `members` in the metadataset `file`."""
    sources, records = [], []
    for node, member in zip(join.members, members, strict=True):
        problem = join_problem(member.records) if isinstance(member, Source) else NO_MEMBER
        if not isinstance(member, Source) or problem is not None:
            entry = node.mapping("member of a join")["path"]
            raise entry.error(f"{problem}, got {entry.shown()}" if problem == NO_MEMBER else str(problem))
        sources.append(member)
        records.append(member.records)
    sample_class, joiner = find_joiner(join.node, trusted_modules)
    entries = join.node.mapping("join")
    try:
        index = open_join(join_folder(file), list(map(JoinMember, records, join.nonmatches)))
    except DatasetError as error:
        raise entries["join"].error(str(error)) from None
    joined = Join(members=tuple(sources), names=join.names, joiner=joiner)
    try:
        return assemble(joined, records, index, sample_class, file)
    except ConfigError as error:
        raise entries["joiner"].error(f"joiner: {error}") from None


def assemble(
    joined: Join, records: Sequence[Records], index: JoinIndex, sample_class: SampleClass, config_file: str
) -> Source:
    """The source of the joined samples, with the name and the sub-flavors of the first member.

    Raises:
        ConfigError: if the members do not have the fields of `sample_class`, and the joiner is `Sample.from_joined`.
    """
    _check_fields(joined, index, sample_class)
    return dataclasses.replace(
        joined.members[0],
        records=JoinRecords(
            index=index, members=tuple(records), parts=tuple(member.parts for member in joined.members)
        ),
        sample_class=sample_class,
        field_map={},
        parts=None,
        config_file=config_file,
        composition=joined,
        sample_loader=None,
    )


def find_joiner(node: Node, trusted_modules: Collection[str]) -> tuple[SampleClass, Callable[..., Any]]:
    """The class of the joined samples (`Sample` if the joiner is a function), and the joiner."""
    entry = given(node.mapping("join"), "joiner")
    if entry is None:
        raise node.error(f"joiner is missing: say into which class the samples are joined, as {_EXAMPLE}")
    entries = entry.mapping("joiner", ("__module__", "__class__", "__function__"))
    if "__module__" not in entries or ("__class__" in entries) == ("__function__" in entries):
        raise entry.error(f"joiner: expected `__module__` and either `__class__` or `__function__`, such as {_EXAMPLE}")
    if "__function__" not in entries:
        sample_class = find_class(entries["__module__"], entries["__class__"], trusted_modules)
        joiner = getattr(sample_class, "from_joined", None)
        if joiner is None:
            raise entry.error(f"joiner: {sample_class.__name__} has no from_joined; name a class derived from Sample")
        return sample_class, joiner
    name = entries["__function__"]
    if is_our_module(entries["__module__"].text("__module__")):
        raise name.error("joiner: __function__ is for a function of yours; of this package, name a sample class")
    function = find_object(entries["__module__"], name, trusted_modules)
    if not callable(function):
        raise name.error(f"joiner: {entries['__module__'].value} has no function {name.text('__function__')!r}")
    return Sample, function


def _check_fields(join: Join, index: JoinIndex, sample_class: SampleClass) -> None:
    """Check that the members have the fields of `sample_class`, if the joiner is `Sample.from_joined`."""
    if getattr(join.joiner, "__func__", None) is not Sample.from_joined.__func__:  # type: ignore[attr-defined]
        return
    own = f"{sample_class.__name__} has the from_joined that all samples have, which"
    if join.names is not None:
        raise ConfigError(f"{own} takes no names: write the join as a list, or define from_joined in it")
    given: dict[str, list[int]] = {field.name: [] for field in dataclasses.fields(sample_class) if field.init}
    for number, member in enumerate(join.members):
        if issubclass(member.sample_class, CrudeSample):
            raise ConfigError(f"{member.name} is crude, and {own} joins samples by their fields: define it in yours")
        for field in dataclasses.fields(member.sample_class):
            if field.name not in given:
                raise ConfigError(
                    f"{member.name} has the field {field.name!r}, which {sample_class.__name__} has not, and {own} "
                    "takes all: add the field, or define from_joined in it"
                )
            given[field.name].append(number)
    for name in required_fields(sample_class):
        if all(map(index.lacks_some, given[name])):
            raise ConfigError(
                f"{sample_class.__name__} requires {name!r}, which "
                + ("not all samples have (nonmatch: none)" if given[name] else "no data set of the join has")
                + ": give the field a default, or define from_joined in it"
            )
