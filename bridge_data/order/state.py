"""The state of a loader: the position of each lane, and a fingerprint of the run that the positions belong to.

Input: lane states, the fingerprint. Output: one plain dict of int, float, str, list and dict, for `json.dumps` or
`torch.load(weights_only=True)`. Guarantee: a state is restored only in a run where it means the same samples; anything
else is a `StateError` that names the differences.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self, TypeAlias

from bridge_data.errors import StateError
from bridge_data.order import forget_history, ledger, step_skips
from bridge_data.order.state_check import check_checksums, check_structure, with_checksums
from bridge_data.order.step_skips import StepSkips
from bridge_data.topology import WorkerConfig

FORMAT = "bridge_data.loader"
VERSION = 2
"""The version of the state format and of the order; it changes with either."""

EXTRAS: Mapping[str, int] = {one.NAME: one.VERSION for one in (ledger, step_skips, forget_history)}
"""Names of the extras that this release can read, with their newest version.

An extra is an optional part of the state, or of a lane's state: `{name: {"version": int, "data": ...}}` under `extras`.
A release that does not know the name refuses the state instead of losing the data.
"""


LaneState: TypeAlias = dict[str, Any]
"""The state of one lane: `draws`, `cursors`, `micro_batches`, and maybe `inbox`, `pending` and `extras`;
`{}` if the lane has not started."""

Generation: TypeAlias = tuple[int, list[list[int]]]
"""(num_lanes, [chunk_size, block_size, window_size, first_epoch] of each source); in validation (num_lanes, [[first
block]]). Every re-deal starts a new generation."""


_LESS_STRICT = (
    "\nTo continue with other weights, added data sets or another batch size: strict=False "
    "(of the DataModule: strict_restore=False)"
)


@dataclasses.dataclass(slots=True)
class LoaderState:
    """The state of some or all lanes of a run."""

    fingerprint: dict[str, Any]
    """Data, weights and settings that determine which samples the positions mean."""
    generations: list[Generation]
    """Generations that some lane's inbox refers to, then the current one."""
    next_slot: int
    """The first micro-batch of the job that not every rank has emitted yet; with `skips`, its slot."""
    lanes: dict[int, LaneState]
    drawn_before: int = 0
    """Samples drawn by the job before the last re-deal, after which lanes count draws from 0; for schedules."""
    epoch_batches: int = 0
    """Batches per rank in the current virtual epoch."""
    ended: bool = False
    """Whether the pass over finite data is complete; a restore then starts the next pass."""
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)
    """See `EXTRAS`."""
    repetition: int = 0
    """How often a pass that repeats finite data a fixed number of times has restarted it."""
    uncounted: ledger.Uncounted | None = dataclasses.field(default=None, repr=False, compare=False)
    """The micro-batches that the ledgers of the lanes do not count yet; never in plain data."""

    @property
    def num_lanes(self) -> int:
        """The number of lanes of the whole job."""
        return self.generations[-1][0]

    @property
    def is_whole(self) -> bool:
        """Whether it has every lane of the job."""
        return len(self.lanes) == self.num_lanes

    @property
    def skips(self) -> StepSkips | None:
        """The steps that are skipped, also those that are over; None if there are none."""
        return StepSkips.of_extras(self.extras)

    @property
    def next_number(self) -> int:
        """The micro-batch that comes in `next_slot`, by its number in the run without skips."""
        return self.next_slot if (skips := self.skips) is None else skips.number(self.next_slot)

    def slot_of(self, lane: int) -> int:
        """The slot in which the next micro-batch of a lane comes."""
        place: int = self.lanes[lane].get("micro_batches", 0)
        skips = self.skips
        return place * self.num_lanes + lane if skips is None else skips.slot_of_lane(lane, self.num_lanes, place)

    @property
    def is_finite(self) -> bool:
        """Whether the data of the run comes to an end."""
        run = self.fingerprint
        return run.get("order") == "ordered" or run.get("repeat") is False or run.get("max_micro_batches") is not None

    def settled(self) -> "LoaderState":
        """This state with everything in the lanes' ledgers."""
        return ledger.settled(self) if self.uncounted else self

    def to_dict(self) -> dict[str, Any]:
        """The state as plain data, to save: with the checksums that `from_dict` verifies."""
        return with_checksums(self.snapshot())

    def snapshot(self) -> dict[str, Any]:
        """The state as plain data without checksums, which cost more than all the rest: for use within this job, after
        each batch."""
        if self.uncounted:
            return self.settled().snapshot()
        return {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "generations": [list(generation) for generation in self.generations],
            "next_slot": self.next_slot,
            "drawn_before": self.drawn_before,
            **({"epoch_batches": self.epoch_batches} if self.epoch_batches else {}),
            **({"ended": True} if self.ended else {}),
            **({"repetition": self.repetition} if self.repetition else {}),
            "lanes": {str(lane): state for lane, state in self.lanes.items()},
            **({"extras": self.extras} if self.extras else {}),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The inverse of `to_dict`, with a full check of the structure.

        Raises:
            StateError: for another format or version, an unknown extra, or a damaged field, which is named; naming the
                lane, if it is not as it was saved.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = f"a dict with {sorted(map(str, data))[:6]}" if isinstance(data, dict) else type(data).__name__
            raise StateError(
                f"not a loader state of bridge_data, of format {FORMAT!r}: got {found}. Checkpoints of other loaders "
                "(such as Energon) cannot be restored; start the data from the beginning, ideally at an epoch "
                "boundary, or resume with that loader."
            )
        if data.get("version") != VERSION:
            raise StateError(
                f"the loader state has order format {data.get('version')}, this release reads format "
                f"{VERSION}: the same cursors mean other samples. Start the data from the beginning (restore the model "
                "without the state of its data), or resume with the release that wrote it."
            )
        check_structure(data)
        lanes = {int(lane): state for lane, state in data["lanes"].items()}
        extras = data.get("extras", {})
        _check_extras(extras, "the loader state")
        for lane, state in lanes.items():
            _check_extras(state.get("extras", {}), f"the state of lane {lane}")
        check_checksums(data)
        generations = [(num_lanes, geometry) for num_lanes, geometry in data["generations"]]
        return cls(
            fingerprint=data["fingerprint"],
            generations=generations,
            next_slot=data["next_slot"],
            lanes=lanes,
            drawn_before=data["drawn_before"],
            epoch_batches=data.get("epoch_batches", 0),
            ended=data.get("ended", False),
            extras=extras,
            repetition=data.get("repetition", 0),
        )

    def check(self, fingerprint: dict[str, Any], tolerated: Collection[str] = ()) -> None:
        """Check that the state belongs to a run with `fingerprint`; items in `tolerated` may differ.

        Raises:
            StateError: naming every difference.
        """
        differences = [text for name, text in self.differences(fingerprint) if name not in tolerated]
        if differences:
            raise StateError(
                "the saved state belongs to other data or settings:\n  " + "\n  ".join(differences) + "\n"
                "Its cursors would point to other samples. Restore the settings, or start the data from the beginning."
                + (_LESS_STRICT if not tolerated else "")
            )

    def differences(self, fingerprint: dict[str, Any]) -> list[tuple[str, str]]:
        """(item, description) of each difference from `fingerprint`."""
        return list(_differences(self.fingerprint, fingerprint))

    def check_complete(self) -> None:
        """Check that no lane of the job is missing."""
        missing = [lane for lane in range(self.num_lanes) if lane not in self.lanes]
        if missing:
            raise StateError(
                f"the state lacks lanes {missing[:16]} of {self.num_lanes}; merge the states of all data-parallel "
                "ranks (merge_states), or pass all of them"
            )

    def of_rank(self, config: WorkerConfig) -> Self:
        """The state with only the lanes of the rank of `config`."""
        mine = range(config.rank, self.num_lanes, config.world_size)
        missing = [lane for lane in mine if lane not in self.lanes]
        if missing:
            raise StateError(
                f"data-parallel rank {config.rank} of {config.world_size} needs lanes {missing[:16]}, the state holds "
                f"{sorted(self.lanes)[:16]}: it was saved by one rank of another topology. Merge the states of all "
                "ranks (merge_states) and restore the result on each."
            )
        return dataclasses.replace(self, lanes={lane: self.lanes[lane] for lane in mine})


def num_lanes_after(config: WorkerConfig, num_saved: int) -> int:
    """The lanes of a run restored from a state of `num_saved` lanes: the same number, unless the ranks cannot share
    them equally or `num_lanes` was given. If the number changes, a restore needs the state of all lanes."""
    return config.num_lanes if config.num_lanes_given or num_saved % config.world_size else num_saved


def _check_extras(extras: Mapping[str, Any], where: str) -> None:
    for name, extra in extras.items():
        version = extra.get("version") if isinstance(extra, dict) else None
        if name not in EXTRAS or type(version) is not int or not 0 < version <= EXTRAS[name]:
            raise StateError(
                f"{where} holds extra {name!r} of version {version}, which this release does not know (it knows "
                f"{dict(EXTRAS) or 'none'}); resume with the release that wrote it, or a later one"
            )


def _differences(saved: dict[str, Any], current: dict[str, Any]) -> Iterable[tuple[str, str]]:
    common = dict(saved.get("sources") or []).keys() & dict(current.get("sources") or []).keys()
    for name in [*saved, *(name for name in current if name not in saved)]:
        was, now = saved.get(name), current.get(name)
        if name == "epochs_of_sources":  # an added or missing source is already reported under "sources"
            was, now = ({key: epochs for key, epochs in (of or {}).items() if key in common} for of in (was, now))
        if name != "sources":
            if was != now:
                yield name, f"{name}: the state has {was}, this run has {now}"
            continue
        was_keys, now_keys = dict(was or []), dict(now or [])
        gone = [f"{label} ({key})" for key, label in was_keys.items() if key not in now_keys]
        new = [f"{label} ({key})" for key, label in now_keys.items() if key not in was_keys]
        if gone or new:
            changed = sorted(
                {str(label) for key, label in was_keys.items() if key not in now_keys} & {*now_keys.values()}
            )
            hint = (
                f"; {', '.join(changed)}: the shards, the split, `subset:` or what `where:` chooses differ"
                if changed
                else ""
            )
            yield name, f"sources: gone or changed: {', '.join(gone) or 'none'}; new: {', '.join(new) or 'none'}{hint}"
        elif list(was_keys) != list(now_keys):
            yield name, "sources: the same, in another order"


_UNEVEN_REPETITIONS = (
    ". Or ranks with fewer batches have started the next repetition of a RepeatDataset before the others: with "
    'ends="even" the loader starts it on all ranks at the same step'
)


_OTHER_LISTS = (
    ". If they differ in `forgotten`: a list of forgotten samples was written while the ranks started, and only some "
    "of them saw it; restart all of them from the last checkpoint"
)


def parse_state(data: LoaderState | dict[str, Any]) -> LoaderState:
    """`data` as a state, checked in full if it is plain data.

    Raises:
        StateError: as `LoaderState.from_dict`.
    """
    return data if isinstance(data, LoaderState) else LoaderState.from_dict(data)


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the states that the ranks of a job saved at the same step, in any order.

    TP, CP and PP ranks of one data-parallel rank hold equal copies of the same lanes; one copy is enough.

    Raises:
        StateError: if the states are of different runs or steps, or a lane is missing.
    """
    return merge([LoaderState.from_dict(state) for state in states]).to_dict()


def merge(parts: Sequence[LoaderState]) -> LoaderState:
    """`merge_states` of states that are parsed already."""
    if not parts:
        raise StateError("merge_states: got no state; expected one of every data-parallel rank")
    merged = dataclasses.replace(parts[0], lanes={}, ended=all(part.ended for part in parts))
    same = ["generations", "drawn_before", "extras", "repetition", "next_slot", "epoch_batches"]
    if merged.is_finite:  # near the end, ranks skip lanes that have ended
        same = ["generations", "drawn_before", "extras", "repetition"]
        slots = [part.next_slot for part in parts if not part.ended]
        merged.next_slot = min(slots) if slots else max(part.next_slot for part in parts)
        merged.epoch_batches = max(part.epoch_batches for part in parts)
    for number, part in enumerate(parts):
        part.check(merged.fingerprint)
        for name in same:
            if getattr(part, name) != getattr(merged, name):
                raise StateError(
                    f"merge_states: state number {number} has {name} {getattr(part, name)}, the first one "
                    f"{getattr(merged, name)}: they were not saved at the same step of one run"
                    + (_UNEVEN_REPETITIONS if name == "repetition" else _OTHER_LISTS if name == "extras" else "")
                )
        for lane, state in part.lanes.items():
            if merged.lanes.setdefault(lane, state) != state:
                raise StateError(f"merge_states: two states of lane {lane} differ; they are of different runs or steps")
    merged.check_complete()
    merged.lanes = dict(sorted(merged.lanes.items()))
    return merged
