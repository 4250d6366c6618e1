"""A machine that has all a run needs, and runs."""

import math
from typing import Any

from bridge_data.tools.doctor import MachineLimits
from bridge_data.tools.runs import PlannedRun


def machine(**changes: Any) -> MachineLimits:
    """It with some changes."""
    settings: dict[str, Any] = {
        "num_cores": 16.0,
        "memory_bytes": 64 << 30,
        "num_files": 4096,
        "max_files": 8192,
        "locked_bytes": math.inf,
        "shm_bytes": 2 << 30,
        "libraries": {"simplejpeg": "1.9.0", "av": "18.0.0"},
    }
    return MachineLimits(**settings | changes)


def planned(**options: Any) -> PlannedRun:
    """A run with these options."""
    return PlannedRun.of(options)
