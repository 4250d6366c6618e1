"""What the oracle and the audit say of runs whose samples were forgotten midway."""

import math
from pathlib import Path

import pytest

from bridge_data import StateError
from bridge_data.data.metadata import META_FOLDER
from bridge_data.data.withheld import FORGOTTEN_JSONL
from bridge_data.loader.checkpoint import save_states
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from bridge_data.runs.run_order import RunOrder
from tests.cli.runner import run_command
from tests.plugins.ledger.test_ledger_files import run as logged_run
from tests.prepared import write_texts
from tests.runs.oracle.parts import LEGS, SETTINGS, Run, check, numbers_with, write_two


@pytest.fixture
def blend(tmp_path: Path) -> Path:
    return write_two(tmp_path)


def forget(blend: Path, name: str, numbers: range, *, restore: bool = False) -> set[str]:
    """Forget these samples; their keys as batches have them."""
    per_shard = 50 if name == "a" else 13
    keys = [f"data-{number // per_shard:04d}.tar/{number:06d}" for number in numbers]
    assert forget_samples(blend.parent / name, keys, "asked for", restore=restore).num_changed == len(keys)
    return set(keys)


@pytest.mark.parametrize("is_pruned", [False, True], ids=["all states", "the last state"])
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "skips")) for kind in LEGS])
def test_each_step_is_told_by_the_list_that_was_valid_then(blend, kind, is_pruned):
    run = Run({**SETTINGS, **LEGS[kind]})
    run.leg(blend, 2, 20, num_lanes=4)
    gone = forget(blend, "a", range(0, 230, 3))
    run.leg(blend, 2, 25, lost=2)
    forget(blend, "b", range(0, 77, 2))
    run.leg(blend, 1, 20)
    again = run.states[-1].micro_batch_index
    forget(blend, "a", range(0, 230, 9), restore=True)
    run.leg(blend, 2, 30)

    def seen(first: int, end: float) -> set[str]:
        return gone & {key for number in run.keys if first <= number < end for key in run.keys[number]}

    assert seen(0, 40), "before the list"
    assert seen(again, math.inf), "taken back"
    assert not {key for key in seen(40, again) if int(key[-6:]) >= 77}  # data set b has keys below
    order = RunOrder(run.dataset(2), states=run.states[-1:] if is_pruned else run.states)
    check(run, order, sorted(run.keys)[::-1])
    if kind == "plain":
        assert order.num_replayed == 0
        for key in ("data-0002.tar/000132", "data-0002.tar/000135", "data-0004.tar/000207"):
            found = order.when(key, source="a/train", steps=range(max(run.keys) // 2 + 1))
            assert [one.micro_batch for one in found] == numbers_with(run, key)


def test_a_resharded_run_and_the_time_after_the_last_state_are_told_too(blend):
    run = Run(SETTINGS)
    run.leg(blend, 2, 20, num_lanes=4)
    forget(blend, "a", range(100, 200))
    run.leg(blend, 3, 25)
    check(run, RunOrder(run.dataset(3), states=run.states), sorted(run.keys))
    forget(blend, "b", range(40))
    states, before = run.states, set(run.keys)
    run.leg(blend, 3, 15)
    check(run, RunOrder(run.dataset(3), states=states), sorted(run.keys.keys() - before))


def test_another_list_than_that_of_the_run_is_refused(blend):
    run = Run(SETTINGS)
    forget(blend, "a", range(5))
    run.leg(blend, 1, 5)
    (blend.parent / "a" / META_FOLDER / FORGOTTEN_JSONL).unlink()
    forget(blend, "a", range(5, 10))
    with pytest.raises(StateError, match="which the data set does not have"):
        RunOrder(run.dataset(1), states=run.states)


def test_the_audit_agrees_with_the_data_through_versions_of_the_list(tmp_path):
    data, state = write_texts(tmp_path / "texts", 333), None
    for number in range(4):
        state = logged_run(data, tmp_path / "run" / "ledger", 2, 40, state, skip_every=0)
        save_states(tmp_path / "run" / f"iter_{number:07d}", state, step=number, world_size=2)
        if number < 3:
            forget_samples(data, [f"{at:06d}" for at in range(number, 333, 5)], "asked for")
    result = run_command("checkpoint", "verify", tmp_path / "run", "--data", data)
    assert result.exit_code == 0, result.output
    assert "8 comparisons equal, 0 different" in result.output
