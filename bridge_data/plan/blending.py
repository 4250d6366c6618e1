"""The plan: which sources there are and how they are blended, as a tree and as a flat list.

Reads a tree of blends with weights. Returns the sources in the order of the tree, each with its share: the product of
the normalised weights on the path to it. With weight schedules, there is a list of shares for each sample at which a
weight changes. Shares are computed exactly from the weights as written, and rounded once, so weights 0.3 and 0.1 are
the same blend as 3 and 1. Shares sum to 1, and are 0 only where a weight is.

A weight is a finite number of 0 or more, or a schedule of such numbers over the samples drawn so far; 0 pauses the
item:

    weight: [{from_sample: 0, weight: 5}, {from_sample: 1_000_000, weight: 1}]

Weights count samples, or, with `weight_unit: tokens`, another cost of samples; then a phase begins `from_tokens`.

Data that several branches read are allowed, as with other subflavors, and told (`Plan.repeated`).
"""

import collections
import dataclasses
import math
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NoReturn, TypeAlias

from bridge_data import storage
from bridge_data.data.plain_data import Node
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan.source import Source
from bridge_data.topology import WorkerConfig

SAMPLES = "samples"
"""The unit of weights, unless a blend names another."""


@dataclasses.dataclass(frozen=True, slots=True)
class WeightSchedule:
    """`(drawn, weight)` in ascending order, the first from 0 on: each holds until the job has drawn as many samples as
    the next one says, or as much of what the blend counts."""

    phases: tuple[tuple[int, float], ...]

    def at(self, drawn: int) -> float:
        """The weight that holds when the job has drawn so much."""
        return [weight for start, weight in self.phases if start <= drawn][-1]


Weight: TypeAlias = float | WeightSchedule


def weight_at(weight: Weight, drawn: int) -> float:
    """The weight that holds when the job has drawn so much."""
    return weight.at(drawn) if isinstance(weight, WeightSchedule) else weight


def as_written(number: float) -> Fraction:
    """The exact number written for `number`: 1/10 for 0.1, although the float is slightly more."""
    return Fraction(str(number))


def changes(weights: Iterable[Weight]) -> set[int]:
    """How much the job has drawn, above 0, when one of the weights changes."""
    schedules = (weight for weight in weights if isinstance(weight, WeightSchedule))
    return {start for schedule in schedules for start, _ in schedule.phases[1:]}


class EmptySplitError(ConfigError):
    """The split part is declared, and has no samples."""


@dataclasses.dataclass(frozen=True, eq=False)
class Branch:
    """Several sources or branches, with their weights relative to each other; `label` says what this is.

    If `epochized`, the number with each child is its repetitions per epoch; its weight is that times its size.
    """

    label: str
    children: tuple[tuple[Weight, "Tree"], ...]
    epochized: bool = False
    unit: str = SAMPLES
    """What weights are shares of: samples, or a cost of them, such as tokens."""

    def __post_init__(self) -> None:
        for weight, child in self.children:
            for number in (one for _, one in weight.phases) if isinstance(weight, WeightSchedule) else (weight,):
                if not 0 <= number < math.inf:
                    name = child.name if isinstance(child, Source) else child.label
                    raise ConfigError(f"{self.label}: the weight of {name} is {number:g}, expected 0 or more, finite")

    def weights(self, drawn: int = 0) -> list[Fraction]:
        """The weights of the children, relative to each other, when the job has drawn so much."""
        weights = [as_written(weight_at(weight, drawn)) for weight, _ in self.children]
        if not self.epochized:
            return weights
        return [times * sum(leaf_sizes(child)) for times, (_, child) in zip(weights, self.children, strict=True)]


Tree: TypeAlias = Source | Branch


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The tree, its sources that have samples, and their shares (`weights`); None for validation, where sources are
    read consecutively. `repetitions` is how often one epoch of an epochized blend repeats each source; None for other
    plans. `later_weights` are the shares of later phases, if weights are scheduled. `worker_config`
    comes from the factory or data set of the plan, for callers that read the plan directly. `weight_unit` is what
    weights, and the `later_weights`, count: samples, or a cost of them.
    """

    tree: Tree
    sources: tuple[Source, ...]
    weights: tuple[float, ...] | None
    repetitions: tuple[Fraction, ...] | None = None
    later_weights: tuple[tuple[int, tuple[float, ...]], ...] = ()
    worker_config: WorkerConfig | None = None
    weight_unit: str = SAMPLES

    @property
    def num_samples(self) -> int:
        """The number of samples of all sources."""
        return sum(source.num_samples for source in self.sources)

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> NoReturn:
        raise ConfigError(
            "a plan holds no samples, it says which are read: give it to get_train_dataset(plan, ...), whose loader "
            "gives batches, or iterate over plan.sources"
        )

    @property
    def repeated(self) -> "list[RepeatedData]":
        """The data that several branches read."""
        phases = [] if self.weights is None else [self.weights, *(weights for _, weights in self.later_weights)]
        return repeated_data(self.sources, phases)

    def __str__(self) -> str:
        return "\n".join([self._tree(), *(f"note: {one}" for one in self.repeated)])

    def _tree(self) -> str:
        if self.weights is None:
            return "\n".join(_lines(self.tree, None, "", "", None))
        starts = [0, *(start for start, _ in self.later_weights)]
        by_phase = [[float(share) for _, share in leaves(self.tree, drawn=start)] for start in starts]
        unit = self.weight_unit
        shares = _Shares(starts, zip(*by_phase, strict=True), "draws" if unit == SAMPLES else unit)
        first, *others = _lines(self.tree, None, "", "", shares)
        when = f", {phase_words(unit)} " + " → ".join(f"{start:,}" for start in starts) if self.later_weights else ""
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
    for source in sources:
        source.withheld  # noqa: B018  found now, so that all processes have the same
    if not training:
        return Plan(tree, sources, None)
    times: tuple[Fraction, ...] | None = None
    if isinstance(tree, Branch) and tree.epochized:
        times = tuple(number for source, number in repetitions(tree) if source.num_samples)
    shares, unit = normalised([share for _, share in found]), tree.unit if isinstance(tree, Branch) else SAMPLES
    return Plan(tree, sources, shares, times, later_weights(tree), weight_unit=unit)


def in_unit(plan: Plan, unit: str | None) -> Plan:
    """A plan for training with weights that count `unit`; None: what they count already.

    Raises:
        ConfigError: if they count something else.
    """
    if unit is None or unit == plan.weight_unit:
        return plan
    if plan.weight_unit != SAMPLES or plan.later_weights or plan.repetitions is not None:
        what = "repetitions" if plan.repetitions is not None else "a schedule or weights"
        raise ConfigError(
            f"weight_unit={unit!r}: the data have {what} of {plan.weight_unit}: leave it out, or write `weight_unit: "
            f"{unit}` beside the outermost `blend:`"
        )
    return dataclasses.replace(plan, weight_unit=unit)


def leaves(tree: Tree, share: Fraction = Fraction(1), drawn: int = 0) -> Iterator[tuple[Source, Fraction]]:
    """Each source with its share when the job has drawn so much, in the order of the tree."""
    if isinstance(tree, Source):
        yield tree, share
        return
    weights = tree.weights(drawn)
    total = sum(weights) or 1
    for weight, (_, child) in zip(weights, tree.children, strict=True):
        yield from leaves(child, share * (weight / total), drawn)


def phase_starts(tree: Tree) -> set[int]:
    """How much the job has drawn, above 0, when a weight in the tree changes."""
    if isinstance(tree, Source):
        return set()
    below = (phase_starts(child) for _, child in tree.children)
    return changes(weight for weight, _ in tree.children).union(*below)


def later_weights(tree: Tree) -> tuple[tuple[int, tuple[float, ...]], ...]:
    """`(drawn, normalised shares of the sources that have samples)` for each phase but the first."""
    return tuple(
        (start, normalised([share for source, share in leaves(tree, drawn=start) if source.num_samples]))
        for start in sorted(phase_starts(tree))
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
    """The printed weights and shares: one number for each phase, from these `starts` on."""

    starts: Sequence[int]
    of_leaves: Iterator[tuple[float, ...]]
    unit: str

    def weight(self, weight: Weight) -> str:
        if not isinstance(weight, WeightSchedule):
            return f"{weight:g}"
        return " → ".join(f"{weight.at(start):g}" for start in self.starts)

    def of_next_leaf(self) -> str:
        return " → ".join(f"{share:.2%}" for share in next(self.of_leaves))


def _lines(
    tree: Tree, weight: Weight | None, lead: str, below: str, shares: _Shares | None, unit: str = "weight"
) -> Iterator[str]:
    weighed = "" if weight is None or shares is None else f"{unit} {shares.weight(weight)}, "
    if isinstance(tree, Source):
        share = "" if shares is None else f"{shares.of_next_leaf()} of {shares.unit}, "
        kind = tree.sample_class.__name__
        num_shards = len(tree.records.shards)
        yield (
            f"{lead}{tree.path} [{tree.split_part}]: {weighed}{share}{kind}, "
            f"{tree.num_samples:,} samples in {num_shards:,} shard{'' if num_shards == 1 else 's'}"
            + ("" if tree.composition is None else f", {tree.composition}")
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


def phase_key(unit: str) -> str:
    """The key that says from where on a phase of a schedule holds."""
    return "from_sample" if unit == SAMPLES else f"from_{unit}"


def phase_words(unit: str) -> str:
    """What messages call `phase_key`."""
    return phase_key(unit).replace("_", " ", 1)


def read_weight(node: Node, key: str, of: str = "", unit: str = SAMPLES) -> Weight:
    """The weight at `node`, the value of `key`; only a `weight` may be a schedule, or 0. `of` is for messages."""
    what = f"{key} of {of}" if of else key
    if isinstance(node.value, list) and key == "weight":
        return _schedule(node, unit)
    number = _number(node, what)
    if not number and key != "weight":
        raise node.error(f"{what}: expected a number above 0, got 0; to leave a data set out, remove it")
    return number


def _number(node: Node, what: str) -> float:
    try:
        number = float(node.number(what))
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise node.error(f"{what}: expected a finite number of 0 or more, got {number:g}")
    return number


def _schedule(node: Node, unit: str) -> WeightSchedule:
    phases: list[tuple[int, float]] = []
    begin = phase_key(unit)
    for item in node.sequence("weight"):
        phase = item.mapping("phase of a schedule", (begin, "weight"))
        for key in (begin, "weight"):
            if key not in phase:
                raise item.error(f"phase of a schedule: {key} is missing, expected {{{begin}: N, weight: W}}")
        start, weight = phase[begin].number(begin), _number(phase["weight"], "weight")
        if not float(start).is_integer() or start < 0:
            raise phase[begin].error(f"{begin}: expected a whole number of {unit}, got {start:g}")
        if not phases and start != 0:
            raise phase[begin].error(
                f"{begin}: the first phase of a schedule begins at 0, got {start:g}; give the weight from there on "
                "(0: to begin later)"
            )
        if phases and start <= phases[-1][0]:
            raise phase[begin].error(
                f"{begin}: {start:g} comes after {phases[-1][0]:g}; the phases of a schedule must ascend"
            )
        phases.append((int(start), weight))
    if not phases:
        raise node.error("weight: the schedule is empty, expected phases {" + f"{begin}: N, weight: W}}")
    return WeightSchedule(tuple(phases))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RepeatedData:
    """The same data in several branches, and the share of what is drawn that each has; None for validation. It is
    easily done without noticing, when a metadataset names another one.

    The same data are the same samples of the same split part of the same folder or file, whatever symbolic links or
    relative paths led there. Another split part, another range or other `where:` clauses are not the same.
    """

    sources: tuple[Source, ...]
    shares: tuple[float, ...] | None

    def __str__(self) -> str:
        first, *others = self.sources
        drawn = ""
        if self.shares is not None:
            each = " and ".join(f"{share:.2%}" for share in self.shares)
            drawn = f", which draw {each}, together {sum(self.shares):.2%}"
        has_others = any(source.subflavors != first.subflavors for source in others)
        return (
            f"{first.path} [{first.split_part}] is read by {len(self.sources)} branches"
            f"{' with different subflavors' if has_others else ''}{drawn}: each has an order of its own, so a sample "
            "of one comes again in the others. If this is not meant, leave out all but one"
        )


def repeated_data(sources: Sequence[Source], phases: Sequence[Sequence[float]]) -> list[RepeatedData]:
    """What several of `sources` read, in the same phase of the weights if there are any: `phases` are the shares of all
    sources in each."""
    groups: dict[Hashable, list[int]] = collections.defaultdict(list)
    for number, source in enumerate(sources if len(sources) > 1 else ()):
        groups[_place(source)].append(number)
    found = []
    for numbers in groups.values():
        same: dict[str, list[int]] = collections.defaultdict(list)
        for number in numbers if len(numbers) > 1 else ():
            try:
                same[sources[number].fingerprint].append(number)
            except DatasetError:  # a shard is missing: whoever reads it says so
                continue
        for repeated in same.values():
            found += _drawn_together(sources, repeated, phases)
    return found


def _drawn_together(
    sources: Sequence[Source], numbers: Sequence[int], phases: Sequence[Sequence[float]]
) -> list[RepeatedData]:
    """The same data, if several of these sources are drawn from in one phase."""
    for shares in phases:
        drawn = [number for number in numbers if shares[number]]
        if len(drawn) > 1:
            return [RepeatedData(tuple(sources[n] for n in drawn), tuple(shares[n] for n in drawn))]
    if phases or len(numbers) < 2:
        return []
    return [RepeatedData(tuple(sources[number] for number in numbers), None)]


def _place(source: Source) -> Hashable:
    """Where the data of a source are, and which part of them it is."""
    return tuple((_real(member.path), member.split_part) for member in source.members)


def _real(path: str) -> str:
    return path if storage.is_remote(path) else os.path.realpath(path)
