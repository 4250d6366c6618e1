"""The process that starts workers, kept for the loaders of many tests: each would start one that imports torch anew."""

import os
import sys
from pathlib import Path
from typing import Any

from bridge_data.loader import SavableDataLoader, get_loader
from tests import for_workers
from tests.loader.streams import Streams, config


class WorkerServer:
    """Keeps the process alive that starts the workers of all loaders: a loader that stays open keeps it. Loaders share
    it only while all is the same that workers inherit, and a package that a test imports may change that for good."""

    def __init__(self) -> None:
        self._loader: SavableDataLoader | None = None
        self._inherited: Any = None

    def be_there(self) -> None:
        """Be there for loaders that are opened now; a test may have killed it."""
        inherited = dict(os.environ), Path.cwd(), [*sys.path], [*sys.argv], os.sched_getaffinity(0)
        if self._loader is None or inherited != self._inherited:
            self.close()
            dataset = Streams(config(1, 1), size=1, make=for_workers.expected)
            self._loader = get_loader(dataset, max_worker_restarts=1_000)
            self._inherited = inherited
        next(iter(self._loader))
        assert self._loader.wait_for_workers()

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()
