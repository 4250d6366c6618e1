"""States that were edited or damaged: every field of every level, through `check_state`, drawing and a re-deal."""

import copy
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bridge_data import LaneDataset, StateError
from bridge_data.order.state import LoaderState
from bridge_data.task import TaskEncoder
from tests.costs import save_costs_of_blend
from tests.loader.checkpoint.states import make_state
from tests.prepared import train_dataset, val_dataset, write_pair
from tests.properties.jobs import Encoder, GroupingEncoder, Job

KINDS = {
    "re-dealt packs": ((5, 17), (4, 17)),
    "packs to be re-dealt": ((5, 400), (4, 0)),
    "re-dealt validation": ((5, 23), (4, 0)),
    "blend": ((5, 800),),
    "finite": ((5, 100),),
    "weights of costs": ((5, 200), (4, 50)),
}
"""Each with its runs: (number of lanes, number of steps)."""

NUM_DRAWS = 200

Path_ = tuple[str | int, ...]


class InParts(GroupingEncoder):
    """As `GroupingEncoder`, with every micro-batch in two parts."""

    def encode_batch(self, batch: Any) -> Iterator[Any]:
        yield from ((part, batch) for part in range(2))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("data"), 600, 130)


def dataset(data: Path, kind: str, num_lanes: int) -> LaneDataset:
    if "validation" in kind:
        return val_dataset(data.parent / "a", num_lanes=num_lanes, task_encoder=Encoder(skip_every=3))
    packs = "packs" in kind
    encoder: TaskEncoder[Any, Any, Any, Any] = (
        InParts(skip_every=7, num_parts=3, num_groups=2) if packs else Encoder(num_parts=2)
    )
    settings = {"packing_buffer_size": 8 if packs else None, "repeat": kind != "finite", "task_encoder": encoder}
    if "costs" in kind:
        settings["weight_unit"] = "tokens"
        save_costs_of_blend(data, encoder, lambda number: [1 + number % 50])
    made = train_dataset(data, num_lanes=num_lanes, **settings)
    made.num_checked = 0  # the costs are not those of the encoder
    return made


@pytest.fixture(scope="module")
def states(data: Path) -> dict[str, dict[str, Any]]:
    """A state of each kind, as JSON gives it back; of several windows an epoch. Without checksums, as earlier releases
    saved them: `tests/properties/test_changed_states.py` has states with these."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bridge_data.order.chunks.MIN_WINDOW_SIZE", 16)
        patch.setattr("bridge_data.order.chunks.MIN_WINDOW_BLOCKS", 1)
        for kind, runs in KINDS.items():
            saved = None
            for num_lanes, num_steps in runs:
                job = Job([dataset(data, kind, num_lanes)], saved)
                for _ in range(num_steps):
                    job.step()
                (saved,) = job.save()
            made[kind] = json.loads(json.dumps(saved))
            del made[kind]["checksums"]
    return made


def paths_in(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Those of all fields."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*path, name)
        yield from paths_in(inner, (*path, name))


OTHERS: dict[str, Any] = {
    "null": None,
    "negative": -1,
    "beyond 64 bits": 1 << 70,
    "huge": 1 << 47,
    "NaN": math.nan,
    "infinite": math.inf,
    "text": "surprise",
    "boolean": True,
    "fraction": 1.5,
    "list": [],
    "dict": {},
    "one more": None,
    "one less": None,
}
MUTATIONS = ("removed", "unknown key", "longer", "shorter", *OTHERS)

NUMBERS = ("huge", "one more", "one less")
"""Mutations of a number that may leave one which could be right."""

REMOVABLE = {"epoch_batches", "ended", "extras", "ledger", "inbox"}
REMOVABLE |= {"pending", "queue", "carried", "packs", "buckets", "open"}


def mutated(state: dict[str, Any], path: Path_, mutation: str) -> dict[str, Any]:
    """The state with one field changed; the example is given up where the mutation is none for it."""
    state = copy.deepcopy(state)
    *above, name = path
    parent: Any = state
    for step in above:
        parent = parent[step]
    value = parent[name]
    if mutation == "removed":
        assume(isinstance(parent, dict))
        del parent[name]
    elif mutation == "unknown key":
        assume(isinstance(value, dict))
        value["surprise"] = 1
    elif mutation == "longer":
        assume(isinstance(value, list))
        value.append(None)
    elif mutation == "shorter":
        assume(isinstance(value, list) and value)
        del value[-1]
    else:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        assume(is_number or mutation not in NUMBERS)
        by = {"one more": 1, "one less": -1}.get(mutation)
        parent[name] = OTHERS[mutation] if by is None else value + by
        assume(parent[name] != value)
    return state


def may_be_right(state: dict[str, Any], path: Path_, mutation: str) -> bool:
    """Whether the changed state may be one that some run has written, so that nobody can tell."""
    value: Any = state
    for step in path:
        value = value[step]
    names = [step for step in path if isinstance(step, str)]
    if path[0] == "fingerprint":
        is_label = path[1:2] == ("sources",) and path[3:] == (1,) and mutation == "text"
        return is_label or (mutation == "removed" and value is None)  # no weights, no limit
    if mutation in NUMBERS:
        return True
    if mutation == "removed":
        return names[-1] in REMOVABLE or names[-1].isdigit() or "buckets" in names[:-1]
    if mutation == "shorter" or (mutation == "list" and isinstance(value, list)):
        return "pending" in names or "inbox" in names
    if mutation == "dict":
        return isinstance(value, dict)  # a lane that has not begun, nothing pending
    return mutation == "boolean" and path == ("ended",)


def is_named(message: str, path: Path_, mutation: str, strict: bool) -> bool:
    """Whether a message names the last field on the path, or what depends on it."""
    if path == ("version",):
        return "has order format" in message
    if mutation == "shorter" or path == ("fingerprint", "packing_buffer_size"):
        return True  # what refers to that which is gone may be found first
    names = [step for step in path if isinstance(step, str)] + ["surprise"] * (mutation == "unknown key")
    return names[-1] in message or (path[0] == "fingerprint" and not strict)


def use(data: Path, kind: str, state: dict[str, Any], *, strict: bool) -> None:
    """Restore a state and draw samples of all lanes; the same after a re-deal."""
    for num_lanes, num_draws in ((KINDS[kind][-1][0], NUM_DRAWS), (3, NUM_DRAWS // 4)):
        made = dataset(data, kind, num_lanes)
        restored = made.check_state(state, strict=strict)
        lanes = [made.lane(number, restored) for number in restored.lanes]
        before = sum(lane._cursor.draws for lane in lanes)
        for lane in itertools.cycle([*lanes]):
            if lane not in lanes:
                continue
            try:
                lane.next()
            except StopIteration:
                lanes.remove(lane)
            if not lanes or sum(lane._cursor.draws for lane in lanes) - before >= num_draws:
                break


@pytest.mark.processes
def test_the_states_have_every_field(states: dict[str, dict[str, Any]]) -> None:
    found = {
        kind: {step for path in paths_in(state) for step in path if isinstance(step, str)}
        for kind, state in states.items()
    }
    pending = {"pending", "queue", "carried", "packs", "buckets", "open", "base"}
    assert found["re-dealt packs"] >= pending | {"inbox", "weights", "drawn_before"}
    assert "inbox" in found["re-dealt validation"]
    assert any(isinstance(entry[0], list) for entry in entries_in(states["re-dealt packs"]))
    slices = [entry for entry in entries_in(states["packs to be re-dealt"]) if not isinstance(entry[0], list)]
    assert all(any(entry[field] for entry in slices) for field in range(1, 7)), "shuffles, windows, offsets and skips"
    cursors = [lane["cursors"]["0"] for lane in states["blend"]["lanes"].values()]
    assert all(any(position[field] for position in cursors) for field in range(4))


def entries_in(state: dict[str, Any]) -> Iterator[Any]:
    for lane in state["lanes"].values():
        for entries in lane.get("inbox", {}).values():
            yield from entries


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_used_as_they_are(data: Path, states: dict[str, dict[str, Any]], kind: str) -> None:
    use(data, kind, states[kind], strict=True)


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(drawn=st.data())
def test_a_changed_field_is_named_or_could_be_right(
    data: Path, states: dict[str, dict[str, Any]], kind: str, drawn: st.DataObject
) -> None:
    state = states[kind]
    by_depth: dict[tuple[Any, ...], list[Path_]] = {}
    for path in paths_in(state):
        by_depth.setdefault(tuple("#" if str(step).isdigit() else step for step in path), []).append(path)
    path = drawn.draw(st.sampled_from(list(by_depth.values())).flatmap(st.sampled_from), label="path")
    mutation = drawn.draw(st.sampled_from(MUTATIONS), label="mutation")
    strict = drawn.draw(st.booleans(), label="strict")
    changed = mutated(state, path, mutation)
    right = may_be_right(state, path, mutation)
    try:
        use(data, kind, changed, strict=strict)
    except StateError as error:
        assert right or is_named(str(error), path, mutation, strict), error
        assert len(str(error)) < 4_000
    else:
        assert right or (path[0] == "fingerprint" and not strict)


BEYOND = [
    ("blend", ("lanes", "0", "cursors", "0", 0), 40, r"lanes\.0\.cursors\.0: .* taken before it, in \d+ draws"),
    ("blend", ("lanes", "0", "cursors", "0", 1), 99, r"lanes\.0\.cursors\.0: .* no window 99 of shuffle"),
    ("blend", ("lanes", "1", "cursors", "0"), [0, 1, 40, 41], r"lanes\.1\.cursors\.0: .*offset 40 is beyond window 1"),
    ("blend", ("lanes", "1", "cursors", "1", 3), 999, r"lanes\.1\.cursors\.1: .*999 samples taken"),
    ("re-dealt packs", ("lanes", "1", "inbox", "0", 0, 6), 900, r"lanes\.1\.inbox\.0: .*fewer samples left"),
    ("re-dealt packs", ("lanes", "1", "inbox", "0", 0, 2), 9, r"lanes\.1\.inbox\.0: .*the next generation's"),
    ("packs to be re-dealt", ("lanes", "3", "inbox", "0", 0, 5), 1 << 40, r"lanes\.3\.inbox\.0: .*skip is too long"),
    ("re-dealt packs", ("lanes", "0", "inbox", "0", 1, 0, 1), 600, r"lanes\.0\.inbox\.0: .*there is no sample 600"),
    ("blend", ("lanes", "0", "pending"), {"queue": [[0, 0, 600, 0]]}, r"lanes\.0\.pending: .*source 0 has 600"),
    ("re-dealt packs", ("lanes", "0", "pending", "carried", 0), 999, r"lanes\.0\.pending\.carried\.0: 999: .*below"),
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
        lane = made.lane(int(str(path[1])), made.check_state(state))
        for _ in range(1_000):
            lane.next()


def test_a_re_deal_refuses_more_samples_taken_than_there_are(data: Path, states: dict[str, dict[str, Any]]) -> None:
    state = copy.deepcopy(states["blend"])
    last = max(position["cursors"]["0"][0] for position in state["lanes"].values())
    lane = next(name for name, of in state["lanes"].items() if of["cursors"]["0"][0] == last)
    state["lanes"][lane]["cursors"]["0"][3] = 120  # as many as a lane has an epoch
    with pytest.raises(StateError, match=rf"lanes\.{lane}\.cursors\.0: .*take an older checkpoint"):
        dataset(data, "blend", 3).check_state(state)


@pytest.mark.parametrize(
    ("skips", "told"),
    [
        *((skips, r"extras\.step_edits\.data") for skips in ([], {}, [[4, 4, 0]], [[0, 4, 1]], [[-1, 4, 0]], [[0, 4]])),
        ([[0, 4, 0], [2, 6, 2]], r"extras\.step_edits\.data"),
        ([[0, 4, 0], [8, 12, 2]], r"^extras\.step_edits\.data\.1: \[8, 12, 2\]: .*repeat"),
    ],
)
def test_skips_that_are_no_ranges_in_order_are_refused(skips: Any, told: str) -> None:
    with pytest.raises(StateError, match=told):
        LoaderState.from_dict(make_state() | {"extras": {"step_edits": {"version": 1, "data": skips}}})
