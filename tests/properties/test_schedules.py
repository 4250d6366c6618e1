"""Weights that change as the job goes on, at the right number of samples with any reshards before it."""

import collections
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data import ConfigError, LaneDataset, StateError, WorkerConfig, get_train_dataset, merge_states
from bridge_data.order.blends import DRAWS_PER_BLOCK
from bridge_data.plan import load_plan
from tests.prepared import write_texts
from tests.properties.jobs import Encoder, Job

SIZES = {"a": 700, "b": 150, "c": 90}
SWITCHES = (1_000, 2_500)

BLEND = """\
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - path: a
        weight: [{from_sample: 0, weight: 3}, {from_sample: 1_000, weight: %s}]
      - weight: 1
        blend:
          - path: b
            weight: 1
          - path: c
            weight: [{from_sample: 0, weight: 0}, {from_sample: 2_500, weight: 3}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, size in SIZES.items():
        write_texts(folder / name, size)
    (folder / "blend.yaml").write_text(BLEND % 1)
    (folder / "other.yaml").write_text(BLEND % 7)
    return folder


def ranks(
    folder: Path, world_size: int, num_lanes: int, name: str = "blend.yaml", **settings: Any
) -> list[LaneDataset]:
    return [
        get_train_dataset(
            folder / name,
            worker_config=WorkerConfig(rank, world_size, 1, num_lanes=num_lanes),
            shuffle_buffer_size=20,
            max_samples_per_sequence=10,
            **{"batch_size": 4, "task_encoder": Encoder()} | settings,
        )
        for rank in range(world_size)
    ]


def sources(job: Job, steps: int) -> list[str]:
    """The source of each sample of the next steps, in the job's order."""
    return [key[0] for _ in range(steps) for batch in job.step() for unit in batch for key in unit]


def shares(names: list[str], drawn: list[str]) -> list[float]:
    counted = collections.Counter(drawn)
    return [counted[name] / len(drawn) for name in names]


def test_each_phase_draws_by_its_own_weights(folder: Path) -> None:
    job = Job(ranks(folder, 1, 2))
    names = job.datasets[0].source_ids
    drawn = sources(job, 1_200)
    begins = [-(-switch // (2 * DRAWS_PER_BLOCK)) * 2 * DRAWS_PER_BLOCK for switch in SWITCHES]
    assert shares(names, drawn[: begins[0]]) == pytest.approx([0.75, 0.25, 0], abs=0.01)
    assert shares(names, drawn[begins[0] : begins[1]]) == pytest.approx([0.5, 0.5, 0], abs=0.01)
    assert shares(names, drawn[begins[1] :]) == pytest.approx([0.5, 0.125, 0.375], abs=0.01)


@settings(max_examples=5, deadline=None)
@given(
    assigns=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 25)), min_size=1, max_size=4),
    packing=st.none() | st.just(20),
)
def test_after_reshards_the_change_comes_at_the_right_number_of_samples(
    folder: Path, assigns: list[tuple[int, int]], packing: int | None
) -> None:
    """Source c is drawn from sample 2,500 on."""
    saved: Any = None
    emitted = 0
    for world_size, steps in [*assigns, (3, 2_500)]:
        job = Job(ranks(folder, world_size, world_size, packing_buffer_size=packing), saved)
        late = job.datasets[0].source_ids[2]
        for _ in range(steps):
            drawn = sources(job, 1)
            if late in drawn:
                held = 0 if packing is None else 2 * packing * world_size
                slack = world_size * (DRAWS_PER_BLOCK + 4) + held
                assert abs(emitted + drawn.index(late) - SWITCHES[1]) <= slack
                return
            emitted += len(drawn)
        saved = json.loads(json.dumps(merge_states(job.save())))
    pytest.fail("the last phase never began")


def test_another_schedule_is_refused_or_taken_over_from_here_on(folder: Path) -> None:
    job = Job(ranks(folder, 1, 2))
    drawn = sources(job, 300)
    saved = merge_states(job.save())
    (other,) = ranks(folder, 1, 2, "other.yaml")
    with pytest.raises(StateError, match=r"schedule: the state has \[\[1000, .*this run has \[\[1000, "):
        other.restored_state(saved)
    state = other.restored_state(saved, strict=False)
    job = Job([other])
    job.states, job.slot = [state], state.micro_batch_index
    job.lanes = [{lane: other.lane(lane, state) for lane in state.lanes}]
    after = sources(job, 900)
    now = after[: 2_400 - len(drawn)]
    assert shares(other.source_ids, now) == pytest.approx([7 / 8, 1 / 8, 0], abs=0.02)
    assert shares(other.source_ids, after[2_500 - len(drawn) + 2 * DRAWS_PER_BLOCK :]) == pytest.approx(
        [7 / 8, 1 / 32, 3 / 32], abs=0.02
    )


def test_the_schedule_is_part_of_the_fingerprint_and_of_the_printed_plan(folder: Path) -> None:
    plan = load_plan(folder / "blend.yaml")
    assert [sample for sample, _ in plan.later_weights] == [1_000, 2_500]
    fingerprint = ranks(folder, 1, 1)[0].fingerprint()
    assert fingerprint["weights"] == [0.75, 0.25, 0]
    assert fingerprint["schedule"] == [[1_000, [0.5, 0.5, 0]], [2_500, [0.5, 0.125, 0.375]]]
    first, a, _, b, c = str(plan).splitlines()
    assert first.endswith("[train], from sample 0 → 1,000 → 2,500")
    assert "a [train]: weight 3 → 1 → 1, 75.00% → 50.00% → 50.00% of draws" in a
    assert "b [train]: weight 1, 25.00% → 50.00% → 12.50% of draws" in b
    assert "c [train]: weight 0 → 0 → 3, 0.00% → 0.00% → 37.50% of draws" in c


def test_finite_data_leaves_no_source_out(folder: Path) -> None:
    with pytest.raises(ConfigError, match="repeat=False: every source must reach its end"):
        ranks(folder, 1, 1, repeat=False)
    finite = BLEND.replace("weight: 0}", "weight: 1}") % 1
    (folder / "finite.yaml").write_text(finite)
    job = Job(ranks(folder, 1, 2, "finite.yaml", repeat=False))
    emitted = list(itertools.chain.from_iterable(_until_the_end(job)))
    assert len(emitted) == len(set(emitted)) == sum(SIZES.values())


def _until_the_end(job: Job) -> Any:
    ended = 0
    while ended < 2:
        (batch,) = job.step()
        ended = ended + 1 if batch is None else 0
        yield [key for unit in batch or () for key in unit]
