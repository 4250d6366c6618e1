"""A callback of Lightning that notes the samples of each step of a rank, and may kill it."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback


class KeyLog(Callback):  # type: ignore[misc]  # lightning is not followed
    """Appends the step and its keys to `FOLDER/RANK.jsonl`; after `killed_after` steps the process is killed."""

    def __init__(self, folder: str, killed_after: int | None = None) -> None:
        self.folder, self.killed_after = Path(folder), killed_after

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        line = {"step": trainer.global_step, "loss": float(outputs["loss"]), "keys": batch.__key__}
        with (self.folder / f"{trainer.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if trainer.global_step == self.killed_after:
            trainer.strategy.barrier()  # so that each rank has written the step
            os.kill(os.getpid(), signal.SIGKILL)
