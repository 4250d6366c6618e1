"""The validation loader as trainers use it: every evaluation begins at the first sample.

Enters: a loader over ordered data. Leaves: its batches; one pass at a time for Lightning, endlessly for Megatron, which
only calls `next`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from bridge_data.datamodule.sharing import RankLoader
from bridge_data.errors import DatasetError
from bridge_data.loader.metrics import LoaderMetrics


class ValidationDataloader(Iterator[Any]):
    """The batches of a finite loader; `iter` and `restart` go to the first one.

    With `cyclic`, it also starts over after the last batch, after `eval_batches` draws (None: no limit), and when there
    was training in between: when `num_trained` has changed since the last draw.

    Raises:
        DatasetError: from `next`, if `cyclic` and there is no batch for this rank.
    """

    def __init__(
        self,
        dataloader: RankLoader,
        *,
        cyclic: bool,
        eval_batches: int | None = None,
        num_trained: Callable[[], int] = int,
    ) -> None:
        self.dataloader = dataloader
        self.cyclic = cyclic
        self._eval_batches, self._num_trained = eval_batches, num_trained
        self._trained_before = num_trained()
        self._start = dataloader.save_state_rank()
        self._pass = iter(dataloader)
        self._num_drawn = self._num_in_pass = 0

    def __iter__(self) -> "ValidationDataloader":
        self.restart()
        return self

    def __next__(self) -> Any:
        trained = self._num_trained()
        if self.cyclic and (self._num_drawn == self._eval_batches or trained != self._trained_before):
            self.restart()
        self._trained_before = trained
        try:
            batch = next(self._pass)
        except StopIteration:
            if not self.cyclic:
                raise
            batch = self._first_again()
        self._num_drawn += 1
        self._num_in_pass += 1
        return batch

    def restart(self) -> None:
        """Go to the first batch: a new evaluation begins."""
        self._num_drawn = 0
        self._begin_pass()

    def metrics(self, *, of_job: bool = False) -> LoaderMetrics:
        """What was counted since this loader was made; `of_job`, of all data-parallel ranks, which must all call it."""
        return self.dataloader.metrics(of_job=of_job)

    def close(self) -> None:
        """End the worker processes; delivered batches stay valid."""
        self.dataloader.close()

    def _begin_pass(self) -> None:
        if self._num_in_pass:  # what was prefetched at the start is still good
            self.dataloader.restore_state_rank(self._start)
        self._pass, self._num_in_pass = iter(self.dataloader), 0

    def _first_again(self) -> Any:
        self._begin_pass()
        try:
            return next(self._pass)
        except StopIteration:
            config = self.dataloader.dataset.worker_config
            raise DatasetError(
                f"the validation data has no batch for data-parallel rank {config.rank} of {config.world_size}: it has "
                "fewer micro-batches than there are ranks. Give it more samples, or a smaller micro_batch_size"
            ) from None
