"""The state of a loader: how far each lane has come, and which run the numbers belong to.

Enters: lane states and the fingerprint of the run. Leaves: one plain dict of int, str, list and dict, for
`json.dumps` or `torch.load(weights_only=True)`. Guarantee: a state is restored only where it means the same samples.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self, TypeAlias

from bridge_data.errors import StateError
from bridge_data.order.state_check import check_structure
from bridge_data.topology import WorkerConfig

FORMAT = "bridge_data.loader"
VERSION = 2
"""The version of the order and of this format; a change of either makes a new one."""

EXTRAS: Mapping[str, int] = {}
"""The extras that this release knows, each with the newest version of it.

An extra is `{name: {"version": int, "data": ...}}` under `extras`, of the whole state or of a lane, beyond what every
state holds. A release that does not know the name refuses the state, rather than losing what it says.
"""


LaneState: TypeAlias = dict[str, Any]
Generation: TypeAlias = tuple[int, list[list[int]]]


@dataclasses.dataclass(slots=True)
class LoaderState:
    """Where some lanes of a run stand.

    `generations` holds a `[num_lanes, [[chunk_size, block_size, window_size, first_epoch] of each source]]` for every
    re-deal that some lane's inbox still refers to, the current one last (in validation `[num_lanes, [[first block]]]`);
    `next_slot` is the first slot of the job that has not been served by every rank; `lanes` has the state of each lane,
    `{}` where it has not begun. `drawn_before` is how many samples the job had drawn when it was last re-dealt, since
    which lanes count their draws: schedules go by it. `epoch_batches` counts the batches of each rank in the virtual
    epoch in progress; `ended` says that the pass over finite data is over, so that what is restored is the beginning of
    the next one. `extras` is what `EXTRAS` says; a lane's state may hold extras of its own.
    """

    fingerprint: dict[str, Any]
    generations: list[Generation]
    next_slot: int
    lanes: dict[int, LaneState]
    drawn_before: int = 0
    epoch_batches: int = 0
    ended: bool = False
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_lanes(self) -> int:
        """The lanes of the whole job."""
        return self.generations[-1][0]

    @property
    def is_whole(self) -> bool:
        """Whether every lane of the job is here."""
        return len(self.lanes) == self.num_lanes

    @property
    def is_finite(self) -> bool:
        """Whether the run that it belongs to comes to an end of its data."""
        of = self.fingerprint
        return of.get("order") == "ordered" or of.get("repeat") is False or of.get("max_micro_batches") is not None

    def to_dict(self) -> dict[str, Any]:
        """The state as plain data."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "generations": [list(generation) for generation in self.generations],
            "next_slot": self.next_slot,
            "drawn_before": self.drawn_before,
            **({"epoch_batches": self.epoch_batches} if self.epoch_batches else {}),
            **({"ended": True} if self.ended else {}),
            "lanes": {str(lane): state for lane, state in self.lanes.items()},
            **({"extras": self.extras} if self.extras else {}),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The state that `to_dict` wrote.

        Raises:
            StateError: if `data` is not a state of this format and version, naming the field where it is damaged, or
                holds extras of an unknown name.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = f"a dict with {sorted(map(str, data))[:6]}" if isinstance(data, dict) else type(data).__name__
            raise StateError(
                f"not a loader state of bridge_data, of format {FORMAT!r}: got {found}. States of other loaders "
                "(Energon among them) mean something else and cannot be restored; start the data from the beginning, "
                "or resume with that loader."
            )
        if data.get("version") != VERSION:
            raise StateError(
                f"the loader state is of format {data.get('version')} of the order, this release reads format "
                f"{VERSION}: the same cursors mean other samples. Begin the data anew (restore the model without the "
                "state of its data), or resume with the release that wrote it."
            )
        check_structure(data)
        lanes = {int(lane): state for lane, state in data["lanes"].items()}
        extras = data.get("extras", {})
        _check_extras(extras, "the loader state")
        for lane, state in lanes.items():
            _check_extras(state.get("extras", {}), f"the state of lane {lane}")
        generations = [(num_lanes, geometry) for num_lanes, geometry in data["generations"]]
        since = data["drawn_before"], data.get("epoch_batches", 0), data.get("ended", False)
        return cls(data["fingerprint"], generations, data["next_slot"], lanes, *since, extras)

    def check(self, fingerprint: dict[str, Any], tolerated: Collection[str] = ()) -> None:
        """See that the state belongs to a run with `fingerprint`, but for the items named in `tolerated`.

        Raises:
            StateError: naming every difference.
        """
        differences = [text for name, text in self.differences(fingerprint) if name not in tolerated]
        if differences:
            raise StateError(
                "the saved state belongs to other data or settings:\n  " + "\n  ".join(differences) + "\n"
                "Its cursors would point to other samples. Restore the settings, or start the data from the beginning."
            )

    def differences(self, fingerprint: dict[str, Any]) -> list[tuple[str, str]]:
        """(item, what the state has and what `fingerprint` has) for each item that differs in meaning."""
        return list(_differences(self.fingerprint, fingerprint))

    def check_complete(self) -> None:
        """See that every lane of the job is here.

        Raises:
            StateError: naming the lanes that are not.
        """
        missing = [lane for lane in range(self.num_lanes) if lane not in self.lanes]
        if missing:
            raise StateError(
                f"the state lacks lanes {missing[:16]} of {self.num_lanes}; merge the states of all data-parallel "
                "ranks (merge_states), or give them all"
            )

    def of_rank(self, config: WorkerConfig) -> Self:
        """The lanes that a rank of `config` serves.

        Raises:
            StateError: if they are not all here.
        """
        mine = range(config.rank, self.num_lanes, config.world_size)
        missing = [lane for lane in mine if lane not in self.lanes]
        if missing:
            raise StateError(
                f"data-parallel rank {config.rank} of {config.world_size} needs lanes {missing[:16]}, the state holds "
                f"{sorted(self.lanes)[:16]}: it was saved by one rank of another topology. Merge the states of all "
                "ranks (merge_states) and restore the result on each."
            )
        return dataclasses.replace(self, lanes={lane: self.lanes[lane] for lane in mine})


def _check_extras(extras: Mapping[str, Any], where: str) -> None:
    for name, extra in extras.items():
        version = extra.get("version") if isinstance(extra, dict) else None
        if name not in EXTRAS or not isinstance(version, int) or version > EXTRAS[name]:
            raise StateError(
                f"{where} holds extra {name!r} of version {version}, which this release does not know (it knows "
                f"{dict(EXTRAS) or 'none'}); resume with the release that wrote it, or a later one"
            )


def _differences(saved: dict[str, Any], current: dict[str, Any]) -> Iterable[tuple[str, str]]:
    common = dict(saved.get("sources") or []).keys() & dict(current.get("sources") or []).keys()
    for name in [*saved, *(name for name in current if name not in saved)]:
        was, now = saved.get(name), current.get(name)
        if name == "epochs_of_sources":  # that of a source which only one of them has is no difference of its own
            was, now = ({key: epochs for key, epochs in (of or {}).items() if key in common} for of in (was, now))
        if name != "sources":
            if was != now:
                yield name, f"{name}: the state has {was}, this run has {now}"
            continue
        was_keys, now_keys = dict(was or []), dict(now or [])
        gone = [f"{label} ({key})" for key, label in was_keys.items() if key not in now_keys]
        new = [f"{label} ({key})" for key, label in now_keys.items() if key not in was_keys]
        if gone or new:
            yield name, f"sources: gone or changed: {', '.join(gone) or 'none'}; new: {', '.join(new) or 'none'}"
        elif list(was_keys) != list(now_keys):
            yield name, "sources: the same, in another sequence"


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One state with the lanes of all `states`, which the ranks of a job saved at the same step; in any order.

    Ranks that share a data-parallel rank hold equal copies of the same lanes.

    Raises:
        StateError: if they are of different runs or steps, contradict each other, or lack a lane.
    """
    if not states:
        raise StateError("merge_states: got no state; expected one of every data-parallel rank")
    parts = [LoaderState.from_dict(state) for state in states]
    merged = dataclasses.replace(parts[0], lanes={}, ended=all(part.ended for part in parts))
    same = ["generations", "drawn_before", "extras", "next_slot", "epoch_batches"]
    if merged.is_finite:  # near its end, ranks pass over lanes that have ended
        same = ["generations", "drawn_before", "extras"]
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
                )
        for lane, state in part.lanes.items():
            if merged.lanes.setdefault(lane, state) != state:
                raise StateError(f"merge_states: two states of lane {lane} differ; they are of different runs or steps")
    merged.check_complete()
    merged.lanes = dict(sorted(merged.lanes.items()))
    return merged.to_dict()
