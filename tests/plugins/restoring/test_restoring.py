"""Everything that a run has emitted is made again from its key, equal to the bit."""

import dataclasses
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bridge_data import (
    Batch,
    ConfigError,
    Cooker,
    DefaultTaskEncoder,
    LaneDataset,
    Sample,
    SampleError,
    SkipSample,
    TextSample,
    edataclass,
    get_loader,
    get_savable_loader,
    merge_states,
    reraise_exception,
    stateless,
)
from tests.prepared import CRUDE, encoder_with, train_dataset, val_dataset, write_blend, write_dataset, write_texts


@edataclass
class Noisy(Sample):
    """A sample with what each hook drew for it."""

    text: str
    drawn: torch.Tensor


@edataclass
class NoisyBatch(Batch):
    text: list[str]
    drawn: torch.Tensor
    extra: torch.Tensor
    number: int


def draw() -> torch.Tensor:
    """A number of each generator."""
    return torch.tensor([random.random(), float(np.random.rand()), float(torch.rand(()))], dtype=torch.float64)


class _Noisy(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Draws random numbers in every hook, skips, makes several samples of some and two batches of some."""

    def noisy(self, sample: Any) -> Any:
        if int(sample.text) % 7 == 1:
            raise SkipSample
        if int(sample.text) % 5 == 2:
            return self._parts(sample)
        return Noisy.derive_from(sample, text=sample.text, drawn=draw())

    def _parts(self, sample: Any) -> Iterator[Noisy]:
        for _ in range(3):
            yield Noisy.derive_from(sample, text=sample.text, drawn=draw())

    def batch(self, samples: list[Any]) -> NoisyBatch:
        return NoisyBatch.from_samples(samples, extra=draw(), number=self.current_batch_index)

    def encode_batch(self, batch: NoisyBatch) -> Any:
        return self._two(batch) if float(batch.extra[0]) < 0.3 else batch

    def _two(self, batch: NoisyBatch) -> Iterator[NoisyBatch]:
        for _ in range(2):
            yield dataclasses.replace(batch, extra=draw())


class Noise(_Noisy):
    def encode_sample(self, sample: Any) -> Any:
        return self.noisy(sample)


class NoisyGroups(Noise):
    @stateless
    def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
        return len(sample.text), None


class NoisyPacks(_Noisy):
    """Packs four samples at random; some leave their pack when they are encoded to the end."""

    def preencode_sample(self, sample: Any) -> Any:
        return self.noisy(sample)

    def postencode_sample(self, sample: Noisy) -> Noisy:
        if random.random() < 0.2:
            raise SkipSample
        return dataclasses.replace(sample, drawn=torch.cat([sample.drawn, draw()]))

    def select_samples_to_pack(self, samples: list[Noisy]) -> list[list[Noisy]]:
        shuffled = random.sample(samples, len(samples))
        return [shuffled[start : start + 4] for start in range(0, len(shuffled) - 3, 4)]

    def pack_selected_samples(self, samples: list[Noisy]) -> Noisy:
        drawn = torch.cat([*(sample.drawn for sample in samples), draw()])
        return Noisy.derive_from(samples[0], text=",".join(sample.text for sample in samples), drawn=drawn)


def cook(sample: Any) -> TextSample:
    return TextSample.derive_from(
        TextSample(
            __key__=sample["__key__"],
            __restore_key__=sample["__restore_key__"],
            __subflavors__=sample["__subflavors__"],
            __sources__=sample["__sources__"],
            text="",
        ),
        text=sample["txt"] + str(random.randrange(10)),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "a", 300)
    write_texts(folder / "b", 90)
    crude = ({"__key__": f"{number:04d}", "txt": str(number)} for number in range(60))
    write_dataset(folder / "crude", crude, definition=CRUDE)
    write_blend(folder / "blend.yaml", {"a": 3, "b": 1, "crude": 1})
    return folder


def make(
    folder: Path, encoder: Any, rank: int = 0, world_size: int = 1, num_lanes: int = 0, **changes: Any
) -> LaneDataset:
    encoder.cookers = [Cooker(cook)]
    settings = {"num_lanes": num_lanes, "seed": 11, "batch_size": 3, "task_encoder": encoder} | changes
    return train_dataset(folder / "blend.yaml", rank=rank, world_size=world_size, **settings)


def same(first: Any, second: Any) -> bool:
    """Whether two samples or batches are of one class and equal in every field, tensors to the bit."""
    assert type(first) is type(second)
    for field in dataclasses.fields(first):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if isinstance(one, torch.Tensor):
            if one.dtype != other.dtype or not torch.equal(one, other):
                return False
        elif one != other:
            return False
    return True


CASES = [
    (Noise, {}),
    (Noise, {"batch_size": None}),
    (NoisyGroups, {}),
    (NoisyPacks, {"packing_buffer_size": 12}),
    (NoisyPacks, {"packing_buffer_size": 12, "batch_size": None}),
]


@pytest.mark.seconds
@settings(max_examples=12, deadline=None)
@given(
    case=st.sampled_from(CASES), assigns=st.lists(st.integers(1, 5), min_size=1, max_size=3), steps=st.integers(1, 25)
)
def test_every_unit_emitted_is_restored_equal(folder: Path, case: Any, assigns: list[int], steps: int) -> None:
    """By another data set object of another topology, and after reshards as well."""
    encoder, changes = case
    other = get_loader(make(folder, encoder(), num_lanes=2, **changes))
    saved: Any = None
    for world_size in assigns:
        states = []
        for rank in range(world_size):
            loader = get_savable_loader(make(folder, encoder(), rank, world_size, world_size, **changes))
            if saved is not None:
                loader.restore_state_rank(saved)
            for batch in itertools.islice(loader, steps):
                event(f"{encoder.__name__}, part {batch.__restore_key__[2] if 'number' in dir(batch) else '-'}")
                for key in (batch.__restore_key__, json.loads(json.dumps(batch.__restore_key__))):
                    assert same(other.restore_sample(key), batch)
            states.append(loader.save_state_rank())
        saved = json.loads(json.dumps(merge_states(states)))


def test_members_of_batches_and_packs_are_restored_by_their_own_keys(folder: Path) -> None:
    dataset = make(folder, Noise())
    for batch in itertools.islice(get_loader(dataset), 10):
        for place, key in enumerate(batch.__restore_key__[3:]):
            member = dataset.restore_sample(key)
            assert (member.__restore_key__, member.text) == (key, batch.text[place])
            assert torch.equal(member.drawn, batch.drawn[place])
    packed = make(folder, NoisyPacks(), packing_buffer_size=12, batch_size=None)
    found = 0
    for pack in itertools.islice(get_loader(packed), 10):
        drawn = []
        for key in pack.__restore_key__[1:]:
            try:
                drawn.append(packed.restore_sample(key).drawn)
            except SampleError as error:  # what postencode_sample leaves out leaves its pack
                assert "it is skipped by postencode_sample" in str(error)
                found += 1
        assert torch.equal(torch.cat(drawn), pack.drawn[: 6 * len(drawn)])
    assert found


def test_dicts_keep_a_key_only_where_they_have_one(folder: Path) -> None:
    def as_dict(self: Any, samples: list[Any]) -> dict[str, Any]:
        key = {"__restore_key__": ()} if int(samples[0].text) % 2 else {}
        return {"text": [sample.text for sample in samples], **key}

    loader = get_loader(make(folder, encoder_with(batch=as_dict)))
    batches = list(itertools.islice(loader, 200))
    kept = [batch for batch in batches if "__restore_key__" in batch]
    assert 0 < len(kept) < len(batches)
    assert all(loader.restore_sample(batch["__restore_key__"]) == batch for batch in kept)


def test_failures_go_to_the_restore_error_handler(folder: Path) -> None:
    def broken(self: Any, sample: Any) -> Any:
        raise ValueError("broken")

    dataset = make(folder, encoder_with(encode_sample=broken))
    assert dataset.worker_config.restore_error_handler is reraise_exception
    with pytest.raises(ValueError, match="broken"):
        dataset.restore_sample((dataset.source_ids[0], 0, 3, 0))
    told = []
    dataset.worker_config.restore_error_handler = lambda error, sample, sources: told.append((str(error), sample.text))
    with pytest.raises(SampleError, match="skipped by encode_sample"):
        dataset.restore_sample((dataset.source_ids[0], 0, 3, 0))
    assert told == [("broken", "3")]


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_of_validation_and_of_workers_are_restored_in_this_process(folder: Path, num_workers: int) -> None:
    """And nothing moves by it: neither the loader nor the caller's generators."""
    dataset = val_dataset(folder / "b", num_workers=num_workers, task_encoder=Noise())
    with get_loader(dataset) as loader:
        assert loader.wait_for_workers(60) == (num_workers > 0)
        for batch in loader:
            before = loader.save_state_rank(), random.getstate(), torch.get_rng_state().tolist()
            assert same(loader.restore_sample(batch.__restore_key__), batch)
            assert (loader.save_state_rank(), random.getstate(), torch.get_rng_state().tolist()) == before


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (("ffff", 0, 0, 0), "of source 'ffff', which this data set does not have; it has "),
        (("NAME", 0, 300, 0), "of sample 300 of source .*, which has 300"),
        (("pack", ("NAME", 0, 3, 0)), "of a pack, but this data set has no packing_buffer_size"),
        (("batch", 0, 0, ("pack", ("NAME", 0, 3, 0))), "of a batch of packs, but this data set has no packing_buffer"),
        *((key, "is not a restore key") for key in ((), None, "shard.tar/0001", 7, ("a1", 0, 3), ("a1", 0, 3, -1))),
        *((key, "is not a restore key") for key in (("a1", 0, "3", 0), (0, 0, 3, 0), ("pack",), ("batch", 0, 0))),
        ([("a1", 0, 3, 0), ("a1", 0, 4, 0)], "is not a restore key"),
        (("pack", ("pack", ("a1", 0, 3, 0))), "is not a restore key"),
        (("BatchDataset", 0, ("a1", 0, 3, 0)), "is not a restore key"),
        (("batch", 0, 0, *[("a1", 0, n, 0) for n in range(100)], ("a1", 0, 0.5, 0)), r"\('a1', 0, 0\.5, 0\)"),
    ],
)
def test_keys_of_other_data_and_what_is_no_key_are_refused(folder: Path, key: Any, told: str) -> None:
    dataset = make(folder, Noise())

    def named(key: Any) -> Any:
        return dataset.source_ids[0] if key == "NAME" else tuple(map(named, key)) if type(key) is tuple else key

    with pytest.raises(ConfigError, match=told) as raised:
        dataset.restore_sample(named(key))
    assert len(str(raised.value)) < 600


def test_a_key_of_samples_is_none_of_packs(folder: Path) -> None:
    packing = make(folder, NoisyPacks(), packing_buffer_size=12)
    with pytest.raises(ConfigError, match="of a batch of samples, but this data set packs samples"):
        packing.restore_sample(("batch", 0, 0, (packing.source_ids[0], 0, 3, 0)))


def test_what_is_left_out_now_is_an_error_that_says_by_which_hook(folder: Path) -> None:
    dataset = make(folder, Noise())
    name = dataset.source_ids[0]
    key = next(batch.__restore_key__ for batch in get_loader(dataset) if batch.__restore_key__[2] == 0)
    for gone, told in (
        ((name, 0, 1, 0), r"the sample .* cannot be restored: it is skipped by encode_sample"),
        ((name, 0, 3, 5), r"skipped by no hook, which makes fewer samples or batches now"),
        ((*key[:2], 9, *key[3:]), r"output 9 of the batch of .* skipped"),
    ):
        with pytest.raises(SampleError, match=told):
            dataset.restore_sample(gone)
