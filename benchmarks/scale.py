"""A large run: 1,024 ranks with 8 lanes each.

States (`state_scale.py`): their size, the time to build, send, gather and restore them, and the files of a checkpoint.
The order (`order_scale.py`), over a billion samples, without data: the first draw of a lane, one draw, windows of a
million samples, and a re-deal in mid-epoch to 768 ranks.

    python -m benchmarks.scale [--only states,checkpoint,lanes,re-deals] [--json FILE]
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import order_scale, state_scale

PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "states": lambda: [state_scale.measure(num_sources) for num_sources in (1, 100, 1_000)],
    "checkpoint": lambda: [state_scale.checkpoint_bytes()],
    "lanes": order_scale.lanes,
    "re-deals": order_scale.redeals,
}


def show(columns: Sequence[dict[str, Any]]) -> None:
    width = max(map(len, columns[0])) + 2
    for name in columns[0]:
        values = "".join(f"{c[name] if isinstance(c[name], str) else format(c[name], ',.4g'):>28s}" for c in columns)
        print(f"{name:{width}s}{values}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    figures = {}
    for part in arguments.only.split(","):
        figures[part] = PARTS[part]()
        show(figures[part])
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
