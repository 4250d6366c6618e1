"""Weights of tokens in whole jobs: shares, every sample once through any chain of topologies, the oracle, refusals."""

import collections
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data import (
    ConfigError,
    LaneDataset,
    SavableDataLoader,
    StateError,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    merge_states,
)
from bridge_data.cli import main
from bridge_data.configs import DataConfig
from bridge_data.energon import RepeatDataset
from bridge_data.order.state import LoaderState
from bridge_data.plan import load_plan
from bridge_data.plugins.doctor.planned_run import PlannedRun
from bridge_data.plugins.doctor.run_checks import examine
from bridge_data.plugins.doctor.source_draws import draws_of_sources
from bridge_data.plugins.ledger.ledger import Ledger, sums_of
from bridge_data.plugins.planned.planned_sources import costs_of_sources
from bridge_data.plugins.view.charts import count_draws
from bridge_data.runs.run_order import RunOrder
from bridge_data.runs.training_run import OrderTaskEncoder, settings_of_state
from tests.costs import save_costs_of_blend
from tests.prepared import write_texts
from tests.properties.jobs import Encoder, GroupingEncoder, Job, Key
from tests.properties.machine import EXAMPLES

SIZES = {"a": 600, "b": 150, "c": 90}

BLEND = """\
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    weight_unit: tokens
    blend:
      - {path: a, weight: %s}
      - weight: 1
        blend:
          - {path: b, weight: 1}
          - {path: c, weight: 3}
"""


def cost(number: int) -> list[int]:
    """The tokens of the parts of a sample: few of most, many of some, none of every ninth."""
    if number % 9 == 4:
        return []
    return [5, 20] if number % 5 == 2 else [900 if number % 31 == 0 else 1 + number % 40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, size in SIZES.items():
        write_texts(folder / name, size)
    (folder / "blend.yaml").write_text(BLEND % 2)
    (folder / "other.yaml").write_text(BLEND % 1)
    for encoder in (Encoder(), GroupingEncoder(num_groups=2, num_parts=2)):
        save_costs_of_blend(folder / "blend.yaml", encoder, cost)
    return folder


def ranks(
    folder: Path, world_size: int, num_lanes: int, name: str = "blend.yaml", num_workers: int = 0, **changes: Any
) -> list[LaneDataset]:
    small = {"batch_size": 2, "shuffle_buffer_size": 20, "max_samples_per_sequence": 10, "task_encoder": Encoder()}
    made = [
        get_train_dataset(
            folder / name,
            worker_config=WorkerConfig(rank, world_size, num_workers, num_lanes=num_lanes),
            **(small | changes),
        )
        for rank in range(world_size)
    ]
    for dataset in made:
        dataset.wrappers = ()  # the costs are not those of the encoder
    return made


def keys(job: Job, steps: int) -> list[Key]:
    return [key for _ in range(steps) for batch in job.step() for unit in batch for key in unit]


def shares(dataset: LaneDataset, drawn: list[Key]) -> list[float]:
    tokens: collections.Counter[str] = collections.Counter()
    for source, _, index, _ in drawn:
        tokens[source] += sum(cost(index))
    return [tokens[name] / tokens.total() for name in dataset.source_ids]


@pytest.mark.parametrize("num_lanes", [1, 8])
def test_each_source_has_its_share_of_the_tokens(folder: Path, num_lanes: int) -> None:
    made = ranks(folder, 1, num_lanes)
    drawn = keys(Job(made), 3_000)
    assert shares(made[0], drawn) == pytest.approx([2 / 3, 1 / 12, 1 / 4], abs=0.01)


def test_every_number_of_ranks_and_workers_has_one_order(folder: Path) -> None:
    expected = keys(Job(ranks(folder, 1, 8)), 160)
    for world_size in (2, 4, 8):
        assert keys(Job(ranks(folder, world_size, 8)), 160 // world_size) == expected
    for num_workers in (0, 1, 2):
        loader = get_loader(ranks(folder, 1, 8, num_workers=num_workers)[0])
        batches = itertools.islice(loader, 80)
        assert [key for batch in batches for unit in batch for key in unit] == expected[:160]


@settings(max_examples=max(3, EXAMPLES // 100), deadline=None)
@given(
    assigns=st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 30)), min_size=1, max_size=4),
    packing=st.none() | st.just(20),
)
def test_every_sample_comes_once_through_any_chain_of_topologies(
    folder: Path, assigns: list[tuple[int, int]], packing: int | None
) -> None:
    encoder = GroupingEncoder(num_groups=2, num_parts=2)
    found: list[Key] = []
    state: Any = None
    for world_size, steps in [*assigns, (2, 2_000)]:
        made = ranks(folder, world_size, world_size, packing_buffer_size=packing, task_encoder=encoder)
        job = Job(made, state)
        found += keys(job, steps)
        state = json.loads(json.dumps(merge_states(job.save())))
    assert max(collections.Counter(found).values()) == 1
    for name, size in zip(made[0].source_ids, SIZES.values(), strict=True):
        assert {index for source, epoch, index, _ in found if (source, epoch) == (name, 0)} == set(range(size))
    whole = [key for key in found if not key[3]]
    assert shares(made[0], whole) == pytest.approx([2 / 3, 1 / 12, 1 / 4], abs=0.02)


def test_a_job_resumes_at_any_step(folder: Path) -> None:
    job = Job(ranks(folder, 1, 2, packing_buffer_size=20))
    steps, states = [], []
    for _ in range(120):
        states.append(merge_states(job.save()))
        steps.append(job.step())
    for step in range(0, 90, 7):
        again = Job(ranks(folder, 1, 2, packing_buffer_size=20), states[step])
        assert [again.step() for _ in range(30)] == steps[step : step + 30]


def test_finite_data_come_once(folder: Path) -> None:
    loader = get_loader(ranks(folder, 1, 4, repeat=False)[0])
    found = [key for batch in loader for unit in batch for key in unit]
    assert len(found) == len({*found}) == sum(SIZES.values())


def test_a_repetition_is_resharded_before_lanes_have_started(folder: Path) -> None:
    """They have no position, but the ledger of the repetition before."""

    def loader_of(num_lanes: int) -> SavableDataLoader:
        made = RepeatDataset(ranks(folder, 1, num_lanes, repeat=False)[0], repeats=2)
        return get_savable_loader(made.changed(extras=(Ledger(made.source_ids),)))

    loader, batches, states = loader_of(4), [], []
    for batch in loader:
        batches.append(batch)
        states.append(loader.save_state_rank())
    number = next(number for number, state in enumerate(states) if state.get("repetition"))
    assert any("draws" not in lane for lane in states[number]["lanes"].values())
    resharded = loader_of(3)
    resharded.restore_state_rank(states[number])
    rest = [key for batch in resharded for unit in batch for key in unit]
    assert sorted(rest) == sorted(key for batch in batches[number + 1 :] for unit in batch for key in unit)
    assert sums_of(LoaderState.from_dict(resharded.save_state_rank())).samples == 2 * sum(SIZES.values())


def test_other_weights_hold_from_the_restore_on_and_another_unit_is_refused(folder: Path) -> None:
    job = Job(ranks(folder, 1, 2))
    keys(job, 500)
    state = merge_states(job.save())
    (other,) = ranks(folder, 1, 2, "other.yaml")
    with pytest.raises(StateError, match="weights"):
        other.restored_state(state)
    restored = other.restored_state(state, strict=False)
    job = Job([other])
    job.states, job.slot = [restored], restored.micro_batch_index
    job.lanes = [{lane: other.lane(lane, restored) for lane in restored.lanes}]
    assert shares(other, keys(job, 3_000)) == pytest.approx([1 / 2, 1 / 8, 3 / 8], abs=0.01)
    (folder / "samples.yaml").write_text((BLEND % 2).replace("    weight_unit: tokens\n", ""))
    (samples,) = ranks(folder, 1, 2, "samples.yaml")
    assert "costs" not in merge_states([samples.new_state().to_dict()])["fingerprint"]
    with pytest.raises(StateError, match=r"weight_unit: the state has tokens, this run has None"):
        samples.restored_state(state, strict=False)


def test_other_costs_are_another_order(folder: Path, tmp_path: Path) -> None:
    for name in SIZES:
        write_texts(tmp_path / name, SIZES[name])
    (tmp_path / "blend.yaml").write_text(BLEND % 2)
    with pytest.raises(ConfigError, match=r"a \[train\]: .*not measured .*bridge-data prepare"):
        ranks(tmp_path, 1, 2)
    save_costs_of_blend(tmp_path / "blend.yaml", Encoder(), lambda number: [3])
    job = Job(ranks(folder, 1, 2))
    job.step()
    with pytest.raises(StateError, match="costs: the state has"):
        ranks(tmp_path, 1, 2)[0].restored_state(merge_states(job.save()))


def test_the_oracle_tells_steps_and_samples_through_a_reshard_and_other_weights(folder: Path) -> None:
    states, found = [], {}
    state: Any = None
    for number, (name, lanes, steps) in enumerate(
        (("blend.yaml", 2, 60), ("blend.yaml", 3, 60), ("other.yaml", 3, 60))
    ):
        (made,) = ranks(folder, 1, lanes, name)
        job = Job([made])
        if state is not None:
            job.states = [made.restored_state(state, strict=False)]
            job.slot = job.states[0].micro_batch_index
            job.lanes = [{lane: made.lane(lane, job.states[0]) for lane in job.states[0].lanes}]
        for step in range(60 * number, 60 * number + steps):
            found[step] = keys(job, 1)
        state = merge_states(job.save())
        states.append(LoaderState.from_dict(state))
    assert settings_of_state(states[-1])["weight_unit"] == "tokens"
    order = RunOrder(made, states=states)
    told = {
        step: [(*sample.restore_key[:3], 0) for sample in order.at(step).samples]
        for step in sorted(found, reverse=True)
    }
    assert told == found
    source, _, index, _ = found[90][0]
    number = made.source_ids.index(source)
    assert [one.step for one in order.when(source=number, index=index, steps=range(179 + 1))] == [
        step for step in found for key in found[step] if (key[0], key[2]) == (source, index)
    ]


def test_without_the_encoder_the_only_costs_of_the_data_are_taken(tmp_path: Path) -> None:
    for name in SIZES:
        write_texts(tmp_path / name, SIZES[name])
    (tmp_path / "blend.yaml").write_text(BLEND % 2)
    save_costs_of_blend(tmp_path / "blend.yaml", Encoder(), cost)
    expected = keys(Job(ranks(tmp_path, 1, 2)), 20)
    order = RunOrder(ranks(tmp_path, 1, 2, task_encoder=OrderTaskEncoder())[0])
    assert [sample.index for step in range(20) for sample in order.at(step).samples] == [key[2] for key in expected]
    save_costs_of_blend(tmp_path / "blend.yaml", GroupingEncoder(), cost)
    with pytest.raises(ConfigError, match=r"a/train: .* several encoders .*task_encoder=package"):
        ranks(tmp_path, 1, 2, task_encoder=OrderTaskEncoder())


def test_the_plan_says_the_unit_and_schedules_count_it(folder: Path) -> None:
    text = BLEND % "[{from_tokens: 0, weight: 2}, {from_tokens: 40000, weight: 1}]"
    (folder / "scheduled.yaml").write_text(text)
    lines = str(load_plan(folder / "scheduled.yaml")).splitlines()
    assert lines[0].endswith("[train], from tokens 0 → 40,000")
    assert "66.67% → 50.00% of tokens" in lines[1]
    made = ranks(folder, 2, 2, "scheduled.yaml")
    drawn = keys(Job(made), 1_500)
    total = [*itertools.accumulate(sum(cost(index)) for _, _, index, _ in drawn)]
    change = next(at for at, tokens in enumerate(total) if tokens >= 40_000)
    assert shares(made[0], drawn[:change]) == pytest.approx([2 / 3, 1 / 12, 1 / 4], abs=0.03)
    assert shares(made[0], drawn[change:]) == pytest.approx([1 / 2, 1 / 8, 3 / 8], abs=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("weight_unit: tokens", "weight_unit: 3"), r"blend.yaml:5: weight_unit"),
        (("tokens", "pixels"), "no cost 'pixels'"),
        (("    weight_unit: tokens\n", ""), "from_tokens"),
        (
            ("- weight: 1\n", "- weight: 1\n        weight_unit: samples\n"),
            r"blend.yaml:9: weight_unit: samples, .*tokens",
        ),
        (("  train:", "  train:\n    path: ./inner.yaml\n  other:"), r"inner.yaml:5: weight_unit: .*blend_epochized"),
        (("from_tokens: 9", "from_sample: 9"), "from_sample"),
    ],
)
def test_what_makes_no_sense_is_refused_by_file_and_line(folder: Path, change: tuple[str, str], message: str) -> None:
    text = BLEND % "[{from_tokens: 0, weight: 2}, {from_tokens: 9, weight: 1}]"
    assert change[0] in text
    here = folder / "wrong"
    here.mkdir(exist_ok=True)
    inner = BLEND.replace("%s", "1").replace("blend:", "blend_epochized:").replace("weight:", "repetitions:")
    (here / "inner.yaml").write_text(inner.replace("path: ", "path: ../"))
    (here / "blend.yaml").write_text(re.sub(r"path: (?=\w)", "path: ../", text.replace(*change)))
    with pytest.raises(ConfigError, match=message):
        ranks(here, 1, 2)


def test_the_option_and_validation(folder: Path) -> None:
    (folder / "plain.yaml").write_text((BLEND % 2).replace("    weight_unit: tokens\n", ""))
    by_option = ranks(folder, 1, 2, "plain.yaml", weight_unit="tokens")
    assert keys(Job(by_option), 20) == keys(Job(ranks(folder, 1, 2)), 20)
    with pytest.raises(ConfigError, match=r"weight_unit='samples': .*weights of tokens"):
        ranks(folder, 1, 2, weight_unit="samples")
    samples = sum(source.num_samples for source in load_plan(folder / "blend.yaml", training=False).sources)
    assert samples == sum(SIZES.values())


def test_check_run_and_info_tell_draws_and_the_unit(folder: Path) -> None:
    run = PlannedRun(data=DataConfig(path=str(folder / "blend.yaml")))
    found = examine(run, measure_s=0, task_encoder=Encoder())
    means = [sum(sum(cost(number)) for number in range(size)) / size for size in SIZES.values()]
    rates = [weight / mean for weight, mean in zip((8, 1, 3), means, strict=True)]
    assert [source.share for source in found.sources] == pytest.approx([rate / sum(rates) for rate in rates], rel=0.01)
    unmeasured = examine(run, measure_s=0, task_encoder=Encoder(skip_every=3))
    assert any("not measured with this encoder" in finding.what for finding in unmeasured.findings)
    told = CliRunner().invoke(main, ["info", str(folder / "blend.yaml"), "--json"])
    (part,) = json.loads(told.stdout)["split_parts"]
    assert part["weight_unit"] == "tokens"
    assert part["sources"][0]["shares"] == [{"from_tokens": 0, "share": pytest.approx(2 / 3)}]
    with pytest.raises(ConfigError, match="shares of tokens, not of draws"):
        count_draws(load_plan(folder / "blend.yaml"), 100, 2, 0)


def test_weights_that_begin_at_a_cost_begin_for_check_run_after_the_samples_that_cost_as_much(folder: Path) -> None:
    text = BLEND % "[{from_tokens: 0, weight: 2}, {from_tokens: 40000, weight: 1}]"
    (folder / "later.yaml").write_text(text)
    save_costs_of_blend(folder / "later.yaml", Encoder(), cost)
    (dataset,) = ranks(folder, 1, 2, "later.yaml")
    sizes = np.array([source.num_samples for source in dataset.plan.sources])
    means = np.array([table.total("tokens") for table in costs_of_sources(dataset)]) / sizes
    before, after = (np.array(tokens) / means for tokens in ([2 / 3, 1 / 12, 1 / 4], [1 / 2, 1 / 8, 3 / 8]))
    num_drawn = round(40_000 * (before.sum() + after.sum()))
    found = draws_of_sources(dataset, num_drawn)
    assert [one.draws for one in found] == pytest.approx((40_000 * (before + after)).tolist(), rel=0.05)


def test_an_added_data_set_begins_with_its_share_from_here_on(folder: Path) -> None:
    write_texts(folder / "d", 60)
    text = (BLEND % 2).replace("      - {path: a", "      - {path: d, weight: 3}\n      - {path: a")
    (folder / "more.yaml").write_text(text)
    save_costs_of_blend(folder / "more.yaml", Encoder(), cost)
    job = Job(ranks(folder, 1, 2))
    before = keys(job, 500)
    state = merge_states(job.save())
    (other,) = ranks(folder, 1, 2, "more.yaml")
    restored = other.restored_state(state, strict=False)
    job = Job([other])
    job.states, job.slot = [restored], restored.micro_batch_index
    job.lanes = [{lane: other.lane(lane, restored) for lane in restored.lanes}]
    after = keys(job, 300)
    assert shares(other, after) == pytest.approx([1 / 2, 1 / 3, 1 / 24, 1 / 8], abs=0.02)
    assert max(collections.Counter(before + after).values()) == 1
