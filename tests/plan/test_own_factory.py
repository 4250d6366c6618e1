"""A factory of the user's, named by a dataset.yaml."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import ConfigError, FatalSampleError, WorkerConfig, get_loader, get_train_dataset
from bridge_data.decode import SampleDecoder
from bridge_data.decode.sample_loader import SampleLoader
from bridge_data.plan import load_plan
from tests.plan.own_factories import BytesWebdataset, NothingWebdataset, Shouted, ShoutedWebdataset
from tests.prepared import write_dataset

ALONE = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=1)


def loaded(source: Any, index: int) -> Any:
    return SampleLoader(pickle.loads(pickle.dumps(source)), SampleDecoder()).load(index)


def own(folder: Path, name: str, **more: Any) -> Path:
    samples = [{"__key__": f"{n:03}", "txt": f"t{n}", "json": {"size": n}} for n in range(3)]
    head = {"__module__": "tests.plan.own_factories", "__class__": name}
    return write_dataset(folder, samples, definition={**head, **more})


SHOUTED = {"field_map": {"text": "txt", "size": "json[size]"}, "subflavors": {"a": 1}}


def test_a_class_of_the_user_makes_its_samples(tmp_path: Path) -> None:
    folder = own(tmp_path / "data", "ShoutedWebdataset", **SHOUTED, mark="?")
    (source,) = load_plan(folder, trusted_modules=["tests.plan.own_factories"]).sources
    assert source.config_file == str(folder / ".nv-meta" / "dataset.yaml")
    sample = loaded(source, 2)
    assert type(sample) is Shouted
    assert (sample.text, sample.size, sample.__subflavors__) == ("T2?", 2, {"a": 1})
    assert sample.__sources__[0].file_names == ("002.json", "002.txt")
    assert ShoutedWebdataset(folder, **SHOUTED).source().fingerprint == source.fingerprint


def test_its_samples_get_the_sub_flavors_of_a_metadataset(tmp_path: Path) -> None:
    own(tmp_path / "data", "BytesWebdataset")
    file = tmp_path / "m.yaml"
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    file.write_text(head + "splits: {train: {path: data, subflavors: {b: 2}}}\n")
    (source,) = load_plan(file, trusted_modules=["tests"]).sources
    sample = loaded(source, 1)
    assert (sample.caption, sample.__subflavors__) == ("t1", {"b": 2})
    assert type(source.maker) is BytesWebdataset


def test_it_trains(tmp_path: Path) -> None:
    folder = own(tmp_path / "data", "ShoutedWebdataset", **SHOUTED)
    dataset = get_train_dataset(
        folder,
        worker_config=ALONE,
        batch_size=3,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        trusted_modules=["tests.plan.own_factories"],
        repeat=False,
    )
    (batch,) = get_loader(dataset)
    assert sorted(batch.text) == ["T0!", "T1!", "T2!"]
    assert sorted(batch.size) == [0, 1, 2] or torch.equal(batch.size.sort().values, torch.arange(3))


def test_it_is_not_imported_without_trust(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.yaml:\d+: .*own_factories' would be imported"):
        load_plan(own(tmp_path / "data", "ShoutedWebdataset", **SHOUTED))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({**SHOUTED, "marc": "?"}, "ShoutedWebdataset: .*unexpected keyword argument 'marc'"),
        ({"field_map": {"text": "txt"}}, "ShoutedWebdataset: .*'size' is missing"),
        ({"sample_loader": "a.py:f", "part_filter": ["txt"]}, "sample_loader: a.py:f is code that lies beside"),
    ],
)
def test_its_wrong_settings_name_the_file(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    folder = own(tmp_path / "data", "ShoutedWebdataset", **more)
    with pytest.raises(ConfigError, match=rf"dataset\.yaml:\d+: {says}"):
        load_plan(folder, trusted_modules=["tests"])


def test_a_class_that_makes_no_sample_stops_the_run(tmp_path: Path) -> None:
    folder = own(tmp_path / "data", "NothingWebdataset", **SHOUTED)
    (source,) = load_plan(folder, trusted_modules=["tests"]).sources
    with pytest.raises(FatalSampleError, match=r"load_sample returned None for sample .*000: expected a Sample"):
        loaded(source, 0)
    assert type(source.maker) is NothingWebdataset
