"""Samples in memory are a source like any other: order, states, reshards, workers and cookers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    InMemoryDataset,
    LaneDataset,
    SampleError,
    StateError,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from bridge_data.errors import ConfigError
from tests.prepared import write_texts

SIZE = 200
TEXTS = [TextSample(__key__=f"{number:06d}", text=str(number)) for number in range(SIZE)]


class NumberedTexts:
    """A map-style data set."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> TextSample:
        return TextSample(__key__=f"{index:06d}", text=str(index))


def config(**settings: Any) -> WorkerConfig:
    return WorkerConfig(**{"rank": 0, "world_size": 1, "num_workers": 0, "num_lanes": 4} | settings)


def train(data: Any, **settings: Any) -> LaneDataset:
    settings = {"worker_config": config(), "batch_size": 3, "shuffle_buffer_size": 20} | settings
    return get_train_dataset(data, **{"max_samples_per_sequence": 10} | settings)


def keys(loader: Any, batches: int = 40) -> list[list[str]]:
    with loader:
        return [
            [key.rpartition("/")[2] for key in batch.__key__] for batch, _ in zip(loader, range(batches), strict=False)
        ]


@stateless
def cook(sample: CrudeSample) -> TextSample:
    sample["json"]["text"] += "!"  # which must not change the item
    return TextSample(**basic_sample_keys(sample), text=f"{sample['json']['text']} {sample['txt']}")


class Cooking(DefaultTaskEncoder[Any, Any, Any, Any]):
    def __init__(self) -> None:
        super().__init__()
        self.cookers = [Cooker(cook)]


def test_the_order_is_that_of_files_of_one_shard(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a", SIZE, lambda number: f"{number:>200}", per_shard=SIZE)
    in_memory, in_files = train(TEXTS), train(path)
    assert in_memory.order.first_generation(4)[1][0][0] == in_files.order.first_generation(4)[1][0][0]  # the chunks
    drawn = keys(get_savable_loader(in_memory), SIZE // 3 + 1)
    assert {key for batch in drawn for key in batch} > {f"{number:06d}" for number in range(0, SIZE, 50)}
    validated = get_val_dataset(TEXTS, worker_config=config(), batch_size=7)
    assert [key for batch in keys(get_loader(validated)) for key in batch] == [sample.__key__ for sample in TEXTS]
    assert len(validated) == 29


@pytest.mark.processes
def test_workers_and_map_style_data_sets_give_the_same() -> None:
    expected = keys(get_savable_loader(train(TEXTS)))
    for data in (NumberedTexts(), tuple(TEXTS)):
        assert keys(get_savable_loader(train(data, worker_config=config(num_workers=2)))) == expected
    assert train(NumberedTexts()).fingerprint() == train(TEXTS).fingerprint()


def test_a_restored_state_goes_on_after_the_last_batch_of_data_with_the_same_fingerprint() -> None:
    expected = keys(get_savable_loader(train(TEXTS)))
    loader = get_savable_loader(train(TEXTS))
    (*_, batch) = [batch for _, batch in zip(range(17), loader, strict=False)]
    state = loader.save_state_rank()
    resumed = get_savable_loader(train(NumberedTexts()))
    resumed.restore_state_rank(state)
    assert keys(resumed, 23) == expected[17:]
    assert train(TEXTS).restore_sample(batch.__restore_key__).text == batch.text
    other = [*TEXTS[:-1], TextSample(__key__="last", text="other")]
    for data, settings in ((TEXTS[1:], {}), (other, {}), (TEXTS, {"fingerprint": "version 2"})):
        with pytest.raises(StateError):
            get_savable_loader(train(data, **settings)).restore_state_rank(state)


def test_dicts_are_crude_samples_for_cookers() -> None:
    data = [{"json": {"text": f"{number}"}, "txt": b"bytes"} for number in range(5)]
    for _ in range(2):
        loader = get_loader(get_val_dataset(data, worker_config=config(), batch_size=5, task_encoder=Cooking()))
        (batch,) = loader
        assert batch.text == [f"{number}! bytes" for number in range(5)] and batch.__key__ == list("01234")
    assert data[0]["json"] == {"text": "0"}
    with pytest.raises(ConfigError, match=r"no cooker takes samples of memory .*\n.*\n.*json \{text: str\}"):
        next(iter(get_loader(get_val_dataset(data, worker_config=config(), batch_size=5))))


def test_samples_by_split_part_and_subflavors() -> None:
    data = {"train": TEXTS[:20], "val": TEXTS[20:30]}
    assert train(data).plan.num_samples == 20
    assert get_val_dataset(data, worker_config=config(), batch_size=1).plan.num_samples == 10
    with pytest.raises(ConfigError, match="no split part 'test'; there is train, val"):
        get_val_dataset(data, split_part="test", worker_config=config(), batch_size=1)
    made = get_val_dataset(InMemoryDataset(TEXTS, subflavors={"a": "b"}), worker_config=config(), batch_size=1)
    assert next(iter(get_loader(made))).__subflavors__ == [{"a": "b"}]


@pytest.mark.parametrize(
    "value",
    [
        "a",
        b"a",
        1,
        1.5,
        None,
        {"a": [1, {"b": 2}]},
        torch.arange(3),
        torch.zeros(2, dtype=torch.bfloat16),
        np.arange(3),
        np.float32(1),
        Image.new("RGB", (2, 2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_fingerprint_is_of_the_contents(value: Any) -> None:
    def fingerprint(*items: Any) -> str:
        return InMemoryDataset([{"part": item} for item in items]).source().fingerprint

    assert fingerprint(value) == fingerprint(value)
    others = [fingerprint(value, value), fingerprint("other"), fingerprint([value]), fingerprint("other", value)]
    assert len({fingerprint(value), *others}) == 5


class Odd(NumberedTexts):
    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length  # type: ignore[no-any-return]


WITHIN: dict[str, Any] = {"txt": "a"}
WITHIN["json"] = WITHIN


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ([], {}, "the data are empty"),
        ([1, 2], {}, "item 0: TypeError: expected a dict of its parts, or a Sample, got a int"),
        ([("a", 1)], {}, "got a tuple"),
        ([TEXTS[0], 3], {}, "item 1: .* got a int"),
        (Odd(-1), {}, "memory: the data have no length: "),
        (Odd(10**30), {}, "memory: the data have no length: "),
        (Odd(2.5), {}, "memory: the data have no length: "),
        ([{"part": object()}], {}, "no fingerprint can be made of a object: give one"),
        ([WITHIN], {}, "no fingerprint can be made of values nested so deeply: give one"),
        (TEXTS, {"fingerprint": 7}, "expected a text"),
        (TEXTS, {"verify_digests": True}, "no digests"),
        ("/dev/null", {"fingerprint": "a"}, "fingerprint='a': is only for samples in memory"),
    ],
)
def test_what_cannot_be_data_is_refused(data: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(data, **settings)


def test_what_has_no_fingerprint_is_taken_with_one() -> None:
    for data in ([{"part": object()}], [WITHIN]):
        assert train(data, fingerprint="1", task_encoder=Cooking()).plan.num_samples == 1
    for subset in ((0, 3), [-1, 2], "50%"):
        with pytest.raises(ConfigError, match=r"subset=.*: expected a SubsetRange, such as SubsetRange\.parse"):
            InMemoryDataset(TEXTS, subset=subset)  # type: ignore[arg-type]


def test_items_that_fail_or_are_of_another_class_are_named() -> None:
    class Failing(NumberedTexts):
        def __getitem__(self, index: int) -> Any:
            if index == 3:
                raise OSError("disk on fire")
            return CrudeSample(txt="") if index == 5 else super().__getitem__(index)

    messages: list[str] = []

    def note(error: Exception, *_: Any) -> None:
        messages.append(str(error))

    data = get_val_dataset(Failing(), worker_config=config(num_lanes=1, global_error_handler=note), batch_size=1)
    found = keys(get_loader(data), SIZE)
    assert len(found) == SIZE - 2
    assert "memory/3: OSError: disk on fire" in messages[0] and "sample 5 is not a TextSample" in messages[1]
    with pytest.raises(SampleError, match="disk on fire"):
        data.plan.sources[0].records.reader().read(3)
