"""The ledger of a run: the sums of `ledger_sums` in the states, and a file of each rank (`ledger_files`).

Kept only by runs that ask for it. The state of a lane has the sums over what that made since the lanes were assigned,
`[samples, positioned, unpositioned]`, and the state of the job those from before, `[since, samples, positioned,
unpositioned]`, sums as 32 hexadecimal digits. `since` is the first micro-batch that is counted: above 0 if the run
began without a ledger.
"""

import logging
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from bridge_data.order.extras import LaneExtra, Recorder, ShownExtra, StateExtra, data_of
from bridge_data.order.row import Ints
from bridge_data.order.state import LoaderState
from bridge_data.order.step_skips import StepSkips
from bridge_data.plugins.ledger.ledger_sums import LedgerSums, packed_references, sums_of_batch
from bridge_data.topology import WorkerConfig

logger = logging.getLogger("bridge_data")


class Ledger(StateExtra):
    """The ledger of a run over the sources of these ids."""

    name: ClassVar[str] = "ledger"
    version: ClassVar[int] = 2
    asked_by: ClassVar[str] = "ledger_path"

    def __init__(self, source_ids: Sequence[str]) -> None:
        self._source_ids, self._last_line = [*source_ids], ""

    @classmethod
    def of_data(cls, sources: Sequence[Any], source_ids: Sequence[str]) -> Self:
        return cls(source_ids)

    def lane(self, number: int, state: LoaderState) -> LaneExtra:
        return _LaneLedger(self._source_ids, sums_of_lane(state, number), state.repetition, state.skips)

    def recorder(self, asked: Any, config: WorkerConfig) -> Recorder | None:
        if not asked:
            return None
        from bridge_data.plugins.ledger.ledger_files import LedgerFile  # here: lanes write no file

        return LedgerFile(asked, config)

    def begin(self, state: LoaderState) -> Any:
        return data_of(state.extras, self) or LedgerSums(since=state.micro_batch_index).words()

    def resharded(self, state: LoaderState) -> Any:
        return None if (sums := sums_of(state)) is None else sums.words()

    @classmethod
    def shown(cls, state: LoaderState) -> ShownExtra:
        sums = sums_of(state)
        lines = ["none: the run had no ledger_path" if sums is None else str(sums)]
        return ShownExtra("ledger", None if sums is None else sums.to_dict(), lines)

    def gathered(self, state: LoaderState) -> None:
        """Log the sums of the job, unless they are as logged before."""
        if logger.isEnabledFor(logging.INFO) and (line := ledger_line(state)) != self._last_line:
            logger.info("%s", line)
            self._last_line = line


class _LaneLedger(LaneExtra):
    """The sums of one lane, over what it made and a rank gets."""

    def __init__(self, source_ids: Sequence[str], sums: LedgerSums, repetition: int, skips: StepSkips | None) -> None:
        self._source_ids, self._sums, self._repetition, self._skips = source_ids, sums, repetition, skips or ()

    def note(self, index: int, samples: Ints) -> bytes:
        if index not in self._skips:
            self._sums = self._sums.plus(sums_of_batch(index, samples, self._source_ids, self._repetition))
        return packed_references(samples)

    def save(self) -> Any:
        return self._sums.words()[1:]


def sums_of_lane(state: LoaderState, lane: int) -> LedgerSums:
    """The sums over what a lane made since the lanes were assigned."""
    saved = data_of(state.lanes.get(lane, {}).get("extras", {}), Ledger)
    return LedgerSums() if saved is None else LedgerSums.of_words(saved)


def sums_of(state: LoaderState) -> LedgerSums | None:
    """The sums over all that the lanes in a state handed out, and all before; None if the run kept no ledger."""
    saved = data_of(state.extras, Ledger)
    if saved is None:
        return None
    sums = LedgerSums.of_words(saved)
    for lane in state.lanes:
        sums = sums.plus(sums_of_lane(state, lane))
    return sums


def ledger_line(state: LoaderState) -> str:
    """The ledger of a whole state as one line: equal lines, equal data."""
    return f"data ledger at micro-batch {state.micro_batch_index}: {sums_of(state)}"
