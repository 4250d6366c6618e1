"""Each kind of bad input, through the public surface: one screen, our own error, the file and key, and what to do."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    BridgeDataError,
    ConfigError,
    DatasetError,
    DefaultTaskEncoder,
    FatalSampleError,
    StateError,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from tests.prepared import TEXT, write_blend, write_dataset, write_texts

SETTINGS: dict[str, Any] = {"batch_size": 4, "shuffle_buffer_size": 10, "max_samples_per_sequence": 10}


def load(path: Path, batches: int = 20, **changes: Any) -> None:
    config = WorkerConfig(0, 1, 0)
    with get_savable_loader(get_train_dataset(path, worker_config=config, **(SETTINGS | changes))) as loader:
        for _ in zip(range(batches), loader, strict=False):
            pass


def missing_path(folder: Path) -> None:
    load(folder / "nothing")


def not_prepared(folder: Path) -> None:
    (folder / "bare").mkdir()
    shutil.copy(folder / "data" / "data-0000.tar", folder / "bare")
    load(folder / "bare")


def truncated_tar(folder: Path) -> None:
    shard = folder / "data" / "data-0001.tar"
    shard.write_bytes(shard.read_bytes()[:20_000])
    load(folder / "data")


def missing_shard(folder: Path) -> None:
    (folder / "data" / "data-0001.tar").unlink()
    load(folder / "data")


def absent_part(folder: Path) -> None:
    write_dataset(
        folder / "parts",
        [{"__key__": "a", "txt": "x"}],
        definition={**TEXT, "field_map": {"text": "caption.txt"}},
    )
    load(folder / "parts")


def unknown_class(folder: Path) -> None:
    definition = {**TEXT, "sample_type": {"__module__": "megatron.energon", "__class__": "TextSampel"}}
    load(write_dataset(folder / "class", [{"__key__": "a", "txt": "x"}], definition=definition))


def negative_weight(folder: Path) -> None:
    load(write_blend(folder / "blend.yaml", {"data": -1.0}))


def unknown_split(folder: Path) -> None:
    load(folder / "data", split_part="trian")


def broken_yaml(folder: Path) -> None:
    (folder / "broken.yaml").write_text("__class__: MetadatasetV2\nsplits: [train: {\n")
    load(folder / "broken.yaml")


class Forgetful(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Forgets to return what it has made."""

    def __init__(self) -> None:
        """Nor does it call that of its base."""

    def encode_sample(self, sample: Any) -> Any:
        sample.text = sample.text.upper()


class FlatPacks(DefaultTaskEncoder[Any, Any, Any, Any]):
    def select_samples_to_pack(self, samples: list[Any]) -> Any:
        return samples

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


def hook_without_return(folder: Path) -> None:
    load(folder / "data", task_encoder=Forgetful())


def class_as_encoder(folder: Path) -> None:
    load(folder / "data", task_encoder=Forgetful)


def flat_packs(folder: Path) -> None:
    load(folder / "data", task_encoder=FlatPacks(), packing_buffer_size=8)


def half_a_batch(folder: Path) -> None:
    load(folder / "data", batch_size=2.5)


CASES: list[tuple[Callable[[Path], None], type[BridgeDataError], list[str]]] = [
    (missing_path, BridgeDataError, ["nothing"]),
    (not_prepared, ConfigError, ["bare", "bridge-data prepare"]),
    (truncated_tar, DatasetError, ["data-0001.tar"]),
    (missing_shard, DatasetError, ["data-0001.tar"]),
    (absent_part, ConfigError, ["caption.txt", "dataset.yaml", "txt"]),
    (unknown_class, ConfigError, ["TextSampel", "TextSample", "dataset.yaml:"]),
    (negative_weight, ConfigError, ["-1", "blend.yaml:"]),
    (unknown_split, ConfigError, ["trian", "train"]),
    (broken_yaml, ConfigError, ["broken.yaml"]),
    (hook_without_return, FatalSampleError, ["encode_sample of Forgetful", "returned None", "SkipSample", ".tar/"]),
    (class_as_encoder, ConfigError, ["task_encoder=<class", "Forgetful", "with ()"]),
    (flat_packs, FatalSampleError, ["FlatPacks.select_samples_to_pack", "list of lists"]),
    (half_a_batch, ConfigError, ["batch_size=2.5", "integer"]),
]


@pytest.mark.parametrize(("case", "kind", "parts"), CASES, ids=[case[0].__name__ for case in CASES])
def test_bad_input_is_one_screen_that_names_what_is_wrong(
    tmp_path: Path, case: Callable[[Path], None], kind: type[BridgeDataError], parts: list[str]
) -> None:
    write_texts(tmp_path / "data", 200)
    with pytest.raises(kind) as caught:
        case(tmp_path)
    message = str(caught.value)
    for part in parts:
        assert part in message
    assert len(message) < 1_200
    assert message.count("\n") < 15


def test_a_state_of_other_data_names_it(tmp_path: Path) -> None:
    config = WorkerConfig(0, 1, 0)
    states = []
    for name, size in (("one", 100), ("two", 120)):
        dataset = get_train_dataset(write_texts(tmp_path / name, size), worker_config=config, **SETTINGS)
        with get_savable_loader(dataset) as loader:
            next(iter(loader))
            states.append(loader.save_state_rank())
            if len(states) == 2:
                with pytest.raises(StateError, match=r"one/train.*two/train"):
                    loader.restore_state_rank(states[0])


class Failing(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Fails on everything, after a few samples that it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    @stateless(failure_tolerance=5)
    def encode_sample(self, sample: Any) -> Any:
        self.calls += 1
        if self.calls > 10:
            raise KeyError("no such field")
        return sample


def test_a_function_that_raises_is_reported_once_in_full_and_stops_the_run_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = Failing()
    with pytest.raises(FatalSampleError, match=r"(?s)encode_sample of Failing failed 6 times.*tolerance 5.*\.tar/"):
        load(write_texts(tmp_path / "data", 200), task_encoder=encoder)
    assert encoder.calls == 16
    messages = [record.getMessage() for record in caplog.records]
    assert sum("Traceback" in message for message in messages) == 1
    assert sum(message.count("\n") for message in messages) < 60
