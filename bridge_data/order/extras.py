"""Extras: what a feature does in the lanes of a run, and keeps in its states. The core calls them and knows none.

A data set has a tuple of `StateExtra`, empty for most runs; each opens a `LaneExtra` in the process of every lane. What
a lane extra saves is a part of the lane's state, and what a state extra keeps is a part of the state of the job, both
under the name of the feature and with the version of what it writes, opaque to everyone else: `extras` is
`{name: {"version": int, "data": plain JSON}}`. So a lane that goes on from a state goes on with its extras.

A feature registers its class under its name (`plugins.TABLE["extras"]`, or the entry points `bridge_data.extras`), so
that a state which holds something of it can be read by a run that has not asked for it. A run asks for one by an option
of `LoaderConfig` whose field has `metadata={"extra": name}`, or by its data (`Source.needed_extras`): see `extras_of`.

When each method is called:

| where | of | method | when |
|---|---|---|---|
| trainer | `StateExtra` | `of_data` | a data set or a loader is made that asks for it |
| | | `recorder` | a loader is made |
| | | `begin` | a run begins, or goes on from a state, maybe twice: what it returns is kept in the state of the job |
| | | `resharded` | after `begin`, if the number of lanes changes: what lanes have is lost, but for what it returns |
| | | `agreed` | ranks compare what they have found |
| | | `gathered` | a state of the whole job is saved |
| | `Recorder` | `begin` | the loader begins at a state, also after an interrupt |
| | | `note`, `save`, `close` | a micro-batch is handed out; a position is saved; the loader ends |
| worker | `StateExtra` | `lane` | a lane is opened |
| | `LaneExtra` | `filter` | samples are drawn, restored or looked ahead for |
| | | `note`, then `save` | each micro-batch is made |
| reports | `StateExtra` | `shown`, `unasked` | of a class, without a run |
| | | `history`, `under` | what lanes left out of a run that has saved a state is looked up |
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from bridge_data.errors import StateError
from bridge_data.extensions import Seam
from bridge_data.order.cursor import SampleRef
from bridge_data.order.row import Ints

if TYPE_CHECKING:
    from bridge_data.order.state import LaneState, LoaderState
    from bridge_data.plan import Source
    from bridge_data.topology import WorkerConfig

logger = logging.getLogger("bridge_data")


class LaneExtra:
    """What a feature does in one lane. A feature overrides what it needs."""

    skips_as: ClassVar[str]
    """The stage under which samples are counted that `filter` leaves out; without a `filter`, it is not needed."""
    reason: ClassVar[str] = ""
    """Why it leaves them out, for messages."""

    def filter(self, refs: Sequence[SampleRef]) -> Sequence[SampleRef]:
        """The samples of `refs` that the lane may make: called with what it draws, and, after a restore, with what
        waits in it, of each sample several times, as by who looks ahead: count in `note`. The others are not read."""
        return refs

    def note(self, index: int, samples: Ints) -> Any:
        """Called with the `samples` of each micro-batch that was made, also if its step is skipped: (samples, 4), of
        each its source, epoch, index and output. `index` is that of the micro-batch in the job. What it returns,
        picklable, comes with the micro-batch to the loader (see `Recorder`)."""

    def save(self) -> Any:
        """Plain JSON for the lane's state; None for nothing. Called with each micro-batch: if it has changed, it is
        another object than before."""


class ShownExtra(NamedTuple):
    """An extra in a report on a state."""

    heading: str
    """One word."""
    facts: Any
    """Plain JSON; None if the run does without it."""
    lines: Sequence[str]


class StateExtra:
    """A feature of a run, sent to its workers with the data set. It overrides what it needs."""

    name: ClassVar[str]
    version: ClassVar[int]
    asked_by: ClassVar[str] = ""
    """The setting with which a run asks for it, for messages."""
    leaves_out: ClassVar[bool] = False
    """Whether its lanes leave out samples: `of_data` knows which are left out now, `history` and `under` which were in
    a run that has saved a state."""

    @classmethod
    def of_data(cls, sources: Sequence[Source], source_ids: Sequence[str]) -> Self:
        """The extra of a run over these sources, which states call by these ids."""
        return cls()

    @classmethod
    def unasked(cls) -> Self | None:
        """What begins where a run that has not asked for the feature goes on from a state that has something of it: it
        keeps what the state of the job has. None: the run drops that, too, and says so. What lanes have is dropped."""
        return None

    def lane(self, number: int, state: LoaderState) -> LaneExtra:
        """What it does in lane `number`, from its position in `state` on, which may lack the lane: it begins then."""
        return LaneExtra()

    def recorder(self, asked: Any, config: WorkerConfig) -> Recorder | None:
        """What it does in the loader of a rank; `asked` is the value of the loader's option that asks for it, None if
        none does. None: nothing.

        Raises:
            ConfigError: if the value cannot be used.
        """
        return None

    def begin(self, state: LoaderState) -> Any:
        """What the state of the job keeps from here on, where a run begins, or goes on from `state`; None for nothing.

        Raises:
            StateError: if the run cannot go on from it.
        """
        return data_of(state.extras, self)

    def resharded(self, state: LoaderState) -> Any:
        """What the state of the job keeps, as for `begin`, if its lanes are resharded: what is in the lanes of the
        whole `state` ends here."""
        return data_of(state.extras, self)

    def agreed(self) -> Any:
        """Plain JSON that must be equal on all ranks of a run."""

    @classmethod
    def shown(cls, state: LoaderState) -> ShownExtra | None:
        """What it is called in reports on a state, and what of it is in this one; None if there is nothing to say."""
        return None

    @classmethod
    def history(cls, state: LoaderState) -> Sequence[tuple[int, Any]]:
        """(first micro-batch, what applied from there on, for `under`) in the run that saved `state`, in ascending
        order."""
        return ()

    @classmethod
    def under(cls, sources: Sequence[Source], source_ids: Sequence[str], data: Any) -> Self | None:
        """What left out samples while `data` of the history applied; None if nothing did.

        Raises:
            StateError: if these sources do not tell.
        """
        return None

    def gathered(self, state: LoaderState) -> None:
        """Called with the state of the whole job where one is gathered to be saved."""


EXTRAS = Seam[type[StateExtra]]("extras")
"""By the name of the feature."""


def extras_of(
    asked: Mapping[str, str], sources: Sequence[Source], source_ids: Sequence[str], own: Sequence[StateExtra] = ()
) -> tuple[StateExtra, ...]:
    """The `own` extras of a run, and those `asked` for that are not among them: by name, what needs each.

    Raises:
        ConfigError: if one is not installed.
    """
    known = {extra.name for extra in own}
    kinds = [EXTRAS.get(name, needed_by) for name, needed_by in asked.items() if name not in known]
    return (*own, *(kind.of_data(sources, source_ids) for kind in kinds))


def shown_extras(state: LoaderState) -> list[ShownExtra]:
    """What the features that are installed say of a state."""
    found = (EXTRAS.get(name, "the state").shown(state) for name in (*EXTRAS.names, *EXTRAS.names_of_others))
    return [one for one in found if one is not None]


def data_of(extras: Mapping[str, Any], extra: StateExtra | type[StateExtra]) -> Any:
    """What the `extras` of a state, or of a lane's state, have of a feature; None if nothing.

    Raises:
        StateError: for another version.
    """
    saved = extras.get(extra.name)
    if saved is None:
        return None
    if saved["version"] != extra.version:
        raise _unknown(extra.name, saved["version"], f"version {extra.version}")
    return saved["data"]


def with_data(extras: Mapping[str, Any], extra: StateExtra | type[StateExtra], data: Any) -> dict[str, Any]:
    """`extras` with this `data` of a feature, without any if it is None."""
    others = {name: saved for name, saved in extras.items() if name != extra.name}
    return others if data is None else {**others, extra.name: {"version": extra.version, "data": data}}


def begun(state: LoaderState, extras: Sequence[StateExtra]) -> LoaderState:
    """`state` of a run that begins with it, or goes on from it, with `extras`. What it has of other features ends here,
    with a warning, unless they go on with it unasked.

    Raises:
        StateError: if one of the features cannot go on, or is not installed.
    """
    own = {extra.name: extra for extra in extras}
    saved: dict[str, Any] = {}
    for of_lane in state.lanes.values():
        saved |= of_lane.get("extras", {})
    saved |= state.extras
    for name, part in saved.items():
        if name in own:
            continue
        found = EXTRAS.find(name)
        if found is None:
            raise _unknown(name, part["version"], "none: no plug-in of this name is installed")
        data_of({name: part}, found)
        if (unasked := found.unasked()) is not None:
            own[name] = unasked
            continue
        setting = f" ({found.asked_by})" if found.asked_by else ""
        logger.warning("extras.%s: the state has it and this run does not ask for it%s: it ends here", name, setting)
    kept: dict[str, Any] = {}
    for extra in own.values():
        kept = with_data(kept, extra, extra.begin(state))
    asked = {extra.name for extra in extras}
    lanes = {lane: _only(of_lane, asked) if "extras" in of_lane else of_lane for lane, of_lane in state.lanes.items()}
    return dataclasses.replace(state, extras=kept, lanes=lanes)


def _only(of_lane: LaneState, names: Collection[str]) -> LaneState:
    left = of_lane.copy()
    left["extras"] = {name: data for name, data in of_lane["extras"].items() if name in names}
    if not left["extras"]:
        del left["extras"]
    return left


def resharded_extras(state: LoaderState, extras: Sequence[StateExtra]) -> dict[str, Any]:
    """The extras of the job after its lanes in the whole `state` are resharded."""
    kept: dict[str, Any] = dict(state.extras)
    for extra in extras:
        kept = with_data(kept, extra, extra.resharded(state))
    return kept


def _unknown(name: str, version: Any, known: str) -> StateError:
    return StateError(
        f"extras.{name}: version {version!r}, which this release does not know (it knows {known}); resume with the "
        "release that wrote it, or a later one"
    )


class LaneExtras:
    """All extras of one lane."""

    def __init__(self, extras: Sequence[StateExtra], number: int, state: LoaderState) -> None:
        self._extras = [(extra, extra.lane(number, state)) for extra in extras]
        self._noting = [(extra, own) for extra, own in self._extras if type(own).note is not LaneExtra.note]
        self._filtering = [own for _, own in self._extras if type(own).filter is not LaneExtra.filter]
        self.want_samples = bool(self._noting)
        """Whether one of them looks at what `note` is called with."""
        self.may_leave_out = bool(self._filtering)
        """Whether one of them may leave out samples."""
        self._last: list[Any] = []
        self._saved: dict[str, Any] = {}

    def filter(self, refs: Sequence[SampleRef]) -> Sequence[SampleRef]:
        """The samples that all let through."""
        for own in self._filtering:
            refs = own.filter(refs)
        return refs

    def is_left_out(self, ref: SampleRef) -> bool:
        """Whether a sample is not let through."""
        return not self.filter((ref,))

    def left_out(self, refs: Sequence[SampleRef]) -> list[tuple[SampleRef, LaneExtra]]:
        """The samples that are not let through, each with the first that does not."""
        found = []
        for own in self._filtering:
            kept = own.filter(refs)
            if len(kept) < len(refs):
                is_kept = {*kept}
                found += [(ref, own) for ref in refs if ref not in is_kept]
            refs = kept
        return found

    def note(self, index: int, samples: Ints) -> dict[str, Any]:
        """What comes with a micro-batch to the loader, by the name of the feature."""
        noted = {extra.name: own.note(index, samples) for extra, own in self._noting}
        return {name: value for name, value in noted.items() if value is not None}

    def save(self) -> dict[str, Any]:
        """The extras of the lane's state: the same object as before, if nothing has changed."""
        now = [own.save() for _, own in self._extras]
        if now != self._last:
            self._last, self._saved = now, {}
            for (extra, _), data in zip(self._extras, now, strict=True):
                self._saved = with_data(self._saved, extra, data)
        return self._saved


class Recorder:
    """What a feature does in the loader of one rank, with what its lane extras noted. It overrides what it needs."""

    def begin(self, state: LoaderState) -> None:
        """The rank goes on from `state`."""

    def note(self, index: int, noted: Any) -> None:
        """The rank gets the micro-batch of this index, with what the lane extra of this feature noted; it may be told
        the last one twice."""

    def save(self) -> None:
        """The position of the rank is saved."""

    def close(self) -> None:
        """The loader ends."""
