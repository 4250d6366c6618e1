from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from bridge_data import (
    ConfigError,
    DefaultTaskEncoder,
    StateError,
    TextSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    merge_states,
)
from bridge_data.order import SampleRef
from tests.prepared import write_blend, write_texts
from tests.properties.jobs import Encoder, GroupingEncoder, Job

ONE = WorkerConfig(0, 1, 0, num_lanes=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "a", 120, ratio="8,2,0")
    write_texts(folder / "b", 60)
    write_blend(folder / "blend.yaml", {"a": 3, "b": 1}, val="a")
    return folder


def train(path: Path, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "worker_config": ONE,
        "batch_size": 4,
        "shuffle_buffer_size": 20,
        "max_samples_per_sequence": 10,
    }
    return get_train_dataset(path, **(settings | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"packing_buffer_size": 0, "task_encoder": Encoder()}, "packing_buffer_size=0"),
        ({"packing_buffer_size": 10}, "does not override select_samples_to_pack"),
        ({"max_samples_per_sequence": 0}, "max_samples_per_sequence=0"),
        ({"shuffle_buffer_size": -1}, "shuffle_buffer_size=-1"),
        ({"shuffle_over_epochs_multiplier": 0}, "shuffle_over_epochs_multiplier=0"),
        ({"virtual_epoch_length": -1}, "virtual_epoch_length=-1"),
        ({"batch_size": None, "task_encoder": GroupingEncoder()}, "batch_size is None"),
    ],
)
def test_wrong_settings_are_refused_before_the_first_read(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(folder / "blend.yaml", **changes)


def test_hooks_that_exclude_each_other_are_refused(folder: Path) -> None:
    class Both(DefaultTaskEncoder[Any, Any, Any, Any]):
        def encode_sample(self, sample: Any) -> Any:
            return sample

        def preencode_sample(self, sample: Any) -> Any:
            return sample

    with pytest.raises(ConfigError, match="Both overrides encode_sample and also"):
        train(folder / "blend.yaml", task_encoder=Both())


def test_a_dataset_named_twice_in_a_blend_is_read_in_two_orders(folder: Path) -> None:
    file = folder / "twice.yaml"
    write_blend(file, {"a": 1, "../" + folder.name + "/a": 1})
    made = train(file, batch_size=None)
    assert len(set(made.source_names)) == 2
    lane = made.lane(0, made.new_state())
    drawn: dict[str, list[int]] = {name: [] for name in made.source_names}
    for _ in range(60):
        source, _, index, _ = lane.next().batch.__restore_key__
        drawn[source].append(index)
    first, second = drawn.values()
    shared = min(len(first), len(second))
    assert first[:shared] != second[:shared]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"worker_config": WorkerConfig(0, 1, 0, seed_offset=5)}, "seed: the state has 0, this run has 5"),
        ({"batch_size": 8}, "batch_size: the state has 4, this run has 8"),
        ({"packing_buffer_size": 50, "task_encoder": Encoder()}, "packing_buffer_size"),
        ({"max_samples_per_sequence": 11}, "max_samples_per_sequence"),
        ({"shuffle_over_epochs_multiplier": 2}, "epochs_per_shuffle"),
    ],
)
def test_a_state_of_other_settings_is_refused_by_name(folder: Path, changes: dict[str, Any], message: str) -> None:
    saved = train(folder / "blend.yaml").new_state().to_dict()
    with pytest.raises(StateError, match=message):
        train(folder / "blend.yaml", **changes).check_state(saved)


def test_a_state_of_other_data_or_weights_is_refused_by_name(folder: Path) -> None:
    saved = train(folder / "blend.yaml").new_state().to_dict()
    with pytest.raises(StateError, match=r"(?s)sources: gone or changed: b/train \([0-9a-f]{16}\); new: none.*quotas"):
        train(folder / "a").check_state(saved)
    write_blend(folder / "other.yaml", {"a": 2, "b": 1})
    with pytest.raises(StateError, match=r"quotas: the state has \[49152, 16384\]"):
        train(folder / "other.yaml").check_state(saved)


def test_validation_is_every_sample_once_in_the_order_of_the_data(folder: Path) -> None:
    for world_size in (1, 2, 4):
        ranks = [
            get_val_dataset(
                folder / "blend.yaml", worker_config=WorkerConfig(r, world_size, 0, num_lanes=4), batch_size=5
            )
            for r in range(world_size)
        ]
        job = Job(ranks)
        found = [batch for _ in range(40 // world_size) for batch in job.step() if batch is not None]
        texts = [int(text) for batch in found for text in batch.text]
        assert texts == list(range(100, 120))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_limit_ends_the_validation_of_the_whole_job(folder: Path, limit: int) -> None:
    ranks = [
        get_val_dataset(folder / "a", worker_config=WorkerConfig(r, 2, 0), batch_size=5, limit=limit) for r in range(2)
    ]
    job = Job(ranks)
    found = [batch for _ in range(10) for batch in job.step() if batch is not None]
    assert [int(text) for batch in found for text in batch.text] == list(range(100, 100 + 5 * limit))


def test_augmentations_are_the_same_on_any_lane_and_rank(folder: Path) -> None:
    import random

    class Augment(DefaultTaskEncoder[Any, Any, Any, Any]):
        def encode_sample(self, sample: TextSample) -> TextSample:
            return TextSample.derive_from(sample, text=f"{sample.text}:{random.random()}")

    def drawn(num_lanes: int) -> set[str]:
        config = WorkerConfig(0, 1, 0, num_lanes=num_lanes)
        made = train(folder / "b", task_encoder=Augment(), repeat=False, batch_size=1, worker_config=config)
        job = Job([made])
        return {batch.text[0] for _ in range(60 + 2 * num_lanes) for batch in job.step() if batch is not None}

    assert len(drawn(1)) == 60
    assert drawn(1) == drawn(2) == drawn(5)


def test_a_sample_is_described_by_its_key_also_where_the_data_is_gone(tmp_path: Path) -> None:
    made = train(write_texts(tmp_path / "d", 120))
    assert made.describe(SampleRef(0, 2, 55)) == "data-0001.tar/000055 of d/train (epoch 2, index 55)"
    (tmp_path / "d" / "data-0001.tar").unlink()
    assert made.describe(SampleRef(0, 2, 55)) == "data-0001.tar of d/train (epoch 2, index 55)"


def test_a_dataset_travels_without_what_it_has_opened(folder: Path) -> None:
    made = train(folder / "blend.yaml", task_encoder=Encoder())
    small = len(cloudpickle.dumps(made))
    first = made.lane(1, made.new_state()).next()
    assert len(cloudpickle.dumps(made)) <= small * 1.1
    copy = cloudpickle.loads(cloudpickle.dumps(made))
    assert copy.lane(1, copy.new_state()).next() == first


def test_ranks_near_the_end_of_finite_data_can_be_merged_and_dealt_anew(folder: Path) -> None:
    def loaders(world_size: int, num_lanes: int) -> list[Any]:
        return [
            get_savable_loader(
                train(
                    folder / "b",
                    worker_config=WorkerConfig(rank, world_size, 0, num_lanes=num_lanes),
                    repeat=False,
                    batch_size=3,
                    task_encoder=Encoder(),
                )
            )
            for rank in range(world_size)
        ]

    whole = loaders(2, 4)
    streams = [iter(loader) for loader in whole]
    emitted: list[Any] = []
    for _ in range(9):
        emitted += [key for stream in streams for unit in next(stream, []) for key in unit]
        saved = merge_states([loader.save_state_rank() for loader in whole])
        rest = loaders(3, 3)
        for loader in rest:
            loader.restore_state_rank(saved)
        after = [key for loader in rest for batch in loader for unit in batch for key in unit]
        assert len(emitted + after) == len(set(emitted + after)) == 60
