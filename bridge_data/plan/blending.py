"""The plan: which sources there are and how they are blended, as a tree and as a flat list.

Enters: a tree of blends with weights. Leaves: the sources in the order of the tree, each with its share: the product of
the normalised weights on the path to it. With weight schedules, there is a list of shares for each sample at which a
weight changes. Guarantee: shares are computed exactly from the weights as written, and rounded once, so weights 0.3 and
0.1 are the same blend as 3 and 1. Shares sum to 1, and are 0 only where a weight is.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TypeAlias

from bridge_data.errors import ConfigError
from bridge_data.plan.source import Source
from bridge_data.plan.weights import Weight, WeightSchedule, as_written, changes, weight_at


class EmptySplitError(ConfigError):
    """The split part is declared, and has no samples."""


@dataclasses.dataclass(frozen=True, eq=False)
class Branch:
    """Several sources or branches, with their weights relative to each other; `label` says what this is.

    If `epochized`, the number with each child is how often an epoch repeats it; its weight is that times its size.
    """

    label: str
    children: tuple[tuple[Weight, "Tree"], ...]
    epochized: bool = False

    def __post_init__(self) -> None:
        for weight, child in self.children:
            for number in (step for _, step in weight.steps) if isinstance(weight, WeightSchedule) else (weight,):
                if not 0 <= number < math.inf:
                    name = child.name if isinstance(child, Source) else child.label
                    raise ConfigError(f"{self.label}: the weight of {name} is {number:g}, expected 0 or more, finite")

    def weights(self, sample: int = 0) -> list[Fraction]:
        """The weights of the children, relative to each other, after the job has drawn `sample` samples."""
        weights = [as_written(weight_at(weight, sample)) for weight, _ in self.children]
        if not self.epochized:
            return weights
        return [times * sum(leaf_sizes(child)) for times, (_, child) in zip(weights, self.children, strict=True)]


Tree: TypeAlias = Source | Branch


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The tree, its sources that have samples, and their shares (`weights`); None for validation, where sources are
    read one after the other. `repetitions` is how often one epoch of an epochized blend repeats each source; None for
    other plans. `later_weights` are the shares from later samples of the job on, if weights are scheduled.
    """

    tree: Tree
    sources: tuple[Source, ...]
    weights: tuple[float, ...] | None
    repetitions: tuple[Fraction, ...] | None = None
    later_weights: tuple[tuple[int, tuple[float, ...]], ...] = ()

    @property
    def num_samples(self) -> int:
        """The number of samples of all sources."""
        return sum(source.num_samples for source in self.sources)

    def __len__(self) -> int:
        return self.num_samples

    def __str__(self) -> str:
        if self.weights is None:
            return "\n".join(_lines(self.tree, None, "", "", None))
        samples = [0, *(sample for sample, _ in self.later_weights)]
        by_sample = [[float(share) for _, share in leaves(self.tree, sample=sample)] for sample in samples]
        first, *others = _lines(self.tree, None, "", "", _Shares(samples, zip(*by_sample, strict=True)))
        when = f", from sample {' → '.join(f'{sample:,}' for sample in samples)}" if self.later_weights else ""
        return "\n".join([first + when, *others])


def plan_of(tree: Tree, *, training: bool, what: str) -> Plan:
    """The plan of a tree, for training or validation.

    Raises:
        EmptySplitError: if it has no samples.
    """
    found = [(source, share) for source, share in leaves(tree) if source.num_samples]
    if not found:
        raise EmptySplitError(f"{what} is declared and has no samples; give it some shards, or name another part")
    sources = tuple(source for source, _ in found)
    if not training:
        return Plan(tree, sources, None)
    times: tuple[Fraction, ...] | None = None
    if isinstance(tree, Branch) and tree.epochized:
        times = tuple(number for source, number in repetitions(tree) if source.num_samples)
    return Plan(tree, sources, normalised([share for _, share in found]), times, later_weights(tree))


def leaves(tree: Tree, share: Fraction = Fraction(1), sample: int = 0) -> Iterator[tuple[Source, Fraction]]:
    """Each source with its share after the job has drawn `sample` samples, in the order of the tree."""
    if isinstance(tree, Source):
        yield tree, share
        return
    weights = tree.weights(sample)
    total = sum(weights) or 1
    for weight, (_, child) in zip(weights, tree.children, strict=True):
        yield from leaves(child, share * (weight / total), sample)


def changing_samples(tree: Tree) -> set[int]:
    """The samples of the job, above 0, at which a weight in the tree changes."""
    if isinstance(tree, Source):
        return set()
    below = (changing_samples(child) for _, child in tree.children)
    return changes(weight for weight, _ in tree.children).union(*below)


def later_weights(tree: Tree) -> tuple[tuple[int, tuple[float, ...]], ...]:
    """`(sample, normalised shares of the sources that have samples)` for each sample at which shares change."""
    return tuple(
        (sample, normalised([share for source, share in leaves(tree, sample=sample) if source.num_samples]))
        for sample in sorted(changing_samples(tree))
    )


def leaf_sizes(tree: Tree) -> Iterator[Fraction]:
    """The samples of each source in one epoch of an epochized tree."""
    for source, times in repetitions(tree):
        yield times * source.num_samples


def repetitions(tree: Tree, times: Fraction = Fraction(1)) -> Iterator[tuple[Source, Fraction]]:
    """Each source with its repetitions in one epoch of an epochized tree."""
    if isinstance(tree, Source):
        yield tree, times
        return
    for own, child in tree.children:
        yield from repetitions(child, times * as_written(weight_at(own, 0)))


def normalised(shares: Sequence[Fraction]) -> tuple[float, ...]:
    """`shares` as floats, divided by their sum."""
    rounded = [float(share) for share in shares]
    total = math.fsum(rounded) or 1.0
    return tuple(share / total for share in rounded)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Shares:
    """The printed weights and shares: one number for each of `samples`."""

    samples: Sequence[int]
    of_leaves: Iterator[tuple[float, ...]]

    def weight(self, weight: Weight) -> str:
        if not isinstance(weight, WeightSchedule):
            return f"{weight:g}"
        return " → ".join(f"{weight.at(sample):g}" for sample in self.samples)

    def of_next_leaf(self) -> str:
        return " → ".join(f"{share:.2%}" for share in next(self.of_leaves))


def _lines(
    tree: Tree, weight: Weight | None, lead: str, below: str, shares: _Shares | None, unit: str = "weight"
) -> Iterator[str]:
    weighed = "" if weight is None or shares is None else f"{unit} {shares.weight(weight)}, "
    if isinstance(tree, Source):
        share = "" if shares is None else f"{shares.of_next_leaf()} of draws, "
        kind = tree.sample_class.__name__
        num_shards = len(tree.records.counts)
        yield (
            f"{lead}{tree.path} [{tree.split_part}]: {weighed}{share}{kind}, "
            f"{tree.num_samples:,} samples in {num_shards:,} shard{'' if num_shards == 1 else 's'}"
            + ("" if tree.joined is None else f", joined with {', '.join(m.name for m in tree.joined.members[1:])}")
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
