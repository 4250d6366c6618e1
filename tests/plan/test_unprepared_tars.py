"""Tars without `.nv-meta` as the data of runs: given as the argument, or named in a metadataset."""

from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    Cooker,
    DefaultTaskEncoder,
    WorkerConfig,
    basic_sample_keys,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from bridge_data.errors import ConfigError, StateError
from bridge_data.plan import load_plan
from bridge_data.plan.opening import split_parts
from bridge_data.samples import CrudeSample, TextSample
from bridge_data.storage.copies import CACHE_VARIABLE
from tests.data.tars import prepare_by_ratio, write_shards, write_tar
from tests.prepared import write_dataset_yaml

HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
ONE_PROCESS = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=1)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    write_shards(tmp_path / "data")
    return tmp_path / "data"


def cook(sample: CrudeSample) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=sample["json"]["caption"])


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(cook),)


def loader_of(path: Path) -> Any:
    options: dict[str, Any] = {"shuffle_buffer_size": 10, "max_samples_per_sequence": 10}
    return get_loader(
        get_train_dataset(path, batch_size=2, worker_config=ONE_PROCESS, task_encoder=Encoder(), **options)
    )


def keys_of(loader: Any, num_batches: int) -> list[str]:
    batches = iter(loader)
    return [key for _ in range(num_batches) for key in next(batches).__key__]


def test_a_run_reads_all_samples_and_goes_on_after_the_tars_were_prepared(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = keys_of(loader_of(data), 10)
    assert len({*expected}) == 20 and keys_of(loader_of(data / "*.tar"), 10) == expected
    first = loader_of(data)
    assert keys_of(first, 4) == expected[:8]
    state = first.save_state_rank()
    tar = (data / "data-000001.tar").read_bytes()
    write_tar(data / "data-000001.tar", {"new.txt": b"a", "new.json": b"{}"})
    with pytest.raises(StateError, match=r"data/train.*the shards, the split"):
        loader_of(data).restore_state_rank(state)
    assert "(data-000001.tar changed)" in caplog.text
    (data / "data-000001.tar").write_bytes(tar)
    prepare_by_ratio(data, "1,0,0")
    write_dataset_yaml(data, {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}, "dataset.yaml")
    then = loader_of(data)
    then.restore_state_rank(state)
    assert keys_of(then, 6) == expected[8:]


def test_a_metadataset_blends_a_folder_and_a_pattern(data: Path) -> None:
    path = data.parent / "m.yaml"
    path.write_text(
        f"{HEAD}splits:\n  train:\n    blend:\n    - {{path: data, subflavors: {{a: b}}}}\n"
        "    - path: data/data-{000000..000001}.tar\n  val: {path: data/data-000003.tar, split_part: train}\n"
    )
    plan = load_plan(path)
    assert [source.num_samples for source in plan.sources] == [20, 10]
    assert {source.sample_class for source in plan.sources} == {CrudeSample}
    assert plan.sources[0].subflavors == {"a": "b"}
    assert load_plan(path, split_part="val", training=False).num_samples == 5


def test_only_train_is_there_and_without_a_cooker_the_error_says_that_one_is_needed(data: Path) -> None:
    assert split_parts(data) == ["train"]
    options: dict[str, Any] = {"batch_size": 2, "worker_config": ONE_PROCESS}
    with pytest.raises(ConfigError, match="all of its samples are in split part 'train', and there is no 'val'"):
        get_val_dataset(data, **options)
    told = r"no cooker takes samples of .*data \[train\], tars of which `bridge-data p"
    with pytest.raises(ConfigError, match=told):
        get_train_dataset(data, shuffle_buffer_size=None, max_samples_per_sequence=None, **options)
