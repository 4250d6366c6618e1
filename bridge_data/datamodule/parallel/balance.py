"""Micro-batches of a step on the ranks that have room for them.

    lanes ─▶ loader ─▶ thread: cost of n micro-batches ─▶ all_gather ─▶ assign ─▶ point to point ─▶ queue ─▶ next()

Enters: this data-parallel rank's loader; the cost of a micro-batch; how many of them each rank takes for a step.
Leaves: as many micro-batches a step, not all of them its own. Guarantees: the step as a whole has the micro-batches
that it would have had, each once; order and state are those of the lanes, whatever was exchanged, so a run goes on with
the same global batches on other ranks, balanced or not.

A step is read, weighed and exchanged while the trainer works on the one before. Its micro-batches are drawn together,
so a state that is saved within a step is that at its beginning: restored, the step comes as a whole, and nothing is
lost. Where finite data ends, ranks may have unequal numbers of micro-batches left: then each takes its own.
"""

import contextlib
import functools

import torch

from bridge_data.datamodule.parallel.arrivals import CLOSED, END, ERROR, Arrival, Arrivals
from bridge_data.datamodule.parallel.background import BackgroundLoader
from bridge_data.datamodule.parallel.exchange import BalanceReport, Balancing, Exchange, Step
from bridge_data.datamodule.parallel.groups import Peers
from bridge_data.errors import ConfigError, WorkerError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader import SavableDataLoader


class BalancedLoader(BackgroundLoader):
    """The share of this rank in each step, of what its own `loader` of `dataset` reads and what the other ranks read.
    `loader` belongs to this object from now on.

    All data-parallel ranks make one, with the same settings, call `restore_state_rank` and `close` alike, and draw
    equally many batches.

    Raises:
        ConfigError: if the ranks of `loader` are made to end alike (`ends="even"`), which is for validation.
    """

    def __init__(
        self,
        dataset: LaneDataset,
        loader: SavableDataLoader,
        peers: Peers,
        balancing: Balancing,
        *,
        pin_memory: bool = False,
    ) -> None:
        if loader.config.ends == "even":
            raise ConfigError('balance is for training, ends="even" for validation, which is never balanced: leave one')
        self.report = BalanceReport()
        inbox = Arrivals(balancing.max_step_size)
        pin = pin_memory and torch.cuda.is_available()
        exchange = Exchange(peers, dataset.worker_config.rank, balancing, self.report, pin)
        super().__init__(dataset, loader, inbox, functools.partial(_run, exchange, inbox, loader), pin=False)


def _run(exchange: Exchange, inbox: Arrivals, loader: SavableDataLoader) -> None:
    try:
        with contextlib.closing(loader):
            _balance(exchange, inbox, loader)
    except Exception as error:
        failure = WorkerError(f"micro-batches can no longer be exchanged between data-parallel ranks: {error}")
        failure.__cause__ = error
        inbox.fail(failure)


def _balance(exchange: Exchange, inbox: Arrivals, loader: SavableDataLoader) -> None:
    """The thread: step by step, in one gathering each, which also tells who has been restored, has failed or is closed.

    The ranks restore at different moments. A step for which not all of them had been restored equally often counts for
    nothing; who lags behind waits for its restore. From a step on that a rank cannot fill, for its data has ended, each
    goes on alone to its own end, and they meet again for the first step of the next pass.
    """
    generation, reading, is_alone = 0, iter(loader), False
    step: Step | None = None
    while not inbox.closed:
        if inbox.generation != generation:
            generation, start = inbox.generation, inbox.start
            assert start is not None
            loader.restore_state_rank(start)
            reading, is_alone, step = iter(loader), False, None
        if step is None:
            step = exchange.read(loader, reading)
        if not is_alone:
            rows = exchange.gather(generation, step)
            closed = [rank for rank, row in enumerate(rows) if row.kind == CLOSED]
            if closed:
                inbox.fail(WorkerError(f"data-parallel rank {closed[0]}, which shares steps with this one, has closed"))
                return
            newest = max(row.generation for row in rows)
            if generation < newest:
                _stop(inbox, generation, WorkerError("other ranks went to a saved position, this one did not"))
            if any(row.generation < newest for row in rows):
                continue
            failed = [rank for rank, row in enumerate(rows) if row.kind == ERROR]
            if failed:
                told = WorkerError(f"data-parallel rank {failed[0]} failed to read its part of a step; see its error")
                _stop(inbox, generation, step.error or told)
                step = None
                continue
            is_alone = any(row.count < step.size for row in rows)
            if not is_alone:
                exchange.exchange(step, rows)
        for item in step.items:
            inbox.put(generation, item)
        if step.error is not None:
            _stop(inbox, generation, step.error)
        elif step.kind == END:
            inbox.put(generation, Arrival(END, None, step.end))
            reading, is_alone = iter(loader), False
        step = None
    exchange.gather(generation, None)


def _stop(inbox: Arrivals, generation: int, error: Exception) -> None:
    """Hand on an error; there is nothing to do until the next restore."""
    inbox.put(generation, Arrival(ERROR, error, None))
    inbox.wait_for_restore(generation)
