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
    get_savable_loader,
    stateless,
)
from tests.prepared import TEXT, train_dataset, write_blend, write_dataset, write_texts


def load(path: Path, batches: int = 20, **changes: Any) -> None:
    with get_savable_loader(train_dataset(path, **changes)) as loader:
        for _ in zip(range(batches), loader, strict=False):
            pass


def not_prepared(folder: Path) -> Path:
    (folder / "bare").mkdir()
    shutil.copy(folder / "data" / "data-0000.tar", folder / "bare")
    return folder / "bare"


def truncated_tar(folder: Path) -> Path:
    shard = folder / "data" / "data-0001.tar"
    shard.write_bytes(shard.read_bytes()[:20_000])
    return folder / "data"


def missing_shard(folder: Path) -> Path:
    (folder / "data" / "data-0001.tar").unlink()
    return folder / "data"


def broken_yaml(folder: Path) -> Path:
    (folder / "broken.yaml").write_text("__class__: MetadatasetV2\nsplits: [train: {\n")
    return folder / "broken.yaml"


def one_sample(folder: Path, **definition: Any) -> Path:
    return write_dataset(folder / "one", [{"__key__": "a", "txt": "x"}], definition=TEXT | definition)


def data(folder: Path) -> Path:
    return folder / "data"


SAMPEL = {"__module__": "megatron.energon", "__class__": "TextSampel"}
"""A misspelt class."""


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


CASES: dict[str, tuple[Callable[[Path], Path], dict[str, Any], type[BridgeDataError], list[str]]] = {
    "missing path": (lambda folder: folder / "nothing", {}, BridgeDataError, ["nothing"]),
    "not prepared": (not_prepared, {}, ConfigError, ["bare", "bridge-data prepare"]),
    "truncated tar": (truncated_tar, {}, DatasetError, ["data-0001.tar"]),
    "missing shard": (missing_shard, {}, DatasetError, ["data-0001.tar"]),
    "absent part": (
        lambda folder: one_sample(folder, field_map={"text": "caption.txt"}),
        {},
        ConfigError,
        ["caption.txt", "dataset.yaml", "txt"],
    ),
    "unknown class": (
        lambda folder: one_sample(folder, sample_type=SAMPEL),
        {},
        ConfigError,
        ["TextSampel", "TextSample", "dataset.yaml:"],
    ),
    "negative weight": (
        lambda folder: write_blend(folder / "blend.yaml", {"data": -1.0}),
        {},
        ConfigError,
        ["-1", "blend.yaml:"],
    ),
    "unknown split": (data, {"split_part": "trian"}, ConfigError, ["trian", "train"]),
    "broken yaml": (broken_yaml, {}, ConfigError, ["broken.yaml"]),
    "hook without return": (
        data,
        {"task_encoder": Forgetful()},
        FatalSampleError,
        ["encode_sample of Forgetful", "returned None", "SkipSample", ".tar/"],
    ),
    "class as encoder": (
        data,
        {"task_encoder": Forgetful},
        ConfigError,
        ["task_encoder=<class", "Forgetful", "with ()"],
    ),
    "flat packs": (
        data,
        {"task_encoder": FlatPacks(), "packing_buffer_size": 8},
        FatalSampleError,
        ["FlatPacks.select_samples_to_pack", "list of lists"],
    ),
    "half a batch": (data, {"batch_size": 2.5}, ConfigError, ["batch_size=2.5", "integer"]),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_screen_that_names_what_is_wrong(tmp_path: Path, name: str) -> None:
    prepared, settings, kind, parts = CASES[name]
    write_texts(tmp_path / "data", 200)
    with pytest.raises(kind) as caught:
        load(prepared(tmp_path), **settings)
    message = str(caught.value)
    for part in parts:
        assert part in message
    assert len(message) < 1_200
    assert message.count("\n") < 15


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
