"""The plan: which sources there are and how they are blended, as a tree and as a flat list.

Enters: a tree of blends with weights. Leaves: the sources in the order of the tree, each with its share, the product of
the normalised weights on the way to it. Guarantee: shares are positive and sum to 1.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from bridge_data.plan.source import Source


@dataclasses.dataclass(frozen=True, eq=False)
class Branch:
    """Several sources or branches, with their weights relative to each other; `label` says what this is.

    If `epochized`, the number with each child is how often an epoch has it, and its weight that times its size.
    """

    label: str
    children: tuple[tuple[float, "Tree"], ...]
    epochized: bool = False

    def weights(self) -> list[float]:
        """How the children are drawn relative to each other."""
        if not self.epochized:
            return [weight for weight, _ in self.children]
        return [times * math.fsum(leaf_sizes(child)) for times, child in self.children]


Tree: TypeAlias = Source | Branch


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """What `load_plan` found: the tree, its sources that hold samples, and their shares; None for validation, where
    the sources come one after the other. `repetitions` is how often one epoch of an epochized blend has each source;
    None for other plans."""

    tree: Tree
    sources: tuple[Source, ...]
    weights: tuple[float, ...] | None
    repetitions: tuple[float, ...] | None = None

    @property
    def num_samples(self) -> int:
        """The number of samples of all sources."""
        return sum(source.num_samples for source in self.sources)

    def __str__(self) -> str:
        shares = [share for _, share in leaves(self.tree)] if self.weights is not None else None
        return "\n".join(_lines(self.tree, None, "", "", iter(shares) if shares is not None else None))


def leaves(tree: Tree, share: float = 1.0) -> Iterator[tuple[Source, float]]:
    """Each source with its share, in the order of the tree."""
    if isinstance(tree, Source):
        yield tree, share
        return
    weights = tree.weights()
    total = math.fsum(weights) or 1.0
    for weight, (_, child) in zip(weights, tree.children, strict=True):
        yield from leaves(child, share * (weight / total))


def leaf_sizes(tree: Tree) -> Iterator[float]:
    """The samples that each source under an epochized tree has in an epoch of it."""
    for source, times in repetitions(tree):
        yield times * source.num_samples


def repetitions(tree: Tree, times: float = 1.0) -> Iterator[tuple[Source, float]]:
    """Each source with how often an epoch of an epochized tree has it."""
    if isinstance(tree, Source):
        yield tree, times
        return
    for own, child in tree.children:
        yield from repetitions(child, times * own)


def normalised(shares: Sequence[float]) -> tuple[float, ...]:
    """`shares` divided by their sum."""
    total = math.fsum(shares)
    return tuple(share / total for share in shares)


def _lines(
    tree: Tree, weight: float | None, lead: str, below: str, shares: Iterator[float] | None, unit: str = "weight"
) -> Iterator[str]:
    weighed = "" if weight is None or shares is None else f"{unit} {weight:g}, "
    if isinstance(tree, Source):
        share = "" if shares is None else f"{next(shares):.2%} of draws, "
        kind = tree.sample_class.__name__
        num_shards = len(tree.shards.counts)
        yield (
            f"{lead}{tree.path} [{tree.split_part}]: {weighed}{share}{kind}, "
            f"{tree.num_samples:,} samples in {num_shards:,} shard{'' if num_shards == 1 else 's'}"
        )
        return
    yield f"{lead}{tree.label}{': ' + weighed.rstrip(', ') if weighed else ''}"
    for number, (child_weight, child) in enumerate(tree.children):
        last = number == len(tree.children) - 1
        yield from _lines(
            child,
            child_weight if len(tree.children) > 1 else None,
            below + ("└─ " if last else "├─ "),
            below + ("   " if last else "│  "),
            shares,
            "repetitions" if tree.epochized else "weight",
        )
