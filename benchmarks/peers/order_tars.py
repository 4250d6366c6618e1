"""The orders in which bridge_data or Megatron-Energon reads tars of numbered texts, through `get_train_dataset`.

What enters: a job as JSON (see `benchmarks.mixing.orders`). What leaves: its streams of numbers in an .npz.
"""

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
    """Batches of the default task encoder."""
    lanes = {"num_lanes": job["num_lanes"]} if OURS else {}
    dataset = api.get_train_dataset(
        job["tars"],
        worker_config=api.WorkerConfig(rank=0, world_size=1, num_workers=0, seed_offset=seed, **lanes),
        batch_size=job["batch"],
        shuffle_buffer_size=job["buffer"],
        max_samples_per_sequence=job["chunk"],
    )
    for batch in api.get_loader(dataset):
        yield batch.text


if __name__ == "__main__":
    order.write_orders(batches, PACKAGE)
