import inspect
import warnings
from pathlib import Path
from typing import Any

import pytest

import bridge_data
from bridge_data import WorkerConfig, get_val_dataset, get_val_datasets, ignored
from tests.prepared import write_texts


def test_every_ignored_argument_is_taken_by_something_public_and_is_none_unless_given() -> None:
    public = [getattr(bridge_data, name) for name in bridge_data.__all__]
    taken = [parameters(value) for value in public if callable(value)]
    for name in ignored.IGNORED:
        assert any(name in arguments and arguments[name].default is None for arguments in taken), name


def parameters(value: Any) -> Any:
    try:
        return inspect.signature(value).parameters
    except ValueError:  # an exception class
        return {}


def test_ignored_arguments_are_warned_of_once_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored, "_warned", set())
    write_texts(tmp_path / "data", 4)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for make in (get_val_dataset, get_val_datasets):
                make(
                    tmp_path / "data",
                    split_part="train",
                    worker_config=config,
                    batch_size=2,
                    parallel_shard_iters=16,
                    handler=print,
                    ignore_decoder_errors=False,
                )
    told = [str(warning.message) for warning in caught]
    assert sorted(text.split()[0] for text in told) == ["handler", "ignore_decoder_errors", "parallel_shard_iters"]
    assert all(ignored.IGNORED[text.split()[0]] in text for text in told)
    assert {warning.filename for warning in caught} == {__file__}, "the warning shows the caller's line"


def test_nothing_is_warned_of_that_was_not_given() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ignored.warn_ignored(**dict.fromkeys(ignored.IGNORED))
