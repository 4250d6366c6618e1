"""Two ranks that skip steps, and are restored within a range, for `test_skipped_steps.py`: what each saw.

skip_job DATA FOLDER
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from tests.datamodule.parts import draw, make_module, numbers

OPTIONS: dict[str, Any] = {"num_lanes": 8, "global_batch_size": 4, "skip_steps": ["2-4", "6-7"]}
DRAWN, MORE = 10, 8
"""Micro-batches of each rank before and after the save of which the second range is over."""


def main(data: str, folder: str) -> None:
    """Draw, save, and go on; then the same from the saved state; and once with balanced ranks."""
    dist.init_process_group("gloo")
    ranks = SimpleNamespace(dp=dist.group.WORLD)
    seen: dict[str, Any] = {}
    loader = make_module(data, pg_collection=ranks, **OPTIONS).train_dataloader()
    seen["before"] = draw(loader, DRAWN)
    state = loader.save_state()
    seen["after"] = draw(loader, MORE)
    plain = {name: value for name, value in OPTIONS.items() if not name.endswith("_steps")}
    resumed = make_module(data, pg_collection=ranks, **plain).train_dataloader()
    resumed.restore_state(state)
    seen["resumed"] = draw(resumed, MORE)
    balanced = make_module(data, pg_collection=ranks, balance=cost_of, **OPTIONS).train_dataloader()
    seen["balanced"] = draw(balanced, DRAWN + MORE)
    balanced.close()
    seen["state"] = state
    (Path(folder) / f"rank{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


def cost_of(batch: Any) -> float:
    """A cost that has micro-batches exchanged."""
    return float(1 + sum(numbers(batch)))


if __name__ == "__main__":
    main(*sys.argv[1:])
