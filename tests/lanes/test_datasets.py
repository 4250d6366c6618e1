from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from bridge_data import (
    ConfigError,
    DefaultTaskEncoder,
    LaneDataset,
    StateError,
    WorkerConfig,
    get_savable_loader,
    get_val_datasets,
)
from bridge_data.order import SampleRef
from tests.prepared import train_dataset, write_blend, write_texts
from tests.properties.jobs import Encoder, Job


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "a", 120, ratio="8,2,0")
    write_texts(folder / "b", 60)
    write_blend(folder / "blend.yaml", {"a": 3, "b": 1}, val="a")
    return folder


def train(path: Path, **changes: Any) -> LaneDataset:
    return train_dataset(path, num_lanes=4, **({"batch_size": 4} | changes))


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


def test_validation_sets_come_with_their_sources(several: Path) -> None:
    sources = [source for _, source in val_sets(several)[0]]
    assert [source.name for source in sources] == ["a/val", "b/train", "a/val"]
    assert [source.subflavors for source in sources] == [{"kind": "numbers"}, {}, {}]
    assert [source.num_samples for source in sources] == [20, 60, 20]
    (single,) = val_sets(several.parent / "b", split_part="train")[0]
    assert single[1].path == str(several.parent / "b")


def test_validation_sets_have_a_state_each(several: Path) -> None:
    loaders = [get_savable_loader(dataset) for dataset, _ in val_sets(several)[0]]
    next(iter(loaders[1]))
    saved = [loader.save_state_rank() for loader in loaders]
    assert [state["micro_batch_index"] for state in saved] == [0, 1, 0]
    again = [get_savable_loader(dataset) for dataset, _ in val_sets(several)[0]]
    for loader, state in zip(again, saved, strict=True):
        loader.restore_state_rank(state)
    rest = [[int(text) for batch in loader for text in batch.text] for loader in again]
    assert rest == [EXPECTED[0], EXPECTED[1][5:], EXPECTED[2]]
    with pytest.raises(StateError, match="sources: gone or changed: b/train"):
        again[0].restore_state_rank(saved[1])


class Both(DefaultTaskEncoder[Any, Any, Any, Any]):
    def encode_sample(self, sample: Any) -> Any:
        return sample

    def preencode_sample(self, sample: Any) -> Any:
        return sample


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
        ({"task_encoder": Both()}, "Both overrides encode_sample and also preencode_sample"),
    ],
)
def test_wrong_settings_are_refused_before_the_first_read(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(folder / "blend.yaml", **changes)


@pytest.mark.parametrize(
    ("path", "changes", "message"),
    [
        ("blend", {"worker_config": WorkerConfig(0, 1, 0, seed_offset=5)}, "seed: the state has 0, this run has 5"),
        ("blend", {"batch_size": 8}, "batch_size: the state has 4, this run has 8"),
        ("blend", {"packing_buffer_size": 50, "task_encoder": Encoder()}, "packing_buffer_size"),
        ("blend", {"max_samples_per_sequence": 11}, "max_samples_per_sequence"),
        ("blend", {"shuffle_over_epochs_multiplier": 2}, "epochs_per_shuffle"),
        ("other", {}, r"weights: the state has \[0.75, 0.25\], this run has \[0.66"),
        ("alone", {}, r"(?s)sources: gone or changed: b/train \([0-9a-f]{24}\); new: none.*weights"),
    ],
)
def test_a_state_of_another_run_is_refused_with_what_differs(
    folder: Path, path: str, changes: dict[str, Any], message: str
) -> None:
    write_blend(folder / "other.yaml", {"a": 2, "b": 1})
    write_blend(folder / "alone.yaml", {"a": 1})
    saved = train(folder / "blend.yaml").new_state().to_dict()
    with pytest.raises(StateError, match=message):
        train(folder / f"{path}.yaml", **changes).restored_state(saved)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("limit", [None, 1, 3])
def test_validation_sets_are_one_for_each_source_each_in_its_order_up_to_the_limit(
    several: Path, world_size: int, limit: int | None
) -> None:
    ranks = val_sets(several, world_size, limit=limit)
    for place, expected in enumerate(EXPECTED):
        assert numbers_of(Job([sets[place][0] for sets in ranks])) == expected[: 5 * limit if limit else None]


@pytest.mark.parametrize(
    ("settings", "told"), [({"limit": 0}, "limit=0"), ({"split_part": "test"}, "no split 'test' is declared")]
)
def test_wrong_settings_of_validation_sets_are_refused(several: Path, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        val_sets(several, **settings)


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


def test_a_dataset_named_twice_in_a_blend_is_read_in_two_orders(folder: Path) -> None:
    made = train(write_blend(folder / "twice.yaml", {"a": 1, "../" + folder.name + "/a": 1}), batch_size=None)
    lane = made.lane(0, made.new_state())
    keys = [lane.next().batch.__restore_key__ for _ in range(60)]
    first, second = ([index for source, _, index, _ in keys if source == name][:20] for name in made.source_ids)
    assert len(first) == len(second) == 20 and first != second


def test_only_what_a_data_set_has_can_be_changed(tmp_path: Path) -> None:
    made = train_dataset(write_texts(tmp_path / "texts", 8), batch_size=2)
    assert (made.changed(begins_anew=True).begins_anew, made.begins_anew) == (True, False)
    with pytest.raises(TypeError, match="opened"):
        made.changed(opened=None)  # type: ignore[call-arg]
