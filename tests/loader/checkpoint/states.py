"""Loader states for tests: small, and different at every step."""

from typing import Any

from bridge_data.order.state import Generation, LoaderState

FINGERPRINT = {
    "sources": [["aa", "photos/train"], ["bb", "pages/train"]],
    "weights": [0.25, 0.75],
    "seed": 0,
    "order": "shuffled",
    "batch_size": 4,
    "packing_buffer_size": 4,
}


def make_state(*lanes: int, step: int = 10, num_lanes: int = 8, **settings: Any) -> dict[str, Any]:
    """The state of these lanes, of all if none is given, after `step` micro-batches of each."""
    of_lanes = {
        lane: {
            "draws": 5 * step,
            "cursors": {"0": [step, lane, 1, 7], "1": [0, 0, 3, 3 * step]},
            "micro_batches": step,
            "pending": {
                "packs": [[0, 2], [1, [3, 1]]],
                "base": {"draws": 5 * step - 4, "cursors": {"0": [step, 0, 0, 0]}},
            },
        }
        for lane in lanes or range(num_lanes)
    }
    generations = [Generation(num_lanes, [[100, 8, 1024, 0], [50, 8, 1024, 0]])]
    return LoaderState(FINGERPRINT | settings, generations, step * num_lanes, of_lanes).to_dict()


def rank_states(world_size: int, **settings: Any) -> list[dict[str, Any]]:
    """The state of every rank of a job."""
    return [make_state(*range(rank, 8, world_size), **settings) for rank in range(world_size)]
