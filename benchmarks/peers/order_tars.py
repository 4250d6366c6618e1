"""The orders in which bridge_data or Megatron-Energon reads tars of numbered texts, through `get_train_dataset`.

Input: a job as JSON (see `benchmarks.mixing.orders`). Output: its streams of numbers in an .npz.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import order

try:
    import bridge_data as api

    OURS, PACKAGE = True, "bridge-data"
except ImportError:
    import megatron.energon as api  # type: ignore[no-redef]

    OURS, PACKAGE = False, "megatron-energon"


def batches(job: dict[str, Any], seed: int) -> Iterator[list[str]]:
    """Batches of the default task encoder: of ours in lanes, of Energon one of each rank in turn."""
    streams = [stream(job, seed, rank) for rank in range(1 if OURS else job["num_lanes"])]
    for each in itertools.cycle(streams):
        yield next(each).text


def stream(job: dict[str, Any], seed: int, rank: int) -> Iterator[Any]:
    """Batches of a rank without workers."""
    ranks = {"num_lanes": job["num_lanes"], "world_size": 1} if OURS else {"world_size": job["num_lanes"]}
    dataset = api.get_train_dataset(
        job["tars"],
        worker_config=api.WorkerConfig(rank=rank, num_workers=0, seed_offset=seed, **ranks),
        batch_size=job["batch"],
        shuffle_buffer_size=job["buffer"],
        max_samples_per_sequence=job["chunk"],
    )
    yield from api.get_loader(dataset)


if __name__ == "__main__":
    order.write_orders(batches, PACKAGE)
