"""Loading a plan: from a prepared folder, a JSONL file or a metadataset to the tree of its sources.

Enters: a path and the name of a split part. Leaves: a `Plan`. Guarantee: whatever is wrong in any of the YAML files is
found here, before the first sample is read, and is named with its file and line.
"""

import concurrent.futures
import os
from collections.abc import Collection, Sequence

from bridge_data.plan.blending import Branch, Plan, Tree, leaves, plan_of
from bridge_data.plan.declared import Declared, DeclaredBlend, DeclaredJoin, Reference, Scope, declare
from bridge_data.plan.document import absolute
from bridge_data.plan.join import join_source
from bridge_data.plan.references import Opening, cut, open_reference
from bridge_data.plan.source import Source
from bridge_data.plan.weights import changes, weight_at
from bridge_data.storage import is_remote

MAX_OPENING = 16
"""Data sets in object stores that are opened at a time."""


def load_plan(
    path: str | os.PathLike[str],
    *,
    split_part: str = "train",
    training: bool = True,
    trusted_modules: Collection[str] = (),
    trust_dataset_code: bool = False,
) -> Plan:
    """The plan for `split_part` of the prepared folder, the JSONL file or the metadataset YAML at `path`.

    With `training`, sources are blended by their weights; otherwise they come one after the other, and those without
    samples are left out. Classes that YAML files name are taken from `trusted_modules` only, besides our own; Python
    files beside the data (`sample_loader.py`) are run with `trust_dataset_code` only.

    Raises:
        EmptySplitError: if the part is declared and has no samples. ConfigError: for whatever is wrong otherwise.
        DatasetError: if the data are not what their metadata say.
    """
    location = absolute(os.fspath(path))
    opening = Opening(training=training, trusted_modules=trusted_modules, trust_dataset_code=trust_dataset_code)
    declared = declare(Reference(path=location, scope=Scope(split_part=split_part)))
    return open_plan(declared, opening, f"{location}: the split part {split_part!r}")


def open_plan(declared: Declared, opening: Opening, what: str) -> Plan:
    """The plan of what is declared; `what` says which part of which split it is.

    Raises:
        EmptySplitError: if it has no samples. ConfigError: for whatever is wrong otherwise.
        DatasetError: if the data are not what their metadata say.
    """
    return plan_of(_open(declared, opening), training=opening.training, what=what)


def _open(declared: Declared, opening: Opening) -> Tree:
    if isinstance(declared, Reference):
        return open_reference(declared, opening)
    if isinstance(declared, DeclaredJoin):
        return _open_join(declared, opening)
    return _open_blend(declared, opening)


def _open_join(declared: DeclaredJoin, opening: Opening) -> Source:
    members = [open_reference(member, opening) for member in declared.members]
    return cut(join_source(declared.join, members, declared.file, opening.trusted_modules), declared)


def _open_all(declared: Sequence[Declared], opening: Opening) -> list[Tree]:
    """All of them, in their order; those in object stores at the same time, as each waits for several answers."""
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
                f"{kind}: all weights are 0 from sample {sample:,} on, so nothing could be drawn; raise one of them"
            )
    return Branch(declared.label, tuple(zip(declared.weights, children, strict=True)), epochized=declared.epochized)
