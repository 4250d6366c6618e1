"""The order of a plan: the numbers of its samples; `shuffle_over_epochs_multiplier` of single data sets."""

import collections
import itertools
from pathlib import Path
from typing import Any

import pytest

from bridge_data import ConfigError, StateError, WorkerConfig, get_loader, get_savable_loader, get_train_dataset
from tests.prepared import train_dataset, write_texts

SIZE = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in "ab":
        write_texts(folder / name, SIZE, lambda number, name=name: f"{name}{number}", per_shard=2)  # type: ignore[misc]
    return folder


def dataset(folder: Path, a: Any = 1, b: Any = 1, **more: Any) -> Any:
    items = [{"path": str(folder / n), "shuffle_over_epochs_multiplier": m} for n, m in (("a", a), ("b", b))]
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    settings = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": 2} | more
    return get_train_dataset(
        {**head, "splits": {"train": {"blend": items}}},
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=1),
        **settings,
    )


def texts(folder: Path, epochs: int, **settings: Any) -> dict[str, list[str]]:
    """What comes from each data set in so many epochs, in its order."""
    drawn = [sample.text for sample in itertools.islice(get_loader(dataset(folder, **settings)), 4 * epochs * SIZE)]
    return {name: [text for text in drawn if text[0] == name][: epochs * SIZE] for name in "ab"}


def test_epochs_of_one_data_set_are_shuffled_together(folder: Path) -> None:
    found = texts(folder, 3, a=3)
    assert set(collections.Counter(found["a"]).values()) == {3}
    assert len(set(found["a"][:SIZE])) < SIZE
    assert len(set(found["b"][:SIZE])) == SIZE


def test_levels_multiply(folder: Path) -> None:
    found = texts(folder, 6, a=3, shuffle_over_epochs_multiplier=2)
    assert set(collections.Counter(found["a"]).values()) == {6}
    assert set(collections.Counter(found["a"][: 3 * SIZE]).values()) != {3}
    assert set(collections.Counter(found["b"][: 2 * SIZE]).values()) == {2}


def test_with_replacement_a_sample_comes_as_chance_will(folder: Path) -> None:
    times = collections.Counter(texts(folder, 8, a=-1)["a"])
    assert len(set(times.values())) > 3


def test_without_shuffling_samples_come_in_their_order(folder: Path) -> None:
    found = texts(folder, 2, a=None)
    assert found["a"] == [f"a{number}" for number in range(SIZE)] * 2
    assert found["b"][:SIZE] != sorted(found["b"][:SIZE], key=lambda text: int(text[1:]))


def test_finite_data_have_all_epochs_that_are_shuffled_together(folder: Path) -> None:
    samples = [sample.text for sample in get_loader(dataset(folder, a=2, repeat=False))]
    assert set(collections.Counter(text for text in samples if text[0] == "a").values()) == {2}
    assert set(collections.Counter(text for text in samples if text[0] == "b").values()) == {1}


def test_drawing_with_replacement_has_no_end(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"a/train is drawn with replacement .* it has no end"):
        dataset(folder, a=-1, repeat=False)


def test_a_state_of_another_setting_is_refused(folder: Path) -> None:
    loader = get_savable_loader(dataset(folder, a=3))
    next(iter(loader))
    state = loader.save_state_rank()
    again = get_savable_loader(dataset(folder, a=3))
    again.restore_state_rank(state)
    expected = [sample.text for sample in itertools.islice(loader, 30)]
    assert [sample.text for sample in itertools.islice(again, 30)] == expected
    with pytest.raises(StateError, match="epochs_of_sources"):
        get_savable_loader(dataset(folder, a=2)).restore_state_rank(state)


@pytest.mark.parametrize("max_samples_per_sequence", [None, 5, 100])
@pytest.mark.parametrize("shuffle_buffer_size", [None, 8])
def test_one_lane_without_shuffling_has_the_order_of_the_data(
    tmp_path: Path, max_samples_per_sequence: int | None, shuffle_buffer_size: int | None
) -> None:
    folder = write_texts(tmp_path, 60, per_shard=9, ratio="1,0,0")
    dataset = train_dataset(
        folder,
        num_lanes=1,
        shuffle_over_epochs_multiplier=None,
        shuffle_buffer_size=shuffle_buffer_size,
        max_samples_per_sequence=max_samples_per_sequence,
    )
    drawn = [int(text) for batch in itertools.islice(get_savable_loader(dataset), 60) for text in batch.text]
    assert drawn == [*range(60), *range(60)]
