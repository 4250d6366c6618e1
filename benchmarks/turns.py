"""What a part of the loader costs: CPU time with it over that without, the loaders side by side.

Enters: loaders that read the same samples in the same order, and variants, each of which takes something out of the
package while it is measured. Leaves: for each variant the median of its ratios to the first one, with the interval that
90 of 100 such medians are in, by resampling the rounds. In a round each variant has a slice of batches; which begins
rotates. Loaders in this process rotate among the variants, so that what differs between two loaders (where their memory
is) does not count. CPU time is that of the process and of the loader's workers, so other work matters less.
"""

import contextlib
import dataclasses
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

from bridge_data import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.loader.loader import SavableDataLoader

ROOT = Path(__file__).parents[1]
BATCH_SIZE = 32

Replaced: TypeAlias = tuple[Any, str, Any]
"""Whose attribute, its name, and what it is replaced by."""


class Plain(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Leaves texts as they are, and decodes images to uint8. Processes that it is unpickled in, the workers, have
    `replaced()` replaced for good."""

    decoder = SampleDecoder(image_decode="torchrgb8")

    def __init__(self, replaced: Callable[[], Sequence[Replaced]] = tuple) -> None:
        super().__init__()
        self.replaced = replaced

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for owner, name, value in self.replaced():
            setattr(owner, name, value)


def loader_of(folder: Path, num_workers: int = 0, encoder: Plain | None = None) -> SavableDataLoader:
    """A loader of the data set in `folder`."""
    dataset = get_train_dataset(
        folder / "tars",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        batch_size=BATCH_SIZE,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        task_encoder=encoder or Plain(),
    )
    return get_savable_loader(dataset)


@contextlib.contextmanager
def replacing(replaced: Sequence[Replaced]) -> Iterator[None]:
    """Replace these in this process."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slices:
    """How much is measured: rounds, and batches of a slice."""

    num_rounds: int
    num_batches: int


def measure(
    folder: Path, variants: Mapping[str, Callable[[], Sequence[Replaced]]], slices: Slices, num_workers: int = 0
) -> dict[str, dict[str, Any]]:
    """The ratio of each variant to the first one, with `low` and `high`, and its `us_per_sample`."""
    names, times = list(variants), []
    with contextlib.ExitStack() as stack:
        loaders = [
            stack.enter_context(loader_of(folder, num_workers, Plain(replaced) if num_workers else None))
            for replaced in variants.values()
        ]
        streams: list[Iterator[Any]] = [iter(loader) for loader in loaders]
        for loader, stream in zip(loaders, streams, strict=True):
            next(stream)
            loader.wait_for_workers()
        spent = [cpu_s(loader) for loader in loaders]
        for number in range(slices.num_rounds + 2):
            found = {}
            for turn in range(len(names)):
                at = (turn + number) % len(names)  # which variant
                which = at if num_workers else turn  # and which loader
                with replacing(variants[names[at]]()):
                    before = time.process_time()
                    for _ in range(slices.num_batches):
                        next(streams[which])
                    own = time.process_time() - before
                # Workers go on when their slice is over: what they do then counts for their next slice.
                of_workers, spent[which] = -spent[which], cpu_s(loaders[which])
                found[names[at]] = own + of_workers + spent[which]
            times.append(found)
    measured = times[2:]  # the first open the shards
    return {name: _compared(measured, names[0], name) | _per_sample(measured, name, slices) for name in names}


def cpu_s(loader: SavableDataLoader) -> float:
    """CPU seconds of the workers of a loader."""
    pool = loader._lanes.pool
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in ([] if pool is None else pool.processes()))


def _per_sample(measured: Sequence[dict[str, float]], name: str, slices: Slices) -> dict[str, float]:
    samples = slices.num_batches * BATCH_SIZE
    return {"us_per_sample": statistics.median(found[name] for found in measured) / samples * 1e6}


def _compared(measured: Sequence[dict[str, float]], base: str, name: str) -> dict[str, Any]:
    ratios = [found[name] / found[base] for found in measured]
    medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(10_000))
    return {"ratio": statistics.median(ratios), "interval": [medians[500], medians[9500]], "rounds": len(ratios)}


def line(label: str, found: Mapping[str, Any], us_per_sample: float) -> str:
    """A row of the table: a ratio, of this CPU time without."""
    low, high = found["interval"]
    of = f"of {us_per_sample:,.1f} µs/sample, {found['rounds']} rounds"
    return f"  {label:<34} {found['ratio']:.4f} ({low:.4f}–{high:.4f}) {of}"
