"""Restores with other weights, more data sets or another batch size."""

import collections
import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from bridge_data import ConfigError, LaneDataset, StateError, merge_states, stateless
from bridge_data.plan import Branch
from tests.prepared import train_dataset, val_dataset, write_blend, write_texts
from tests.properties.jobs import Encoder, GroupingEncoder, Job, Key, Packed, number_of

SIZES = {"a": 300, "b": 90, "c": 40}


class OneSize(GroupingEncoder):
    """As `GroupingEncoder`, with buckets of the batch size, or all of `own_size`."""

    def __init__(self, *, own_size: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.own_size = own_size

    @stateless
    def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
        number = sample.keys[0][2] if isinstance(sample, Packed) else number_of(sample)
        return ("group", number % self.num_groups), self.own_size


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, size in SIZES.items():
        write_texts(folder / name, size)
    return folder


def dataset(folder: Path, weights: dict[str, float], encoder: Any = None, **changes: Any) -> LaneDataset:
    blend = write_blend(folder / "blend.yaml", weights)
    return train_dataset(blend, num_lanes=3, task_encoder=encoder or Encoder(), **({"batch_size": 3} | changes))


def keys(job: Job, steps: int) -> list[Key]:
    return [key for _ in range(steps) for batch in job.step() for unit in batch for key in unit]


def restored(made: LaneDataset, saved: dict[str, Any]) -> Job:
    job = Job([made])
    state = made.restored_state(saved, strict=False)
    job.states, job.slot = [state], state.micro_batch_index
    job.lanes = [{lane: made.lane(lane, state) for lane in state.lanes}]
    return job


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({"a": 3, "b": 1}, {"a": 1, "b": 3}, {}),
        ({"a": 3, "b": 1}, {"c": 1, "a": 3, "b": 1}, {}),
        ({"a": 1}, {"b": 1, "a": 1}, {}),
        ({"a": 3, "b": 1}, {"b": 1, "a": 3}, {}),
        ({"a": 3, "b": 1}, {"a": 3, "b": 1}, {"batch_size": 7}),
    ],
)
@pytest.mark.parametrize("packing", [None, 20])
def test_every_sample_still_comes_once(
    folder: Path, before: dict[str, float], after: dict[str, float], changes: dict[str, Any], packing: int | None
) -> None:
    encoder = GroupingEncoder(num_groups=2, num_parts=2)
    job = Job([dataset(folder, before, encoder, packing_buffer_size=packing)])
    found = keys(job, 17)
    other = dataset(folder, after, encoder, packing_buffer_size=packing, **changes)
    found += keys(restored(other, merge_states(job.save())), 1_200)
    assert max(collections.Counter(found).values()) == 1
    for name, source in zip(after, other.source_ids, strict=True):
        first_epoch = {index for key, epoch, index, _ in found if (key, epoch) == (source, 0)}
        assert first_epoch == set(range(SIZES[name]))


@pytest.mark.parametrize("packing", [None, 20])
def test_a_source_is_switched_off_and_on_and_goes_on_where_it_was(folder: Path, packing: int | None) -> None:
    found: list[Key] = []
    saved: Any = None
    counts = []
    for weights, steps in (({"a": 1, "b": 1}, 10), ({"a": 9, "b": 0}, 40), ({"a": 1, "b": 1}, 400)):
        made = dataset(folder, weights, packing_buffer_size=packing)
        job = restored(made, saved) if saved else Job([made])
        drawn = keys(job, steps)
        saved = merge_states(job.save())
        found += drawn
        counts.append(sum(key[0] == made.source_ids[1] for key in drawn))
    assert max(collections.Counter(found).values()) == 1
    assert counts[0] > 10
    assert counts[1] == 0 if packing is None else counts[1] <= counts[0] + 3 * 20
    assert counts[2] / len(drawn) == pytest.approx(0.5, abs=0.05), "new weights hold from the restore on"
    first_epoch = {index for key, epoch, index, _ in found if (key, epoch) == (made.source_ids[1], 0)}
    assert first_epoch == set(range(SIZES["b"]))


def test_a_source_may_begin_switched_off(folder: Path) -> None:
    job = Job([dataset(folder, {"a": 1, "b": 0})])
    source = job.datasets[0].source_ids[1]
    assert source not in {key[0] for key in keys(job, 200)}
    assert all("1" not in lane["cursors"] for lane in job.states[0].lanes.values())
    saved, other = merge_states(job.save()), dataset(folder, {"a": 1, "b": 1})
    with pytest.raises(StateError, match=r"weights: the state has \[1.0, 0.0\], this run has \[0.5, 0.5\]"):
        other.restored_state(saved)
    assert (source, 0) in {key[:2] for key in keys(restored(other, saved), 20)}
    with pytest.raises(ConfigError, match=r"repeat=False: .* but b/train has weight 0"):
        dataset(folder, {"a": 1, "b": 0}, repeat=False)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_weights_of_a_plan_made_in_python_are_checked_by_the_names_of_the_sources(folder: Path, wrong: float) -> None:
    plan = dataset(folder, {"a": 3, "b": 1}).plan
    with pytest.raises(ConfigError, match=r"blend: the weight of b/train is .*, expected a finite number"):
        train_dataset(dataclasses.replace(plan, weights=(1.0, wrong)))
    with pytest.raises(ConfigError, match=r"mine: the weight of a/train is .*, expected 0 or more, finite"):
        Branch("mine", ((wrong, plan.sources[0]),))


def test_an_added_set_may_have_a_number_of_epochs_of_its_own(folder: Path) -> None:
    for name in "ac":
        (folder / f"{name}_by_2").mkdir(exist_ok=True)
        settings = f"path: ../{name}, split_part: train, shuffle_over_epochs_multiplier: 2"
        (folder / f"{name}_by_2" / "set.yaml").write_text(
            f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {{train: {{{settings}}}}}\n"
        )
    job = Job([dataset(folder, {"a": 3, "b": 1})])
    found = keys(job, 17)
    other = dataset(folder, {"a": 3, "b": 1, "c_by_2/set.yaml": 1})
    assert other.fingerprint()["epochs_of_sources"] == {other.source_ids[2]: 2}
    found += keys(restored(other, merge_states(job.save())), 1_200)
    assert max(collections.Counter(found).values()) == 1
    assert {index for key, epoch, index, _ in found if (key, epoch) == (other.source_ids[2], 1)} == set(range(40))
    with pytest.raises(StateError, match="epochs_of_sources"):
        dataset(folder, {"a_by_2/set.yaml": 3, "b": 1}).restored_state(merge_states(job.save()), strict=False)


def test_differences_are_logged_with_what_they_mean_and_others_are_still_refused(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = dataset(folder, {"a": 0.3, "b": 0.1}).new_state().to_dict()
    dataset(folder, {"a": 3, "b": 1}).restored_state(saved)  # the same blend
    with caplog.at_level(logging.WARNING, logger="bridge_data"):
        dataset(folder, {"a": 1, "b": 1, "c": 1}, batch_size=8).restored_state(saved, strict=False)
    for part in ("c/train", "start with their first epoch", "by the new weights", "batch_size: the state has 3"):
        assert part in caplog.text
    with pytest.raises(StateError, match=r"has read from b/train, which this plan lacks"):
        dataset(folder, {"a": 3, "c": 1}).restored_state(saved, strict=False)
    with pytest.raises(StateError, match="max_samples_per_sequence"):
        dataset(folder, {"a": 3, "b": 1}, max_samples_per_sequence=5).restored_state(saved, strict=False)
    three, four = (val_dataset(folder / "a", batch_size=size) for size in (3, 4))
    with pytest.raises(StateError, match="start it again"):
        four.restored_state(three.new_state().to_dict(), strict=False)


@pytest.mark.parametrize("packing", [None, 20])
@pytest.mark.parametrize("is_finite", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4, 11])
def test_groups_give_no_micro_batch_above_the_new_size(
    folder: Path, size: int, is_finite: bool, packing: int | None
) -> None:
    """Incomplete micro-batches of 8 that wait in the state become several of the new size, also at the end."""

    def made(batch_size: int) -> LaneDataset:
        options: dict[str, Any] = {"packing_buffer_size": packing, "repeat": not is_finite}
        return dataset(folder, {"a": 1}, OneSize(num_groups=5), batch_size=batch_size, **options)

    job = Job([made(8)])
    found = keys(job, 9)
    waiting = [bucket for lane in job.states[0].lanes.values() for bucket in lane["pending"]["buckets"].values()]
    assert max(map(len, waiting)) > 4
    job = restored(made(size), merge_states(job.save()))
    batches = [batch for _ in range(500 // size + 60) for batch in job.step() if batch is not None]
    assert max(map(len, batches)) <= size
    found += [key for batch in batches for unit in batch for key in unit]
    assert max(collections.Counter(found).values()) == 1
    assert {index for _, epoch, index, _ in found if epoch == 0} == set(range(SIZES["a"]))


@pytest.mark.parametrize("is_finite", [False, True])
def test_an_encoder_that_gives_a_group_less_now_gets_no_more(folder: Path, is_finite: bool) -> None:
    def made(size: int) -> LaneDataset:
        encoder = OneSize(num_groups=5, own_size=size)
        return dataset(folder, {"a": 1}, encoder, batch_size=None, repeat=not is_finite)

    job = Job([made(8)])
    found = keys(job, 9)
    job = restored(made(2), merge_states(job.save()))
    batches = [batch for _ in range(300) for batch in job.step() if batch is not None]
    assert max(map(len, batches)) == 2
    found += [key for batch in batches for unit in batch for key in unit]
    assert max(collections.Counter(found).values()) == 1
    assert {index for _, epoch, index, _ in found if epoch == 0} == set(range(SIZES["a"]))
