"""Two ranks that skip steps, and are restored within a range, for `test_jobs.py`: what each saw.

skip_job FOLDER DATA
"""

import sys
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from tests.datamodule.jobs import as_rank
from tests.datamodule.parts import draw, make_module, numbers

OPTIONS: dict[str, Any] = {"num_lanes": 8, "global_batch_size": 4, "skip_steps": ["2-4", "6-7"]}
DRAWN, MORE = 10, 8
"""Micro-batches of each rank before and after the save of which the second range is over."""


def run(data: str) -> dict[str, Any]:
    """Draw, save, and go on; then the same from the saved state; and once with balanced ranks."""

    def loader(**options: Any) -> Any:
        return make_module(data, pg_collection=SimpleNamespace(dp=dist.group.WORLD), **options).train_dataloader()

    first = loader(**OPTIONS)
    seen: dict[str, Any] = {"before": draw(first, DRAWN), "state": first.save_state(), "after": draw(first, MORE)}
    resumed = loader(num_lanes=8, global_batch_size=4)
    resumed.restore_state(seen["state"])
    seen["resumed"] = draw(resumed, MORE)
    balanced = loader(balance=lambda batch: float(1 + sum(numbers(batch))), **OPTIONS)
    seen["balanced"] = draw(balanced, DRAWN + MORE)
    balanced.close()
    return seen


if __name__ == "__main__":
    as_rank(sys.argv[1], lambda: run(sys.argv[2]))
