"""The order of a plan: one object per run that makes the cursors of all lanes and restores states.

Reads a plan, a seed and the shuffle settings. Returns geometries and cursors; the fingerprint of the run; saved states
converted to another number of lanes (reshard). It is pure arithmetic and tables; of the data it asks only for names,
counts and fingerprints.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from bridge_data.data.records import counts_of
from bridge_data.errors import ConfigError
from bridge_data.extensions import Feature
from bridge_data.options import check_integer
from bridge_data.order import BlendSchedule, Cursor, Geometry, OrderedCursor, OrderedRow, Phase, Row
from bridge_data.order.blends import BlendRule, SampleBlend, check_weights
from bridge_data.order.cursor import SampleIds
from bridge_data.order.random_draws import key64
from bridge_data.order.resharding import batch_bounds, reshard_ordered, reshard_shuffled
from bridge_data.order.row import Ints
from bridge_data.order.state import Generation, LoaderState, Resharded
from bridge_data.plan import Plan, Source
from bridge_data.plan.source import WITH_REPLACEMENT, EpochsPerShuffle, check_epochs, multiplied, num_together

_SHAPE_DIGITS = 16
"""Digits of a fingerprint that are of the names, sizes and counts of shards."""

_MAX_COUNTED = 1 << 20
"""Maximum number of chunks in all epochs that are counted to tell how many samples each lane has."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleSettings:
    """The shuffle settings of a training order, made of `TrainingOptions`. All fields go into the fingerprint: with a
    new one, states of before are of another order, unless `fingerprint` leaves its default out."""

    shuffle_buffer_size: int | None
    """Minimum number of samples that are fully shuffled together. If this and `max_samples_per_sequence` are None,
    samples of a chunk are not shuffled."""
    max_samples_per_sequence: int | None
    """Maximum number of samples in a chunk; None: a chunk is a shard."""
    epochs_per_shuffle: EpochsPerShuffle = 1
    """Number of epochs whose chunks are shuffled together, multiplied by each source's own (see `EpochsPerShuffle`)."""
    repeat: bool = True
    """Whether epochs follow each other without end."""

    def __post_init__(self) -> None:
        check_integer("shuffle_buffer_size", self.shuffle_buffer_size, 0, or_none=True)
        check_integer("max_samples_per_sequence", self.max_samples_per_sequence, 1, or_none=True)
        check_epochs(self.epochs_per_shuffle)

    def geometry(self, source: Source, num_lanes: int) -> Geometry:
        """How a source is cut and shared among the lanes of a new run."""
        return Geometry.choose(
            counts_of(source.records),
            num_lanes=num_lanes,
            max_samples_per_sequence=self.max_samples_per_sequence,
            shuffle_buffer_size=self.shuffle_buffer_size,
            sample_bytes=source.records.sample_bytes,
            read_bytes=source.records.read_bytes,
        )


class PlanOrder:
    """The training order of a plan, or, if `shuffle` is None, its validation order in micro-batches of `batch_size`.

    All lanes of a process share one order and its tables. `rule` makes the blend, if weights count something else
    than samples.
    """

    def __init__(
        self,
        plan: Plan,
        seed: int,
        shuffle: ShuffleSettings | None,
        batch_size: int,
        rule: BlendRule | None = None,
    ) -> None:
        self.shuffle, self.rule = shuffle, rule
        self._plan, self.seed, self._batch_size = plan, seed, batch_size
        self.source_labels = [source.name for source in plan.sources]
        """What messages call the sources."""
        self.sizes = [source.num_samples for source in plan.sources]
        """Samples of each source."""
        together_of_run = 1 if shuffle is None else shuffle.epochs_per_shuffle
        self._epochs_per_shuffle = [multiplied(together_of_run, source.epochs_per_shuffle) for source in plan.sources]
        self._together = [num_together(epochs) for epochs in self._epochs_per_shuffle]
        for _, weights in self._phases:
            check_weights(weights, self.source_labels)
        if shuffle is not None and not shuffle.repeat:
            self._check_ends()
        self.source_ids = _unique([source.fingerprint for source in plan.sources])
        """What states and restore keys call the sources: their fingerprints, unique by `#1`, `#2`."""
        self._rows_made: dict[tuple[int, Geometry], Row] = {}
        self.sample_blend = self.sample_blend_of(self._phases, range(len(self.sizes)))
        """The blend of all sources, if it looks at samples."""

    def sample_blend_of(self, phases: Sequence[Phase], numbers: Sequence[int]) -> SampleBlend | None:
        """The blend of the sources of these numbers, if it looks at samples."""
        if self.rule is None:
            return None
        return self.rule.blend(phases, numbers, [key64(self.seed, self.source_keys[number]) for number in numbers])

    def _check_ends(self) -> None:
        """Check that every source ends; `ConfigError` names one that does not."""
        for number, source in enumerate(self._plan.sources):
            if self._epochs_per_shuffle[number] == WITH_REPLACEMENT:
                raise ConfigError(
                    f"repeat=False: {source.name} is drawn with replacement (shuffle_over_epochs_multiplier: -1), "
                    "so it has no end; give a number of epochs, or repeat"
                )
            if not all(weights[number] for _, weights in self._phases):
                raise ConfigError(
                    f"repeat=False: every source must reach its end, but {source.name} has weight 0 (maybe only in one "
                    "phase of a schedule); give it a small weight, or leave it out of the blend"
                )

    def fingerprint(self) -> dict[str, Any]:
        """Everything that must be equal for saved cursors to mean the same samples, as plain data.

        Weights are floats, which JSON keeps exactly; repetitions are exact fractions as strings.
        """
        plan = self._plan
        epochs = {} if self.shuffle is None else self._own_epochs
        later = [[start, list(weights)] for start, weights in plan.later_weights]
        return {
            "sources": [[known, label] for known, label in zip(self.source_ids, self.source_labels, strict=True)],
            **({"contents": contents} if (contents := self._contents) else {}),
            "weights": None if plan.weights is None else list(plan.weights),
            **({"schedule": later} if later else {}),
            "repetitions": None if plan.repetitions is None else [str(times) for times in plan.repetitions],
            "seed": self.seed,
            "order": "shuffled" if self.shuffle else "ordered",
            **(dataclasses.asdict(self.shuffle) if self.shuffle else {}),
            **({"epochs_of_sources": epochs} if epochs else {}),
            **({} if self.rule is None else self.rule.fingerprint(self.source_ids)),
        }

    @functools.cached_property
    def _contents(self) -> dict[str, str]:
        """What else is known of the data of sources, by id: see `Source.contents`."""
        found = zip(self.source_ids, (source.contents for source in self._plan.sources), strict=True)
        return {source_id: contents for source_id, contents in found if contents}

    def first_generation(self, num_lanes: int) -> Generation:
        """The geometries of a new run."""
        return self.generation(num_lanes, [0] * len(self._plan.sources))

    def generation(self, num_lanes: int, first_epochs: Sequence[int]) -> Generation:
        """The geometries of all sources for `num_lanes` lanes, their rows starting with `first_epochs`."""
        if self.shuffle is None:
            return Generation(num_lanes, [[0]])
        rows = []
        for source, first_epoch in zip(self._plan.sources, first_epochs, strict=True):
            chosen = self.shuffle.geometry(source, num_lanes)
            rows.append([chosen.chunk_size, chosen.block_size, chosen.window_size, first_epoch])
        return Generation(num_lanes, rows)

    def cursor(self, lane: int, state: LoaderState) -> Cursor:
        """A cursor at the start of a lane, under the current generation of `state`."""
        if self.shuffle is None:
            return OrderedCursor(self.sizes, [self._ordered_row(generation) for generation in state.generations], lane)
        return Cursor([self.rows(generation) for generation in state.generations], self.blend(state), lane)

    def samples_of_lanes(self, generation: Generation, resharded: Resharded | None = None) -> Ints | None:
        """The samples that each lane of a generation draws until the data end, after a reshard with that of the state.
        None if they do not end; where counting takes long, as of over a million chunks; or where lanes get
        micro-batches in turn."""
        num_lanes, num_given = generation.num_lanes, [] if resharded is None else resharded.num_given
        found = np.zeros(num_lanes, dtype=np.int64)
        if self.shuffle is None:
            if resharded is None or not num_given:
                return None
            ordered = self._ordered_row(generation)
            found += np.roll(
                np.diff(batch_bounds(sum(num_given), num_lanes, ordered.batch_size)), resharded.num_handed_out
            )
            found += [ordered.num_samples_to(ordered.num_batches, lane) for lane in range(num_lanes)]
            return found
        if self.shuffle.repeat:
            return None
        rows = self.rows(generation)
        if sum(row.chunks.num_chunks * ((row.num_whole or 0) + 1) for row in rows) > _MAX_COUNTED:
            return None
        for of_source in num_given:
            found += np.diff(np.arange(num_lanes + 1) * of_source // num_lanes)
        for row in rows:
            assert row.num_whole is not None
            found += row.num_samples_to(row.num_whole + 1, [0] * num_lanes)
        return found

    def blend(self, state: LoaderState) -> BlendSchedule | SampleBlend | None:
        """The blend of the lanes of `state`; None if there is only one source, and weights count samples."""
        if self.sample_blend is not None:
            return self.sample_blend
        return self._schedule.since(state.drawn_before) if len(self._plan.sources) > 1 else None

    def has_next(self, lane: int, state: LoaderState) -> bool:
        """Whether a lane has a sample left to draw."""
        cursor = self.cursor(lane, state)
        cursor.seek(state.lanes[lane])
        try:
            cursor.next()
        except StopIteration:
            return False
        return True

    def have_ended(self, state: LoaderState, lanes: Iterable[int]) -> bool:
        """Whether these lanes have nothing left to draw or to emit, as far as known without reading. (If a lane has
        samples left, hooks may still skip all of them.)"""
        return not any(state.lanes[lane].get("pending") or self.has_next(lane, state) for lane in lanes)

    def migrated(self, state: LoaderState, fingerprint: dict[str, Any]) -> LoaderState:
        """`state`, maybe of another plan, converted to this order, whose run has `fingerprint`; differences are logged.

        Raises:
            ConfigError: if something differs, and what converts states is not installed.
            StateError: if more differs than a run can go on with.
        """
        if state.fingerprint == fingerprint:
            return state
        return MIGRATION.get(needed_by="strict=False")(self, state, fingerprint)

    def resharded(self, state: LoaderState, num_lanes: int, lanes: Collection[int]) -> LoaderState:
        """`state` converted to `num_lanes` lanes, of which only `lanes` are computed."""
        state.check_complete()

        def old_cursor(lane: int) -> Cursor:
            return self.cursor(lane, state)

        if self.shuffle is None:
            firsts = [0, *itertools.accumulate(self.sizes)]
            return reshard_ordered(state, self._ordered_row(state.generations[-1]), old_cursor, firsts, num_lanes)
        rows = self.rows(state.generations[-1])

        def new_generation(first_epochs: Sequence[int]) -> Generation:
            return self.generation(num_lanes, first_epochs)

        return reshard_shuffled(state, rows, old_cursor, new_generation, lanes, self.sample_blend)

    def _ordered_row(self, generation: Generation) -> OrderedRow:
        """The validation row of a generation."""
        return OrderedRow(sum(self.sizes), generation.num_lanes, self._batch_size, generation.first_batch)

    def rows(self, generation: Generation, sources: Sequence[int] | None = None) -> list[Row]:
        """The rows of a generation, of all sources or of those numbered `sources`."""
        assert self.shuffle is not None
        geometries, rows = generation.geometries, []
        for number, geometry in zip(range(len(geometries)) if sources is None else sources, geometries, strict=True):
            name = number, geometry
            if name not in self._rows_made:
                self._rows_made[name] = Row(
                    counts_of(self._plan.sources[number].records),
                    geometry,
                    key64(self.seed, self.source_keys[number]),
                    epochs_per_shuffle=self._together[number],
                    num_epochs=self._num_epochs(number),
                )
            rows.append(self._rows_made[name])
        return rows

    def _num_epochs(self, source: int) -> Fraction | int | None:
        """Epochs after which a source's row ends: its repetitions in `blend_epochized`, or one; None if it repeats."""
        assert self.shuffle is not None
        if self.shuffle.repeat:
            return None
        repetitions = self._plan.repetitions
        epochs = self._together[source] or 1
        return epochs * (1 if repetitions is None else repetitions[source])

    @property
    def _own_epochs(self) -> dict[str, EpochsPerShuffle]:
        """The `epochs_per_shuffle` of sources that set their own, by id."""
        sources = zip(self.source_ids, self._plan.sources, strict=True)
        return {source_id: one.epochs_per_shuffle for source_id, one in sources if one.epochs_per_shuffle != 1}

    @functools.cached_property
    def source_keys(self) -> list[int]:
        """64-bit keys of the sources, from their ids: see `order_keys`."""
        return order_keys(self.source_ids)

    @property
    def sample_ids(self) -> "SampleIds":
        """What identifies the samples of this plan."""
        return SampleIds(source_ids=self.source_ids, source_keys=self.source_keys)

    @property
    def _phases(self) -> list[Phase]:
        """The phases of weights; empty in validation."""
        return [] if self._plan.weights is None else [(0, self._plan.weights), *self._plan.later_weights]

    @functools.cached_property
    def _schedule(self) -> BlendSchedule:
        return BlendSchedule(self._phases, self.seed)

    def __getstate__(self) -> dict[str, Any]:
        """Without tables: each worker makes its own."""
        return {name: value for name, value in vars(self).items() if name != "_schedule"} | {"_rows_made": {}}


MIGRATION = Feature[Callable[[PlanOrder, LoaderState, dict[str, Any]], LoaderState]]("migration")
"""Converts a state of other weights, fewer sources or another batch size to an order, whose run has this
fingerprint."""


class Numbering:
    """A unique number for each sample of each epoch of some sources.

    Sample `index` in `epoch` of a source has number `epoch * (samples of all sources) + (samples of the sources before
    it) + index`.
    """

    def __init__(self, source_keys: Sequence[int], num_samples: Sequence[int]) -> None:
        self._total = 0
        self._first: dict[int, int] = {}
        for key, size in zip(source_keys, num_samples, strict=True):
            self._first[key] = self._total
            self._total += size

    def number_of(self, source_key: int, epoch: int, index: int) -> int:
        """The number of a sample."""
        return epoch * self._total + self._first[source_key] + index


def order_keys(source_ids: Sequence[str]) -> list[int]:
    """64-bit keys of sources, from what their ids say of the names, sizes and counts of shards. So they are
    independent of the position in the plan, but among sources in which these are equal."""
    seen: collections.Counter[str] = collections.Counter()
    keys = []
    for source_id in source_ids:
        shape = source_id[:_SHAPE_DIGITS]
        keys.append(key64(int(shape, 16), seen[shape]))
        seen[shape] += 1
    return keys


def _unique(fingerprints: Sequence[str]) -> list[str]:
    """Fingerprints with `#1`, `#2` appended to repeated ones: a blend may name one data set twice."""
    seen: collections.Counter[str] = collections.Counter()
    found = []
    for fingerprint in fingerprints:
        found.append(f"{fingerprint}#{seen[fingerprint]}" if seen[fingerprint] else fingerprint)
        seen[fingerprint] += 1
    return found
