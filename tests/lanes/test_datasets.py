from pathlib import Path
from typing import Any

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
    get_val_datasets,
)
from tests.prepared import write_blend, write_texts
from tests.properties.jobs import Encoder, Job

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
        ({"shuffle_over_epochs_multiplier": 0}, "shuffle_over_epochs_multiplier: got 0"),
        ({"virtual_epoch_length": -1}, "virtual_epoch_length=-1"),
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
    with pytest.raises(StateError, match=r"(?s)sources: gone or changed: b/train \([0-9a-f]{16}\); new: none.*weights"):
        train(folder / "a").check_state(saved)
    write_blend(folder / "other.yaml", {"a": 2, "b": 1})
    with pytest.raises(StateError, match=r"weights: the state has \[0.75, 0.25\], this run has \[0.66"):
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


@pytest.fixture(scope="module")
def several(folder: Path) -> Path:
    """Three validation sets, one of them named twice, and one without samples."""
    write_texts(folder / "empty", 20, ratio="1,0,0")
    lines = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:", "  val:", "    blend:"]
    lines += ["      - {path: a, subflavors: {kind: numbers}}", "      - {path: empty}", "      - blend:"]
    lines += ["          - {path: b, split_part: train}", "          - {path: a}"]
    (folder / "several.yaml").write_text("\n".join(lines))
    return folder / "several.yaml"


EXPECTED = [list(range(100, 120)), list(range(60)), list(range(100, 120))]


def val_sets(path: Path, world_size: int = 1, **settings: Any) -> list[list[Any]]:
    """For each rank, its data sets and their sources."""
    configs = [WorkerConfig(rank, world_size, 0, num_lanes=12) for rank in range(world_size)]
    return [get_val_datasets(path, worker_config=config, **{"batch_size": 5} | settings) for config in configs]


def numbers_of(job: Job) -> list[int]:
    found = [batch for _ in range(60) for batch in job.step() if batch is not None]
    return [int(text) for batch in found for text in batch.text]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_validation_sets_are_one_for_each_source_the_same_on_any_number_of_ranks(
    several: Path, world_size: int
) -> None:
    ranks = val_sets(several, world_size)
    for place, expected in enumerate(EXPECTED):
        assert numbers_of(Job([sets[place][0] for sets in ranks])) == expected


def test_validation_sets_come_with_their_sources(several: Path) -> None:
    sources = [source for _, source in val_sets(several)[0]]
    assert [source.name for source in sources] == ["a/val", "b/train", "a/val"]
    assert [source.subflavors for source in sources] == [{"kind": "numbers"}, {}, {}]
    assert [source.num_samples for source in sources] == [20, 60, 20]
    (single,) = val_sets(several.parent / "b", split_part="train")[0]
    assert single[1].path == str(several.parent / "b")


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_limit_holds_for_each_validation_set(several: Path, limit: int) -> None:
    ranks = val_sets(several, 2, limit=limit)
    for place, expected in enumerate(EXPECTED):
        assert numbers_of(Job([sets[place][0] for sets in ranks])) == expected[: 5 * limit]


def test_validation_sets_have_a_state_each(several: Path) -> None:
    loaders = [get_savable_loader(dataset) for dataset, _ in val_sets(several)[0]]
    next(iter(loaders[1]))
    saved = [loader.save_state_rank() for loader in loaders]
    assert [state["next_slot"] for state in saved] == [0, 1, 0]
    again = [get_savable_loader(dataset) for dataset, _ in val_sets(several)[0]]
    for loader, state in zip(again, saved, strict=True):
        loader.restore_state_rank(state)
    rest = [[int(text) for batch in loader for text in batch.text] for loader in again]
    assert rest == [EXPECTED[0], EXPECTED[1][5:], EXPECTED[2]]
    with pytest.raises(StateError, match="sources: gone or changed: b/train"):
        again[0].restore_state_rank(saved[1])


def test_wrong_settings_of_validation_sets_are_refused(several: Path) -> None:
    with pytest.raises(ConfigError, match="limit=0"):
        val_sets(several, limit=0)
    with pytest.raises(ConfigError, match="no split 'test' is declared"):
        val_sets(several, split_part="test")
