"""A loader for training code that saves and restores each data-parallel rank by itself, as Megatron-LM's does.

It takes what a `SavableDataLoader` takes, and gives the same batches. What such code saves restores on any number of
ranks. After a state was refused there are no batches, though such code goes on after any error.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

from bridge_data.datamodule.shared_states import distribute_state_if_any, gather_whole_state, is_joined
from bridge_data.errors import BridgeDataError, StateError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.loader import SavableDataLoader
from bridge_data.order.state import LoaderState
from bridge_data.run_options import LoaderConfig
from bridge_data.topology import WorkerConfig

logger = logging.getLogger("bridge_data")

_SLOW_EXCHANGE_S = 60.0


class GatheringLoader(SavableDataLoader):
    """A loader for training code that saves a file for each data-parallel rank, and restores each rank from the file of
    its number, if there is one, whatever the number of ranks, as that of Megatron-LM and Megatron-Bridge does.

    `save_state_rank` returns the state of the whole job on rank 0, and on the others that of their own lanes.
    What is restored before the first batch is settled when that is taken: if one rank has the whole state, all get
    what they lack, also those that had no file. All ranks must save together, and take their first batch together. If
    a state is refused, no batch is handed out until another one is restored, as callers that go on regardless
    would start over with the first sample in silence.

    Raises:
        StateError: with the first batch, on every rank, if the states of the ranks do not fit together; with each
            batch, if a state was refused.
    """

    def __init__(self, dataset: LaneDataset, config: LoaderConfig | None = None) -> None:
        super().__init__(dataset, config)
        self._is_alone, self._is_settled = not is_joined(dataset.worker_config), False
        if self._is_alone and dataset.worker_config.world_size > 1:
            logger.warning(
                "this rank cannot gather the states of %d data-parallel ranks: torch.distributed has no group with "
                "these ranks. Each file then holds the position of its rank alone. Make the loader after "
                "init_process_group, with WorkerConfig(data_parallel_group=...)",
                dataset.worker_config.world_size,
            )
        self._given: LoaderState | dict[str, Any] | None = None
        self._is_strict = True
        self._refused: StateError | None = None

    def _before_take(self) -> None:
        self._settle()
        super()._before_take()

    def save_state_rank(self) -> dict[str, Any]:
        """The state of the whole job on rank 0, on the others that of their own lanes. All ranks must call it.

        Raises:
            StateError: on every rank, if they are not at the same step, or if a state was refused.
        """
        own = self.snapshot()
        whole: LoaderState = (
            own
            if self._is_alone
            else self._together(functools.partial(gather_whole_state, extras=self.dataset.extras), own)
        )
        return whole.to_dict()

    def snapshot(self) -> LoaderState:
        self._settle()
        return super().snapshot()

    def restore_state_rank(self, state: LoaderState | dict[str, Any] | None, *, strict: bool = True) -> None:
        """Go to a saved position, of this rank or of the whole job. Before the first batch of several ranks, it may
        lack lanes that another rank has; None: this rank has no state.

        Raises:
            StateError: if the state is of other data or settings, or lacks lanes and there is no other rank to ask.
        """
        self._refused = None
        if self._is_settled or self._is_alone:
            self._restore(state, strict=strict)
        else:
            self._given, self._is_strict = state, strict

    state_dict, load_state_dict = save_state_rank, restore_state_rank

    def _settle(self) -> None:
        """Go to what was restored, once; raise if that was refused."""
        if self._refused is not None:
            raise self._refused
        if self._is_settled or self._is_alone:
            return
        try:
            state = self._together(distribute_state_if_any, self._given)
        except StateError as error:
            raise self._refuse(error) from error
        self._is_settled, self._given = True, None
        self._restore(state, strict=self._is_strict)

    def _restore(self, state: LoaderState | dict[str, Any] | None, *, strict: bool) -> None:
        try:
            if state is not None:
                super().restore_state_rank(state, strict=strict)
        except BridgeDataError as error:
            raise self._refuse(error) from error

    def _refuse(self, error: BridgeDataError) -> StateError:
        self._refused = StateError(
            f"{error}. There are no batches until a state has been restored: they would begin with the first sample, "
            "and repeat what the run has seen. To start over, restore None (with Megatron-LM or Megatron-Bridge, move "
            "the files train_dataloader_dprank*.pt of this iteration away)"
        )
        return self._refused

    def _together(self, exchange: Callable[[Any, WorkerConfig], Any], state: Any) -> Any:
        """What `exchange` returns on all ranks; if others keep this one waiting, a warning says who must call what."""
        config = self.dataset.worker_config
        message = (
            "data-parallel rank %d has waited %.0f s for the other %d to save, or to take their first batch: after "
            "replace_energon() all data-parallel ranks must do both together, so that rank 0 saves the state of all. "
            "If they do not, call replace_energon(gathers_states=False)"
        )
        waiting = threading.Timer(
            _SLOW_EXCHANGE_S, logger.warning, (message, config.rank, _SLOW_EXCHANGE_S, config.world_size - 1)
        )
        waiting.daemon = True
        waiting.start()
        try:
            return exchange(state, config)
        finally:
            waiting.cancel()
