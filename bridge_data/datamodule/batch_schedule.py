"""The global batch size of each step: constant, or with a ramp at the beginning.

Reads the global batch size, and the ramp to it. Returns the global batch size and the step after a number of consumed
samples. The sizes are those of Megatron's `num_microbatches_calculator`. They depend only on the samples consumed, so a
run can resume at any step on any number of ranks.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

from bridge_data.errors import ConfigError
from bridge_data.order.step_skips import StepSkips


def megatron_has_ramps() -> bool:
    """Whether the installed megatron-core follows a `rampup_batch_size`: from 0.18 on it ignores it."""
    from megatron.core import num_microbatches_calculator  # here: it takes seconds

    return hasattr(num_microbatches_calculator, "RampupBatchsizeNumMicroBatchesCalculator")


@dataclasses.dataclass(frozen=True, slots=True)
class BatchSchedule:
    """`rampup_batch_size` is (first global batch size, increment, samples of the ramp), None for no ramp.

    With packing, samples are packs, here as in Megatron.

    Raises:
        ConfigError: if the ramp does not go from its first size to `global_batch_size` in whole increments, or a size
            is not a multiple of `micro_batch_size`.
    """

    global_batch_size: int
    micro_batch_size: int
    rampup_batch_size: Sequence[int] | None = None

    @classmethod
    def for_ranks(
        cls,
        global_batch_size: int | None,
        micro_batch_size: int,
        rampup_batch_size: Sequence[int] | None,
        num_micro_batches: int,
    ) -> Self:
        """The schedule of a job that may leave the global batch size to us: None is `num_micro_batches` micro-batches.

        Raises:
            ConfigError: also for a ramp to a size that is not given.
        """
        if global_batch_size is None and rampup_batch_size is not None:
            raise ConfigError(
                f"rampup_batch_size={list(rampup_batch_size)} is a ramp to global_batch_size, which is None: set it"
            )
        size = micro_batch_size * num_micro_batches if global_batch_size is None else global_batch_size
        return cls(size, micro_batch_size, rampup_batch_size)

    def __post_init__(self) -> None:
        for name in ("micro_batch_size", "global_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected at least 1")
        if self.global_batch_size % self.micro_batch_size:
            raise ConfigError(
                f"global_batch_size={self.global_batch_size}: expected a multiple of micro_batch_size="
                f"{self.micro_batch_size} times the number of data-parallel ranks"
            )
        if self.rampup_batch_size is not None:
            self._check_ramp(self.rampup_batch_size)

    def _check_ramp(self, ramp: Sequence[int]) -> None:
        got = f"rampup_batch_size={list(ramp)}"
        if len(ramp) != 3 or min(ramp) < 1:
            raise ConfigError(
                f"{got}: expected [first global batch size, increment, samples of the ramp], all positive"
            )
        start, increment, _ = ramp
        way = self.global_batch_size - start
        if way < 1 or way % increment:
            raise ConfigError(
                f"{got} goes from {start} in steps of {increment}, which never reach global_batch_size="
                f"{self.global_batch_size}; the difference must be a multiple of the increment"
            )
        for name, size in (("first size", start), ("increment", increment)):
            if size % self.micro_batch_size:
                raise ConfigError(
                    f"{got}: its {name} {size} is not a multiple of micro_batch_size={self.micro_batch_size}"
                )

    def size_after(self, consumed_samples: int) -> int:
        """The global batch size of the step that begins after `consumed_samples`.

        Source: `RampupBatchsizeNumMicroBatchesCalculator.update` of megatron-core.
        """
        if self.rampup_batch_size is None or consumed_samples > self.rampup_batch_size[2]:
            return self.global_batch_size
        start, increment, num_samples = self.rampup_batch_size
        num_increments = (self.global_batch_size - start) // increment
        return start + int(consumed_samples / (num_samples / num_increments)) * increment

    def step_after(self, consumed_samples: int) -> int:
        """The number of whole steps that take `consumed_samples`."""
        step = consumed = 0
        while consumed < consumed_samples:
            size = self.size_after(consumed)
            if size == self.global_batch_size:
                return step + (consumed_samples - consumed) // size
            consumed += size
            step += consumed <= consumed_samples
        return step

    def micro_batches(self, step: int) -> range:
        """The micro-batches of the job in a step, both counted from 0."""
        consumed = number = 0
        while (size := self.size_after(consumed)) < self.global_batch_size and number < step:
            consumed, number = consumed + size, number + 1
        consumed += (step - number) * size
        first = consumed // self.micro_batch_size
        return range(first, first + self.size_after(consumed) // self.micro_batch_size)

    def step_with(self, micro_batch: int) -> range:
        """The micro-batches of the step that has this one."""
        return self.micro_batches(self.step_after(micro_batch * self.micro_batch_size))

    def skips(self, skip_steps: Sequence[Any]) -> StepSkips | None:
        """The micro-batches of steps that are skipped, from texts such as "1200-1260" and "1300".

        Raises:
            ConfigError: for other texts, or steps that overlap.
        """
        return StepSkips.of_steps(lambda step: self.micro_batches(step).start, skip_steps)

    def num_micro_batches(self, consumed_samples: int, world_size: int) -> int:
        """Micro-batches of each of `world_size` data-parallel ranks in the step after `consumed_samples`.

        Raises:
            ConfigError: if the ranks cannot share them equally.
        """
        size, per_round = self.size_after(consumed_samples), self.micro_batch_size * world_size
        if size % per_round:
            now = "" if size == self.global_batch_size else f" of rampup_batch_size, after {consumed_samples} samples,"
            raise ConfigError(
                f"global_batch_size={size}{now} is not a multiple of micro_batch_size="
                f"{self.micro_batch_size} x {world_size} data-parallel ranks = {per_round}"
            )
        return size // per_round

    def check(self, consumed_samples: int, world_size: int) -> None:
        """Check that `world_size` ranks can share every step after `consumed_samples` equally.

        Raises:
            ConfigError: naming the first that they cannot share.
        """
        while (size := self.size_after(consumed_samples)) < self.global_batch_size:
            self.num_micro_batches(consumed_samples, world_size)
            consumed_samples += size
        self.num_micro_batches(consumed_samples, world_size)
