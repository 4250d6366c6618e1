"""Data sets described in Python."""

import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import bridge_data
from bridge_data import (
    CaptioningWebdataset,
    ConfigError,
    CrudeWebdataset,
    DefaultGenericWebdatasetFactory,
    ImageSample,
    StandardWebdatasetFactory,
    TextSample,
    TextWebdataset,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    ignored,
)
from bridge_data.data import SubsetRange
from bridge_data.decode import SampleDecoder
from bridge_data.decode.source_reader import SingleSourceReader
from bridge_data.energon import get_dataset_from_config
from bridge_data.plan import EmptySplitError, load_plan
from bridge_data.samples import edataclass
from tests.prepared import TEXT, write_dataset

ALONE = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    samples = [{"__key__": f"{n:03}", "txt": f"t{n}", "json": {"size": n}} for n in range(10)]
    return write_dataset(tmp_path / "data", samples, definition=TEXT, ratio="1,0,0")


@edataclass
class Sized(TextSample):
    size: int


def loaded(source: Any, index: int = 3) -> Any:
    reader = SingleSourceReader(pickle.loads(pickle.dumps(source)), SampleDecoder())
    return reader.build(reader.read(index), index)


def test_a_factory_is_what_its_dataset_yaml_would_be(folder: Path) -> None:
    source, known = TextWebdataset(folder, field_map={"text": "txt"}).source(), load_plan(folder).sources[0]
    assert (source.fingerprint, source.sample_class, source.field_map) == (
        known.fingerprint,
        known.sample_class,
        known.field_map,
    )
    assert (source.parts, source.sample_loader, source.split_part) == (known.parts, None, "train")
    assert loaded(source).text == loaded(known).text == "t3"


def test_training_takes_a_factory_or_its_plan_in_place_of_a_path(folder: Path) -> None:
    factory = TextWebdataset(folder, field_map={"text": "txt"}, subflavors={"kind": "py"})
    for data in (factory, factory.build()):
        dataset = get_train_dataset(
            data,
            worker_config=ALONE,
            batch_size=None,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            repeat=False,
        )
        samples = list(get_loader(dataset))
        assert sorted(sample.text for sample in samples) == sorted(f"t{n}" for n in range(10))
        assert samples[0].__subflavors__ == {"kind": "py"}
    val = get_val_dataset(factory, worker_config=ALONE, batch_size=None)
    assert [sample.text for sample in get_loader(val)] == [f"t{n}" for n in range(10)]


def test_a_plan_for_validation_does_not_train(folder: Path) -> None:
    plan = TextWebdataset(folder, field_map={"text": "txt"}, training=False).build()
    assert plan.weights is None
    with pytest.raises(ConfigError, match="this plan is for validation"):
        get_train_dataset(
            plan, worker_config=ALONE, batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None
        )


def test_ranges_split_parts_and_epochs(folder: Path) -> None:
    factory = TextWebdataset(
        folder, field_map={"text": "txt"}, subset=SubsetRange.parse(["50%", "100%"]), shuffle_over_epochs=3
    )
    assert len(factory) == 5
    assert factory.source().epochs_per_shuffle == 3
    assert loaded(factory.source(), 0).text == "t5"
    with pytest.raises(EmptySplitError, match="the split part 'val' is declared and has no samples"):
        TextWebdataset(folder, field_map={"text": "txt"}, split_part="val").build()


class Raw(DefaultGenericWebdatasetFactory[TextSample]):
    """Generic ones leave bytes as they are."""

    __sample_type__ = TextSample


class Forgotten(DefaultGenericWebdatasetFactory[ImageSample]):
    """Its sample class is missing."""


def of_both(parts: dict[str, Any]) -> dict[str, Any]:
    return {"text": f"{parts['txt']} of {parts['json']['size']}"}


def reverse(parts: dict[str, Any]) -> dict[str, Any]:
    return {**parts, "txt": parts["txt"].decode()[::-1]}


TEXTS: dict[str, Any] = {"field_map": {"text": "txt"}}
ONLY_TEXT = {"txt": "t3"}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: TextWebdataset(path, sample_loader=of_both, part_filter=["txt", "json"]), {"text": "t3 of 3"}),
        (lambda path: TextWebdataset(path, decoder=reverse, **TEXTS), {"text": "3t"}),  # before the encoder's
        (lambda path: TextWebdataset(path, decoder=None, **TEXTS), {"text": b"t3"}),
        (lambda path: Raw(path, **TEXTS), {"text": b"t3"}),
        (lambda path: StandardWebdatasetFactory(path, sample_type=TextSample, **TEXTS), {"text": "t3"}),
        (
            lambda path: StandardWebdatasetFactory(
                path, sample_type=Sized, field_map={"size": "json[size]", "text": "txt"}
            ),
            {"size": 3, "text": "t3"},
        ),
        (lambda path: CrudeWebdataset(path), ONLY_TEXT | {"json": {"size": 3}}),
        (lambda path: CrudeWebdataset(path, part_filter=["txt"]), ONLY_TEXT),
        (lambda path: CrudeWebdataset(path, part_filter=lambda part: part == "txt"), ONLY_TEXT),
    ],
)
def test_a_sample_is_what_the_settings_make_of_its_parts(folder: Path, make: Any, expected: dict[str, Any]) -> None:
    reader = SingleSourceReader(make(folder).source(), SampleDecoder())
    sample: Any = reader.build(reader.read(3), 3)
    found = sample if isinstance(sample, dict) else {one.name: getattr(sample, one.name) for one in fields(sample)}
    assert {name: value for name, value in found.items() if not name.startswith("__")} == expected


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: TextWebdataset(path), "expected one of field_map and sample_loader, got none"),
        (lambda path: TextWebdataset(path, field_map={"text": "txt"}, sample_loader=dict), "got both"),
        (lambda path: CaptioningWebdataset(path, field_map={"image": "txt"}), "'caption' is missing"),
        (lambda path: TextWebdataset(path, field_map={"text": "txt["}), "field access 'txt\\['"),
        (lambda path: TextWebdataset(path, field_map={"text": "txt"}, part_filter=["a"]), "part_filter: a field_map"),
        (lambda path: TextWebdataset(path, sample_loader="no.py:f"), "no.py: no such file"),
        (lambda path: CrudeWebdataset(path, field_map={"a": "b"}), "crude samples have no field_map"),
        (lambda path: TextWebdataset(path, field_map={"text": "txt"}, shuffle_over_epochs=0), "expected a number of"),
        (lambda path: StandardWebdatasetFactory(path, sample_type=int, field_map={}), "__sample_type__ is missing"),
        (lambda path: Forgotten(path, field_map={"image": "jpg"}), "Forgotten: __sample_type__ is missing"),
    ],
)
def test_wrong_settings_are_named(folder: Path, make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make(folder)


def test_unknown_settings_are_refused_and_those_without_meaning_warned_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'shuffel'"):
        TextWebdataset(folder, shuffel=3, **TEXTS)
    monkeypatch.setattr(ignored, "_warned", set())
    with pytest.warns(UserWarning, match="parallel_shard_iters has no effect"):
        TextWebdataset(folder, parallel_shard_iters=4, **TEXTS)


def test_a_loader_of_its_plan_has_the_ranks_of_the_factory(folder: Path) -> None:
    ranks = [WorkerConfig(rank, 2, 0) for rank in range(2)]
    factories = [
        *(TextWebdataset(folder, field_map={"text": "txt"}, training=False, worker_config=rank) for rank in ranks),
        *(get_dataset_from_config(folder, training=False, worker_config=rank) for rank in ranks),
    ]
    found = [[sample.text for sample in get_loader(factory.build())] for factory in factories]
    assert found[:2] == found[2:]
    assert sorted(found[0] + found[1]) == sorted(f"t{n}" for n in range(10))
    assert len(found[0]) == 5
    with pytest.raises(ConfigError, match="num_workers=1, but the dataset was made with num_workers=0"):
        get_loader(factories[0].build(), worker_config=WorkerConfig(0, 2, 1))


FACTORIES = [name for name in bridge_data.__all__ if name.endswith("Webdataset")]


@pytest.mark.parametrize("name", FACTORIES)
def test_every_factory_names_its_sample_class(tmp_path: Path, name: str) -> None:
    folder = write_dataset(tmp_path / "data", [{"__key__": "0", "txt": "t"}], definition=TEXT)
    assert len(FACTORIES) == 12
    factory = getattr(bridge_data, name)
    expected = name.removesuffix("Webdataset") + "Sample"
    if name == "CrudeWebdataset":
        assert factory(folder).source().sample_class is getattr(bridge_data, expected)
        return
    source = factory(folder, sample_loader=dict, part_filter=["txt"]).source()
    assert source.sample_class is getattr(bridge_data, expected)
