"""Opening a plan: the data of one path, or all that a metadataset names.

Reads a path and the name of a split part; only metadata, once per data set. Returns a `Plan` of opened sources. Raises
`ConfigError`, with file and line, before the first sample is read: for mistakes in a YAML file, and for references or
field maps that do not fit the data.
"""

import concurrent.futures
import dataclasses
import os
from collections.abc import Collection, Sequence

from bridge_data import storage
from bridge_data.errors import ConfigError
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan.auxiliary import checked_aux
from bridge_data.plan.blending import Branch, Plan, Tree, changes, leaves, plan_of, step_words, weight_at
from bridge_data.plan.declared import (
    WHERE,
    Declared,
    DeclaredBlend,
    DeclaredNode,
    LoadCache,
    Reference,
    Scope,
    declare,
    given_clauses,
    read_splits,
)
from bridge_data.plan.document import absolute, parse_yaml
from bridge_data.plan.formats import Opening, format_of, open_source
from bridge_data.plan.source import Source
from bridge_data.samples import CrudeSample
from bridge_data.storage import Location, is_remote

MAX_OPENING = 16
"""Data sets in object stores opened at the same time."""


def load_plan(
    path: str | os.PathLike[str],
    *,
    split_part: str = "train",
    training: bool = True,
    trusted_modules: Collection[str] = (),
    trust_dataset_code: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    where: str | None = None,
    columns: str | os.PathLike[str] | None = None,
) -> Plan:
    """The plan for `split_part` of the prepared folder, JSONL file, tables or metadataset YAML at `path`.

    With `training`, sources are blended by their weights; otherwise they are read consecutively, and those without
    samples are left out. YAML files may name classes of this package and of `trusted_modules`. Python files next to the
    data (`sample_loader.py`) are run only with `trust_dataset_code`. `limits` bound the cost of samples and these
    files. `where` and `columns` choose samples of all data sets.

    Raises:
        EmptySplitError: if the part is declared and has no samples.
        ConfigError: for other mistakes.
        DatasetError: if the data differ from their metadata.
    """
    location = absolute(path)
    opening = Opening(training=training, trusted_modules=trusted_modules, trust_dataset_code=trust_dataset_code)
    scope = Scope(split_part=split_part, cache=LoadCache(limits), where=given_clauses(where, columns))
    declared = declare(Reference(path=location, scope=scope))
    return open_plan(declared, opening, f"{location}: the split part {split_part!r}")


def open_plan(declared: Declared, opening: Opening, what: str) -> Plan:
    """The plan of the declared tree, which messages call `what`."""
    return plan_of(_open(declared, opening), training=opening.training, what=what)


def _open(declared: Declared, opening: Opening) -> Tree:
    if isinstance(declared, Reference):
        return open_reference(declared, opening)
    if isinstance(declared, DeclaredBlend):
        return _open_blend(declared, opening)
    members = [open_reference(member, opening) for member in declared.members]
    return cut(declared.open(opening, members), declared)


def _open_all(declared: Sequence[Declared], opening: Opening) -> list[Tree]:
    """All references, in order; opened in parallel if in object stores, as each needs several requests."""
    if not any(isinstance(child, Reference) and is_remote(child.path) for child in declared):
        return [_open(child, opening) for child in declared]
    with concurrent.futures.ThreadPoolExecutor(MAX_OPENING) as threads:
        return list(threads.map(lambda child: _open(child, opening), declared))


def _open_blend(declared: DeclaredBlend, opening: Opening) -> Branch:
    """A blend by weights, or one by repetitions of whole data sets."""
    kind = "blend_epochized" if declared.epochized else "blend"
    children = _open_all(declared.children, opening)
    for item, child in zip(declared.nodes, children, strict=True):
        if isinstance(child, Branch) and child.children and child.epochized != declared.epochized:
            raise item.error(
                f"a {kind} cannot hold a {'blend_epochized' if child.epochized else 'blend'}: weights count "
                "draws, repetitions count epochs. Use one kind throughout."
            )
    empty = [not any(source.num_samples for source, _ in leaves(child)) for child in children]
    if opening.training and any(empty) and not all(empty):
        raise declared.nodes[empty.index(True)].error(
            f"this item of the blend has no samples in split part {declared.split_part!r}, so its weight cannot be "
            "kept; give it some shards, or remove it from the blend"
        )
    for sample in sorted({0} | changes(declared.weights)):
        if children and not any(weight_at(weight, sample) for weight in declared.weights):
            raise declared.node.error(
                f"{kind}: all weights are 0 {step_words(declared.unit)} {sample:,} on, so nothing could be drawn; "
                "raise one of them"
            )
    weighted = tuple(zip(declared.weights, children, strict=True))
    return Branch(declared.label, weighted, epochized=declared.epochized, unit=declared.unit)


def open_reference(reference: Reference, opening: Opening) -> Source:
    """The source that `reference` names."""
    source = open_source(reference, opening)
    if reference.aux:
        if not issubclass(source.sample_class, CrudeSample):
            raise reference.error(
                f"aux is for crude samples, which are cooked, but {reference.path} has samples of the class "
                f"{source.sample_class.__name__}",
                "aux",
            )
        source = dataclasses.replace(source, aux=checked_aux(reference.aux, reference.entries["aux"]))
    return cut(source, reference)


def cut(source: Source, declared: Reference | DeclaredNode) -> Source:
    """`source` with the chosen samples, the range of these, and the epochs of its scope."""
    if declared.scope.where:
        source = WHERE.get(needed_by="where:").choose(source, declared.scope.where)
    source.withheld  # noqa: B018  errors come now, and in stores several lists are read at once
    subset = declared.scope.subset
    try:
        found = source.cut(subset, declared.scope.epochs_per_shuffle)
    except ConfigError as error:
        raise declared.error(f"{error} [{source.name}]", "subset") from None
    if source.num_samples and not found.num_samples:
        raise declared.error(
            f"subset: range: {subset} leaves none of the {source.num_samples} samples of {source.name}", "subset"
        )
    return found


def split_parts(path: Location, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    """The split parts of the data or the metadataset at `path`, in its order.

    Raises:
        ConfigError: if there is none of these.
        DatasetError: if metadata are damaged.
    """
    if path.suffix in (".yaml", ".yml") and storage.is_file(path):
        return list(read_splits(parse_yaml(storage.read_all(path), str(path), limits))[1])
    return format_of(str(path)).parts(path, limits)
