"""Positions that the data do not have, in states with right checksums: named when they are used, or in a reshard."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import LaneDataset, StateError
from bridge_data.order.state import with_checksums
from bridge_data.task import TaskEncoder
from tests.prepared import train_dataset, write_pair
from tests.properties.jobs import Encoder, GroupingEncoder, Job

KINDS = {
    "resharded packs": ((5, 17), (4, 17)),
    "packs to be resharded": ((5, 400), (4, 0)),
    "blend": ((5, 800),),
}
"""Each with its runs: (number of lanes, number of steps)."""

Path_ = tuple[str | int, ...]


class InParts(GroupingEncoder):
    """As `GroupingEncoder`, with every micro-batch in two parts."""

    def encode_batch(self, batch: Any) -> Iterator[Any]:
        yield from ((part, batch) for part in range(2))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("data"), 600, 130)


def dataset(data: Path, kind: str, num_lanes: int) -> LaneDataset:
    packs = "packs" in kind
    encoder: TaskEncoder[Any, Any, Any, Any] = (
        InParts(skip_every=7, num_parts=3, num_groups=2) if packs else Encoder(num_parts=2)
    )
    return train_dataset(data, num_lanes=num_lanes, packing_buffer_size=8 if packs else None, task_encoder=encoder)


@pytest.fixture(scope="module")
def states(data: Path) -> dict[str, dict[str, Any]]:
    """A state of each kind, as JSON gives it back; of several windows an epoch."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bridge_data.order.row.MIN_WINDOW_SIZE", 16)
        patch.setattr("bridge_data.order.row.MIN_WINDOW_BLOCKS", 1)
        for kind, runs in KINDS.items():
            saved = None
            for num_lanes, num_steps in runs:
                job = Job([dataset(data, kind, num_lanes)], saved)
                for _ in range(num_steps):
                    job.step()
                (saved,) = job.save()
            made[kind] = json.loads(json.dumps(saved))
    return made


BEYOND = [
    ("blend", ("lanes", "1", "cursors", "0"), [0, 1, 40, 41], r"lanes\.1\.cursors\.0: .*offset 40 is beyond window 1"),
    ("resharded packs", ("lanes", "1", "inbox", "0", 0, 6), 900, r"lanes\.1\.inbox\.0: .*fewer samples left"),
    ("resharded packs", ("lanes", "1", "inbox", "0", 0, 2), 9, r"lanes\.1\.inbox\.0: .*the next generation's"),
    ("packs to be resharded", ("lanes", "3", "inbox", "0", 0, 5), 1 << 40, r"lanes\.3\.inbox\.0: .*skip is too long"),
    ("resharded packs", ("lanes", "0", "inbox", "0", 1, 0, 1), 600, r"lanes\.0\.inbox\.0: .*there is no sample 600"),
    ("blend", ("lanes", "0", "pending"), {"queue": [[0, 0, 600, 0]]}, r"lanes\.0\.pending: .*source 0 has 600"),
]


@pytest.mark.parametrize(("kind", "path", "value", "message"), BEYOND)
def test_a_position_that_the_data_has_not_is_named_when_it_is_used(
    data: Path, states: dict[str, dict[str, Any]], kind: str, path: Path_, value: Any, message: str
) -> None:
    state = copy.deepcopy(states[kind])
    parent: Any = state
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    made = dataset(data, kind, KINDS[kind][-1][0])
    with pytest.raises(StateError, match=f"{message}.*take an older checkpoint"):
        lane = made.lane(int(str(path[1])), made.restored_state(with_checksums(state)))
        for _ in range(1_000):
            lane.next()


def test_a_reshard_refuses_more_samples_taken_than_there_are(data: Path, states: dict[str, dict[str, Any]]) -> None:
    state = copy.deepcopy(states["blend"])
    last = max(position["cursors"]["0"][0] for position in state["lanes"].values())
    lane = next(name for name, of in state["lanes"].items() if of["cursors"]["0"][0] == last)
    state["lanes"][lane]["cursors"]["0"][3] = 120  # as many as a lane has an epoch
    with pytest.raises(StateError, match=rf"lanes\.{lane}\.cursors\.0: .*take an older checkpoint"):
        dataset(data, "blend", 3).restored_state(with_checksums(state))
