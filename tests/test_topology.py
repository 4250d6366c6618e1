import itertools
import json
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data import (
    ConfigError,
    DefaultTaskEncoder,
    WorkerConfig,
    get_savable_loader,
    topology,
)
from bridge_data.topology import busy_workers, equal_workers
from tests.prepared import train_dataset, val_dataset, write_pair, write_texts
from tests.properties.jobs import key_of, length_of


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 2, "world_size": 2, "num_workers": 0}, "rank < world_size"),
        ({"rank": -1, "world_size": 2, "num_workers": 0}, "rank=-1: expected an integer of at least 0"),
        ({"rank": 0, "world_size": 0, "num_workers": 0}, "world_size=0"),
        ({"rank": 0, "world_size": 1, "num_workers": -1}, "num_workers=-1"),
        ({"rank": 0, "world_size": 3, "num_workers": 0, "num_lanes": 4}, "multiple of world_size.* may set another"),
        ({"rank": 0, "world_size": 3, "num_workers": 0, "num_lanes": -3}, "num_lanes=-3: expected an integer"),
        (
            {"rank": 0, "world_size": 1, "num_workers": 0, "max_open_bytes": -1},
            "max_open_bytes=-1: expected an integer",
        ),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkerConfig(**arguments)


def test_more_lanes_for_more_workers_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        WorkerConfig(rank=0, world_size=1, num_workers=41)
        WorkerConfig(rank=0, world_size=1, num_workers=41, num_lanes=64)
        WorkerConfig(rank=0, world_size=1, num_workers=8)
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "num_workers=41: each rank has a lane for each"
    ]


@pytest.mark.parametrize(
    ("num_workers", "told"),
    [
        (1, None),
        (3, None),
        (4, None),
        (6, "as 4 workers. .* such as 4; .*num_lanes=12"),
        (7, "as 4"),
        (8, None),
        (9, "as 8"),
    ],
)
def test_workers_that_would_wait_for_those_with_more_lanes_are_told(num_workers: int, told: str | None) -> None:
    config = WorkerConfig(rank=1, world_size=2, num_workers=num_workers, num_lanes=16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config.warn_of_idle_workers(16)
    assert [bool(re.search(told or "", str(warning.message))) for warning in caught] == [True] * (told is not None)


@given(st.integers(1, 40), st.integers(1, 40))
def test_lanes_are_shared_equally_by_the_most_workers_that_can(num_lanes: int, num_workers: int) -> None:
    found = equal_workers(num_lanes, num_workers)
    assert found <= num_workers and busy_workers(num_lanes, found) == found
    assert not any(num_lanes % more == 0 for more in range(found + 1, num_workers + 1))


def test_few_samples_come_from_one_lane_of_each_rank_unless_lanes_are_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first overfit run that everybody makes: a batch has each of the two samples."""
    folder = write_texts(tmp_path, 2, per_shard=2, ratio="1,0,0")
    topology._warn_few_samples.cache_clear()

    def drawn(num_batches: int, num_lanes: int = 0, **options: Any) -> list[list[int]]:
        config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=num_lanes)
        dataset = train_dataset(folder, worker_config=config, batch_size=2, **options)
        return [list(map(int, batch.text)) for batch in itertools.islice(get_savable_loader(dataset), num_batches)]

    assert all(sorted(batch) == [0, 1] for batch in drawn(20))
    assert drawn(20) == drawn(20, num_lanes=1)
    assert [sorted(batch) for batch in drawn(3, repeat=False)] == [[0, 1]], "one batch, not one for each lane"
    assert any(batch[0] == batch[1] for batch in drawn(20, num_lanes=8)), "as asked for"
    told = [record.getMessage() for record in caplog.records if "too few" in record.getMessage()]
    assert len(told) == 1 and "num_lanes=1" in told[0] and "num_lanes=8" in told[0]


@pytest.mark.parametrize(("num_samples", "lanes_of_a_rank"), [(2, 1), (47, 1), (48, 8)])
def test_all_ranks_and_numbers_of_workers_have_the_same_few_lanes(
    tmp_path: Path, num_samples: int, lanes_of_a_rank: int
) -> None:
    folder, group = write_texts(tmp_path, num_samples, per_shard=5, ratio="1,0,0"), object()
    for rank, num_workers in itertools.product((0, 1, 2), (0, 1, 4, 8)):
        config = WorkerConfig(rank, 3, num_workers, group)  # type: ignore[arg-type]
        dataset = train_dataset(folder, worker_config=config, batch_size=2)
        assert dataset.worker_config.num_lanes == 3 * lanes_of_a_rank
        assert dataset.worker_config.data_parallel_group is group
        get_savable_loader(dataset, worker_config=config).close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if num_workers and lanes_of_a_rank == 1:
                dataset.worker_config.warn_of_idle_workers(dataset.worker_config.num_lanes)


def test_a_run_of_few_samples_is_resumed_by_other_ranks_and_with_the_lanes_that_it_had(tmp_path: Path) -> None:
    folder = write_texts(tmp_path, 6, per_shard=2, ratio="1,0,0")

    def loader(world_size: int, rank: int = 0, num_lanes: int = 0) -> Any:
        config = WorkerConfig(rank, world_size, 0, num_lanes=num_lanes)
        return get_savable_loader(train_dataset(folder, worker_config=config, batch_size=2, repeat=False))

    one = loader(1)
    first = next(iter(one)).text
    states = one.save_state_rank()
    rest: list[str] = []
    for rank in range(2):
        ranked = loader(2, rank)
        ranked.restore_state_rank(states)
        rest += [text for batch in ranked for text in batch.text]
    assert sorted([*first, *rest]) == sorted(map(str, range(6)))
    eight = loader(1, num_lanes=8)
    saved = eight.save_state_rank()
    again = loader(1)
    again.restore_state_rank(saved)
    assert [batch.text for batch in again] == [batch.text for batch in eight]


def test_a_config_travels_without_its_process_group() -> None:
    config = WorkerConfig(rank=1, world_size=2, num_workers=0, data_parallel_group=object(), num_lanes=8)  # type: ignore[arg-type]
    copy = pickle.loads(pickle.dumps(config))
    assert copy.data_parallel_group is None
    assert (copy.rank, copy.world_size, copy.num_lanes) == (1, 2, 8)


class Asking(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Batches of (key, number of the sample as each hook was told it), and the number of the batch."""

    def preencode_sample(self, sample: Any) -> Any:
        sample.text += f" {self.current_sample_index}"
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        assert self.current_sample_index >= 0
        return [samples[start : start + 3] for start in range(0, len(samples), 3)]

    def postencode_sample(self, sample: Any) -> Any:
        number, told = map(int, sample.text.split())
        assert told == self.current_sample_index
        sample.text = str(number)
        return key_of(sample), self.current_sample_index

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        assert self.current_sample_index == samples[0][1]
        return samples

    def batch(self, samples: list[Any]) -> Any:
        config: Any = WorkerConfig.active_worker_config
        assert config.active_worker_sample_index == self.current_sample_index
        assert config.active_worker_batch_index == self.current_batch_index
        return samples, self.current_batch_index

    def encode_batch(self, batch: Any) -> Iterator[Any]:
        assert batch[1] == self.current_batch_index
        yield *batch, "first"
        yield *batch, "second"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("data"), 60, 20)


def loader_of(data: Path, encoder: Any, rank: int = 0, world_size: int = 1, **settings: Any) -> Any:
    settings = {"num_lanes": 4, "task_encoder": encoder, "packing_buffer_size": 12} | settings
    return get_savable_loader(train_dataset(data, rank=rank, world_size=world_size, **settings))


def test_batches_are_numbered_in_the_order_of_the_job_each_made_of_samples_of_its_own(data: Path) -> None:
    loader = loader_of(data, Asking())
    whole = list(itertools.islice(loader, 40))
    assert [batch[1] for batch in whole] == [m - 4 * (m // 4 % 2) for m in range(40)], "two parts have one number"
    firsts = [batch for batch in whole if batch[2] == "first"]
    numbers = [number for units, _, _ in firsts for unit in units for _, number in unit]
    assert len(numbers) == len(set(numbers))
    by_key = {key: number for units, _, _ in firsts for unit in units for key, number in unit}
    first = dict(zip(loader.dataset.source_ids, (0, 60), strict=True))
    for (source, epoch, index, _), number in by_key.items():
        assert number == 80 * epoch + first[source] + index


class Halves(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Every hook that may be a generator is one, and drops something."""

    def cook_crude_sample(self, *sample: Any) -> Any:
        yield sample[0]

    def encode_sample(self, sample: Any) -> Iterator[Any]:
        for part in range(length_of(sample) % 3):
            yield type(sample).derive_from(sample, text=f"{sample.text}.{part}")

    def batch(self, samples: list[Any]) -> Iterator[Any]:
        yield samples[:1]
        yield samples[1:]

    def encode_batch(self, batch: Any) -> Iterator[Any]:
        for sample in batch:
            yield sample.text


def test_without_batches_neither_batch_hook_is_called(data: Path) -> None:
    class Single(DefaultTaskEncoder[Any, Any, Any, Any]):
        def batch(self, samples: list[Any]) -> Any:
            raise AssertionError

        def encode_batch(self, batch: Any) -> Any:
            raise AssertionError

    sample = next(iter(loader_of(data, Single(), batch_size=None, packing_buffer_size=None)))
    assert sample.text.isdigit()


class Numbered(DefaultTaskEncoder):
    """Samples say which batch they are encoded for."""

    def encode_sample(self, sample: Any) -> Any:
        return sample.text, self.current_batch_index

    def batch(self, samples: Any) -> Any:
        assert {number for _, number in samples} == {self.current_batch_index}
        return samples, self.current_batch_index


def test_a_batch_that_is_made_again_has_samples_with_its_number(tmp_path: Path) -> None:
    class Whole(DefaultTaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            return type(sample).extend(sample, text=f"{sample.text} in {self.current_batch_index}")

    loader = get_savable_loader(val_dataset(write_texts(tmp_path / "d", 20), task_encoder=Whole()))
    for number, batch in enumerate(loader):
        assert all(text.endswith(f" in {number}") for text in batch.text)
        assert loader.restore_sample(batch.__restore_key__).text == batch.text


class Early(Numbered):
    def batch_group_criterion(self, sample: Any) -> tuple[Any, None]:
        return sample, None


class Doubling(Numbered):
    def encode_sample(self, sample: Any) -> Any:
        yield sample.text, self.current_batch_index


class Splitting(Asking):
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        yield samples[:1]
        yield samples[1:]


ONLY = "only without packing, batch_group_criterion, and hooks that are generators"


@pytest.mark.parametrize(
    ("encoder", "settings", "told"),
    [
        (Early(), {"packing_buffer_size": None}, r"known in batch and encode_batch.*Use current_sample_index"),
        (Doubling(), {"packing_buffer_size": None}, ONLY),
        (Splitting(), {}, "pack_selected_samples of Splitting made 2 samples of one pack"),
    ],
)
def test_what_a_hook_cannot_know_or_make_is_an_error(
    data: Path, encoder: Any, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        next(iter(loader_of(data, encoder, **settings)))


class Halved(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Samples know their batch, of which `batch` makes two."""

    def encode_sample(self, sample: Any) -> Any:
        return type(sample).derive_from(sample, text=f"{sample.text} in {self.current_batch_index}")

    def batch(self, samples: list[Any]) -> Iterator[Any]:
        yield [sample.text for sample in samples[:1]]
        yield [sample.text for sample in samples[1:]]

    def encode_batch(self, batch: list[str]) -> list[str]:
        assert all(text.endswith(f" in {self.current_batch_index}") for text in batch)
        return batch


def test_a_rank_has_eight_lanes_or_for_more_workers_one_for_each_and_shares_those_of_the_job() -> None:
    for num_workers, expected in ((0, 8), (1, 8), (3, 8), (8, 8), (9, 9), (16, 16), (17, 17)):
        configs = [WorkerConfig(rank=rank, world_size=3, num_workers=num_workers) for rank in range(3)]
        assert [config.num_lanes for config in configs] == [3 * expected] * 3
        assert sorted(lane for config in configs for lane in config.lanes) == list(range(3 * expected))
    alone = WorkerConfig.default_worker_config()
    assert (alone.rank, alone.world_size, alone.num_workers, alone.num_lanes) == (0, 1, 4, 8)
    assert alone.global_rank() == 0


def test_outside_hooks_nothing_is_current_and_no_sample_is_tied_to_a_worker() -> None:
    for name in ("current_sample_index", "current_batch_index"):
        with pytest.raises(ConfigError, match=f"{name} is known only while a hook"):
            getattr(DefaultTaskEncoder(), name)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    assert WorkerConfig.active_worker_config is None
    with pytest.raises(ConfigError, match="only while a hook"):
        _ = config.active_worker_sample_index
    for name in ("rank_worker_id", "global_worker_id", "worker_seed"):
        with pytest.raises(AttributeError, match=f"WorkerConfig has no {name}: .*current_sample_index"):
            getattr(config, name)


BATCHES = {"batch_size": 3, "packing_buffer_size": None}


@pytest.mark.parametrize(
    ("encoder", "settings"), [(Asking, {}), (Numbered, BATCHES), (Halved, BATCHES), (Halves, BATCHES)]
)
def test_numbers_are_the_same_under_any_topology_and_after_any_resume(
    data: Path, encoder: type, settings: dict[str, Any]
) -> None:
    """Also where hooks are generators, and between two batches of one."""
    whole = list(itertools.islice(loader_of(data, encoder(), **settings), 40))
    ranks = [list(itertools.islice(loader_of(data, encoder(), rank, 2, **settings), 20)) for rank in range(2)]
    assert [batch for step in zip(*ranks, strict=True) for batch in step] == whole
    loader = loader_of(data, encoder(), **settings)
    for step in range(1, 20):
        next(iter(loader))
        again = loader_of(data, encoder(), **settings)
        again.restore_state_rank(json.loads(json.dumps(loader.save_state_rank())))
        assert list(itertools.islice(again, 10)) == whole[step : step + 10]
