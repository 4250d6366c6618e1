"""Choices: the chosen samples by number and back, as a list has them; damage is found; as a data set of their own, they
are what the whole one reads. (Blocks: see `tests/properties`.)"""

import bisect
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.errors import DatasetError
from bridge_data.shards import open_shards
from bridge_data.shards.paged_file import HEADER_BYTES
from bridge_data.shards.where.choices import PAGE_SAMPLES, Choice, ChosenRecords, write_choice
from tests.prepared import write_texts


def written(path: Path, chosen: list[int], shard_counts: list[int]) -> Choice:
    bits = bytearray(-(-sum(shard_counts) // 8))
    for sample in chosen:
        bits[sample >> 3] |= 1 << (sample & 7)
    write_choice(path, bytes(bits), shard_counts, None)
    choice = Choice.open(path)
    assert choice is not None
    return choice


SHARDS = st.lists(st.sampled_from([0, 1, 7, 8, 500, PAGE_SAMPLES - 1, PAGE_SAMPLES]), max_size=5)


@given(counts=SHARDS, every=st.sampled_from([1, 2, 7, 5_000]), data=st.data())
def test_numbers_are_those_in_the_list_of_chosen_samples(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], every: int, data: st.DataObject
) -> None:
    size = sum(counts)
    chosen = list(range(data.draw(st.integers(0, every)), size, every))
    choice = written(tmp_path_factory.mktemp("choice") / "a.choice", chosen, counts)
    assert (choice.num_samples, choice.num_chosen) == (size, len(chosen))
    ends = list(itertools.accumulate(counts, initial=0))
    assert choice.counts == [
        bisect.bisect_left(chosen, end) - bisect.bisect_left(chosen, first) for first, end in itertools.pairwise(ends)
    ]
    assert [choice.sample(number) for number in range(len(chosen))] == chosen
    for sample in {0, 1, size // 3, size // 2, PAGE_SAMPLES, size, size + PAGE_SAMPLES, *chosen}:
        assert choice.rank(sample) == bisect.bisect_left(chosen, sample)
    first = data.draw(st.integers(0, size))
    end = data.draw(st.integers(first, size))
    assert choice.between(first, end) == chosen[bisect.bisect_left(chosen, first) : bisect.bisect_left(chosen, end)]


def test_the_digest_is_that_of_the_chosen_samples(tmp_path: Path) -> None:
    choices = [
        written(tmp_path / str(number), chosen, counts)
        for number, (chosen, counts) in enumerate([([1, 2], [4]), ([1, 2], [2, 2]), ([1, 3], [4])])
    ]
    assert choices[0].digest == choices[1].digest != choices[2].digest


def test_damaged_bits_are_an_error_and_a_damaged_table_is_no_choice(tmp_path: Path) -> None:
    path = tmp_path / "a.choice"
    written(path, [3, PAGE_SAMPLES + 1], [2 * PAGE_SAMPLES])
    whole = path.read_bytes()
    path.write_bytes(whole[:HEADER_BYTES] + b"\1" + whole[HEADER_BYTES + 1 :])
    choice = Choice.open(path)
    assert choice is not None
    assert choice.sample(1) == PAGE_SAMPLES + 1  # of another page
    with pytest.raises(DatasetError, match=r"a\.choice: is damaged: .*; delete it and start again"):
        choice.sample(0)
    path.write_bytes(whole[:-1])
    assert Choice.open(path) is None


SIZE = 300


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts") / "data", SIZE, lambda number: f"{number} " * (number % 9))


@settings(max_examples=20)
@given(chosen=st.sets(st.integers(0, SIZE - 1), min_size=1, max_size=SIZE).map(sorted))
def test_samples_keep_key_shard_and_content(
    root: Path, tmp_path_factory: pytest.TempPathFactory, chosen: list[int]
) -> None:
    records = open_shards(root, "train")
    view = ChosenRecords(records, written(tmp_path_factory.mktemp("choice") / "a.choice", chosen, list(records.counts)))
    whole, part = records.reader(), view.reader()
    assert view.num_samples == len(chosen) == sum(view.counts)
    assert len(view.names) == len(view.counts) == len({sample // 50 for sample in chosen}) and 0 not in view.counts
    for number, sample in enumerate(chosen):
        assert part.read(number) == whole.read(sample)
        assert view.describe(number) == records.describe(sample)
    numbers = {sample: number for number, sample in enumerate(chosen)}
    assert [view.from_base(sample) for sample in range(SIZE)] == [numbers.get(sample) for sample in range(SIZE)]
    for outside in (-1, len(chosen)):
        with pytest.raises(IndexError, match=rf": sample {outside} of {len(chosen)}"):
            part.read(outside)
