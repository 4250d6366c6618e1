"""The log of the batches that a rank was handed out, for `WorkerConfig(worker_log_level=1)`.

Enters: batches. Leaves: a line of JSON for each, in the file `worker_debug_path` (`{worker_id}` in it is the rank,
`{pid}` the process) or, without one, on standard output: rank, number of the micro-batch in the job, its lane, the keys
of its samples.
"""

import json
import os
from pathlib import Path
from typing import Any

from bridge_data.topology import WorkerConfig


class BatchLog:
    """Writes the log of one rank, if it is enabled."""

    def __init__(self, config: WorkerConfig) -> None:
        self._rank, self._path, self._is_on = config.rank, config.worker_debug_path, config.worker_log_level > 0

    def note(self, number: int, lane: int, batch: Any) -> None:
        """Log a batch that was handed out."""
        if not self._is_on:
            return
        line = json.dumps({"rank": self._rank, "batch": number, "lane": lane, "keys": keys_of_batch(batch)})
        if self._path is None:
            print(line, flush=True)
            return
        path = Path(self._path.format(worker_id=self._rank, pid=os.getpid()))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(line + "\n")


def keys_of_batch(batch: Any) -> list[str] | None:
    """The keys of a batch's samples, under `__key__`, `__keys__` or, in a dict, `keys`; None if it has none."""
    for name in ("__key__", "__keys__", "keys"):
        found = batch.get(name) if isinstance(batch, dict) else getattr(batch, name, None)
        if isinstance(found, str):
            return [found]
        if isinstance(found, (list, tuple)):
            return [str(key) for key in found]
    return None
