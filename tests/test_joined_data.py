"""A join is a source like any other: every sample once an epoch, whatever happens to the job in between."""

import collections
import itertools
from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    DefaultTaskEncoder,
    SavableDataLoader,
    TextSample,
    get_savable_loader,
    merge_states,
    prepare_metadataset,
)
from tests.plan.joins import BY_FIELDS, OWN, joined, metadataset, own
from tests.prepared import train_dataset, val_dataset, write_dataset
from tests.tables import table_of, write_parquet

SIZE = 60


class Plain(DefaultTaskEncoder):
    """Samples as they are, in lists."""

    def encode_sample(self, sample: Any) -> Any:
        return sample

    def batch(self, samples: Any) -> Any:
        return samples


@pytest.fixture(params=["tars and tars", "tars and tables", "tables and tars", "tables and tables"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Texts a0 to a59; b has texts for the even ones of them, in another order."""
    first, second = request.param.split(" and ")
    numbers = {"a": range(SIZE), "b": range(SIZE - 2, -1, -2)}
    for name, kind, size in (("a", first, 13), ("b", second, 7)):
        keys = [str(number) for number in numbers[name]]
        if kind == "tars":
            samples = ({"__key__": key, "txt": f"{name}{key}"} for key in keys)
            write_dataset(tmp_path / name, samples, per_shard=size)
            continue
        table = table_of({"__key__": keys, "txt": [f"{name}{key}" for key in keys]})
        for number in range(2):
            half = table.slice(number * len(keys) // 2, len(keys) // 2)
            write_parquet(tmp_path / name / f"{number}.parquet", half, per_group=size)
    return tmp_path


def member(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    """A member of a join, of text samples."""
    is_table = not (folder / name / ".nv-meta").exists()
    return {"path": name, **({"sample_type": "TextSample", "field_map": {"text": "txt"}} if is_table else {}), **more}


def prepared(folder: Path, nonmatch: str) -> Path:
    path = joined(folder / "j.yaml", [member(folder, "a"), member(folder, "b", nonmatch=nonmatch)])
    prepare_metadataset(path, num_workers=1)
    return path


def train(path: Path, rank: int = 0, world_size: int = 1, **options: Any) -> SavableDataLoader:
    settings = {"rank": rank, "world_size": world_size, "batch_size": 3, "task_encoder": Plain()}
    return get_savable_loader(train_dataset(path, **settings, **options))


def take(loader: SavableDataLoader, num_batches: int | None = None) -> list[TextSample]:
    return [sample for batch in itertools.islice(loader, num_batches) for sample in batch]


def texts(samples: list[TextSample]) -> collections.Counter[str]:
    return collections.Counter(sample.text for sample in samples)


ALL = collections.Counter(f"{'ab'[n % 2 == 0]}{n}" for n in range(SIZE))


def test_more_ranks_take_over_what_is_left(folder: Path) -> None:
    path = prepared(folder, "none")
    ranks = [train(path, rank, 2, num_lanes=2, repeat=False) for rank in range(2)]
    begun = [sample for loader in ranks for sample in take(loader, 4)]
    states = [loader.save_state_rank() for loader in ranks]
    merged = merge_states([state for state in states if state is not None])
    again = [train(path, rank, 3, num_lanes=3, repeat=False) for rank in range(3)]
    for loader in again:
        loader.restore_state_rank(merged)
    rest = [sample for loader in again for sample in take(loader)]
    assert texts(begun + rest) == ALL


@pytest.mark.parametrize("folder", ["tars and tables"], indirect=True)
def test_workers_call_a_joiner_of_a_trusted_module(folder: Path) -> None:
    join = {"left": member(folder, "a"), "right": member(folder, "b", nonmatch="none")}
    path = joined(folder / "own.yaml", join, own("Both"))
    prepare_metadataset(path, num_workers=1)
    with train(path, num_workers=2, repeat=False, trusted_modules=[OWN]) as loader:
        found = {(sample.left, sample.right) for sample in take(loader)}
    assert found == {(f"a{n}", f"b{n}" if n % 2 == 0 else None) for n in range(SIZE)}


def test_an_epoch_has_every_sample_that_is_not_skipped_once(folder: Path) -> None:
    path = prepared(folder, "none")
    assert texts(take(train(path, repeat=False))) == ALL
    validation = get_savable_loader(val_dataset(path, task_encoder=Plain()))
    assert [sample.text for sample in take(validation)] == list(ALL)
    evens = collections.Counter(f"b{n}" for n in range(0, SIZE, 2))
    assert texts(take(train(prepared(folder, "skip"), repeat=False))) == evens


def test_a_restored_job_goes_on_with_the_very_samples_and_a_key_gives_its_sample(folder: Path) -> None:
    path = prepared(folder, "none")
    whole = take(train(path), 50)
    first, second = train(path), train(path)
    begun = take(first, 17)
    second.restore_state_rank(first.save_state_rank() or {})
    assert begun + take(second, 33) == whole
    assert len({sample.__restore_key__ for sample in whole}) == 150
    assert all(len(sample.__sources__ or ()) == 1 + sample.text.startswith("b") for sample in whole)
    assert all(first.restore_sample(sample.__restore_key__) == sample for sample in whole[:10])


@pytest.mark.parametrize("folder", ["tars and tables"], indirect=True)
def test_a_join_is_blended_by_its_weight(folder: Path) -> None:
    inner = {"join": [member(folder, "a"), member(folder, "b", nonmatch="skip")], "joiner": BY_FIELDS}
    path = metadataset(folder / "m.yaml", {"blend": [{"weight": 3, **inner}, {"weight": 1, **member(folder, "a")}]})
    prepare_metadataset(path, num_workers=1)
    found = take(train(path), 400)
    from_join = sum(len(sample.__sources__ or ()) == 2 for sample in found)
    assert from_join == pytest.approx(900, abs=16)
