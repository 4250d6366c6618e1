"""What the oracle says of runs, compared with the keys in their batches."""

import itertools
from pathlib import Path

import pytest

from bridge_data import ConfigError, StateError, TextSample, WorkerConfig, get_train_dataset, get_val_dataset
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.order.cursor import SampleKey
from bridge_data.runs.run_order import RunOrder
from bridge_data.runs.training_run import OrderTaskEncoder
from tests.prepared import write_blend, write_texts
from tests.runs.oracle.parts import LEGS, SETTINGS, Run, check, write_two


@pytest.fixture(scope="module")
def blends(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two metadatasets: of two data sets, and of the same with other weights and a third."""
    first = write_two(tmp_path_factory.mktemp("blends"))
    write_texts(first.parent / "c", 50)
    return first, write_blend(first.parent / "second.yaml", {"a": 1, "b": 2, "c": 1})


@pytest.mark.parametrize("kind", LEGS)
def test_every_step_of_a_run_is_told_through_a_kill_other_ranks_and_another_blend(blends, kind):
    run = Run({**SETTINGS, **LEGS[kind]})
    run.leg(blends[0], 2, 30, num_lanes=4)
    run.leg(blends[0], 2, 10, lost=3)  # and killed: the next leg repeats what was lost
    run.leg(blends[0], 3, 20)  # 3 ranks do not share 4 lanes equally: the rest is resharded
    run.leg(blends[1], 3, 25)
    run.leg(blends[1], 1, 30)
    order = RunOrder(run.dataset(1), states=run.states, num_ranks=run.num_ranks)
    check(run, order, sorted(run.keys)[::-1])
    assert len(run.keys) == 2 * 40 + 3 * 45 + 30
    for number, rank in run.ranks.items():  # the ranks of the start that took it, not those of the newest one
        assert {one.rank for one in order.micro_batch(number)} == {rank}
    with pytest.raises(ConfigError, match="rank=2: the run has 2 data-parallel ranks"):
        order.at(0, rank=2)
    if kind == "plain":
        assert order.num_replayed == 0 and not order.at(200).assumes_no_skips
        samples = [one for number in sorted(run.keys) for one in order.micro_batch(number)]
        for sample in samples[::97]:
            same = [one for one in samples if (one.source, one.index) == (sample.source, sample.index)]
            assert order.when(source=sample.source, index=sample.index, steps=range(max(run.keys) + 1)) == same


def test_when_finds_samples_in_memory_by_key_and_by_number():
    named = [TextSample(__key__=f"k{number}", __restore_key__=(), text="x") for number in range(30)]
    crude = [{"txt": str(number)} for number in range(30)]
    for items, key, encoder in ((named, "k17", None), (crude, "17", OrderTaskEncoder())):
        config = WorkerConfig(0, 1, 0, num_lanes=2)
        order = RunOrder(get_train_dataset(items, worker_config=config, task_encoder=encoder, **SETTINGS))
        found = order.when(key, steps=range(25 + 1))
        assert (
            found
            == order.when(source=0, index=17, steps=range(25 + 1))
            == order.when(f"memory:{key}", steps=range(25 + 1))
        )
        assert [one.step for one in found] == [
            step for step in range(26) if key in [sample.key for sample in order.at(step).samples]
        ]


def test_a_section_whose_states_are_no_chain_is_refused_and_counted(blends):
    run = Run(SETTINGS)
    run.leg(blends[0], 3, 10, num_lanes=6)
    run.leg(blends[0], 2, 10, num_lanes=4)
    run.leg(blends[0], 5, 9)
    order = RunOrder(run.dataset(5), states=[run.states[0], run.states[2]])  # that of 2 ranks is missing
    check(run, order, range(30))
    with pytest.raises(ConfigError, match=r"micro-batch 50: .* 30 to 94 .* of 6 and 40 lanes"):
        order.micro_batch(50)
    assert [(steps.start, steps.stop) for steps, _ in order.unknown(range(18 + 1))] == [(6, 19)]
    last = RunOrder(run.dataset(5), states=[run.states[2]])
    sample = RunOrder(run.dataset(5), states=run.states).micro_batch(3)[0]
    assert [(steps.start, steps.stop) for steps, _ in last.unknown(range(19))] == [(0, 19)]
    assert last.when(sample.key, source=sample.source, steps=range(18 + 1)) == []


def test_states_of_two_continuations_at_one_position_are_refused(blends):
    run = Run(SETTINGS)
    run.leg(blends[0], 2, 10, num_lanes=4)
    other = Run(SETTINGS, states=[*run.states])
    run.leg(blends[0], 3, 8, num_lanes=6)
    other.leg(blends[0], 4, 1, num_lanes=8)
    other.leg(blends[0], 2, 10, num_lanes=8)
    assert other.states[-1].micro_batch_index == run.states[-1].micro_batch_index == 44
    with pytest.raises(StateError, match="2 states after 44 micro-batches, with 6 and 8 lanes"):
        RunOrder(run.dataset(3), states=[run.states[-1], other.states[-1]])


def test_steps_follow_the_ramp_and_the_ranks(blends):
    dataset = get_train_dataset(blends[0], worker_config=WorkerConfig(0, 2, 0, num_lanes=4), **SETTINGS)
    schedule = BatchSchedule(24, 3, [6, 6, 60])
    order = RunOrder(dataset, schedule=schedule)
    consumed = 0
    for step in range(40):
        numbers = order.micro_batches(step)
        assert (numbers.start * 3, len(numbers) * 3) == (consumed, schedule.size_after(consumed))
        assert [order.step_of(number) for number in numbers] == [step] * len(numbers)
        consumed += len(numbers) * 3
    samples = order.at(7).samples
    assert {sample.rank for sample in samples} == {0, 1}
    assert [sample for sample in samples if sample.rank == 1] == order.at(7, rank=1).samples
    assert [(s.lane, s.place) for s in order.at(0).samples] == [*itertools.product([0, 1], range(3))]


@pytest.mark.parametrize("is_epochized", [False, True])
def test_finite_data_is_told_to_its_end(tmp_path, is_epochized):
    write_texts(tmp_path / "a", 41)
    write_texts(tmp_path / "b", 30, per_shard=7)
    run = Run({**SETTINGS, "repeat": False})
    run.path = write_blend(tmp_path / "m.yaml", {"a": 1, "b": 2}, epochized=is_epochized)
    dataset = run.dataset(1, num_lanes=2)
    order = RunOrder(dataset)
    for lane in range(2):
        made = dataset.lane(lane, dataset.new_state())
        for number in itertools.count(lane, 2):
            told = [sample.key for sample in order.micro_batch(number)]
            try:
                assert told == list(made.next().batch.__key__)
            except StopIteration:
                assert told == []
                break


def test_hooks_that_may_leave_out_samples_are_told_until_a_state_proves_otherwise(blends):
    run = Run({**SETTINGS, **LEGS["skips"]})
    run.leg(blends[0], 2, 20, num_lanes=4)
    assert RunOrder(run.dataset(2, num_lanes=4)).at(3).assumes_no_skips
    order = RunOrder(run.dataset(2), states=run.states)
    found = order.at(3)
    assert found.num_replayed > 6 and not found.assumes_no_skips and order.at(25).assumes_no_skips


def test_what_a_run_has_written_down_is_told_without_a_replay(blends):
    run = Run({**SETTINGS, **LEGS["packing"]})
    run.leg(blends[0], 2, 20, num_lanes=4)
    replayed = RunOrder(run.dataset(2), states=run.states)
    names = replayed.dataset.source_ids

    class Written(dict[int, list[SampleKey]]):
        def micro_batch(self, number: int) -> list[SampleKey]:
            if number not in self:
                raise ConfigError("not there")
            return self[number]

        def __iter__(self):
            return iter(self.items())

    written = Written(
        {
            number: [SampleKey(names[s.source_number], s.epoch, s.index, s.part) for s in replayed.micro_batch(number)]
            for number in range(30)
        }
    )
    order = RunOrder(run.dataset(2), states=run.states, records=written)
    check(run, order, range(30))
    one = order.micro_batch(11)[2]
    assert one in order.when(one.key, source=one.source, steps=range(14 + 1))
    assert not order.num_replayed
    check(run, order, range(30, 40))
    assert order.num_replayed


def test_what_cannot_be_told_is_refused(blends):
    run = Run(SETTINGS)
    run.leg(blends[0], 2, 4, num_lanes=4)
    run.leg(blends[0], 3, 4)
    order = RunOrder(run.dataset(3), states=run.states[1:])
    config, a = WorkerConfig(0, 1, 0), blends[0].parent / "a"
    validation = get_val_dataset(a, split_part="train", worker_config=config, batch_size=1)
    for call, told in (
        (lambda: RunOrder(validation), "data set for training"),
        (lambda: order.at(1), "give an earlier state"),
        (lambda: order.when("nothing", steps=range(9 + 1)), "no sample has the key"),
        (lambda: order.when("000007", steps=range(9 + 1)), "say which is meant"),
        (lambda: order.when(index=3, steps=range(9 + 1)), "give its source"),
        (lambda: order.when("000007", source="d", steps=range(9 + 1)), "there is none of this name"),
        (lambda: order.at(-1), "counted from 0"),
        (lambda: order.at(4, rank=3), "3 data-parallel ranks"),
    ):
        with pytest.raises(ConfigError, match=told):
            call()
