"""An observer hears of the stages of making batches: each that begins ends, whatever fails in it."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    DefaultTaskEncoder,
    FatalSampleError,
    SkipSample,
    get_savable_loader,
    stateless,
)
from tests.prepared import train_dataset, write_texts


class Listening:
    """Writes down what it hears of."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.begun: list[tuple[str, ...]] = []
        """Every stage that began, with those that it was inside."""
        self.sources: set[int | None] = set()
        self.num_batches = [0, 0]
        self.made: list[Any] = []

    def begin_batch(self) -> None:
        self.num_batches[0] += 1

    def end_batch(self) -> None:
        self.num_batches[1] += 1
        assert not self.running

    def begin(self, stage: str, source_key: int | None = None) -> None:
        self.running.append(stage)
        self.begun.append(tuple(self.running))
        self.sources.add(source_key)

    def end(self) -> None:
        self.running.pop()

    def finished(self, batch: Any) -> Any:
        self.made.append(batch)
        return batch


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("data") / "texts", 40)


def loader_of(data: Path, encoder: Any, observer: Listening | None) -> Any:
    dataset = train_dataset(data, num_lanes=2, task_encoder=encoder)
    return get_savable_loader(dataset if observer is None else dataset.observed(lambda _: observer))


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Hooks that are called for each sample and each batch; the first of them may fail."""

    def encode_sample(self, sample: Any) -> Any:
        return sample

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        return batch


class Skipping(Encoder):
    def encode_sample(self, sample: Any) -> Any:
        if self.current_sample_index % 3 == 0:
            raise SkipSample
        return sample


class Failing(Encoder):
    def encode_sample(self, sample: Any) -> Any:
        if self.current_sample_index % 3 == 0:
            raise ValueError("a broken sample")
        return sample


class FailingLater(Encoder):
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        yield sample
        if self.current_sample_index % 3 == 0:
            raise ValueError("a broken sample")


class Stopping(Encoder):
    __default_failure_tolerance__ = 0

    def encode_sample(self, sample: Any) -> Any:
        raise ValueError("a broken sample")


@pytest.mark.parametrize("encoder", [Encoder, Skipping, Failing, FailingLater])
def test_each_stage_is_told_of_and_ends_though_hooks_fail(data: Path, encoder: type) -> None:
    observer = Listening()
    loader = loader_of(data, encoder(), observer)
    batches = [batch.__key__ for batch in itertools.islice(loader, 10)]
    assert batches == [batch.__key__ for batch in itertools.islice(loader_of(data, encoder(), None), 10)]
    assert batches == [batch.__key__ for batch in observer.made[:10]]
    assert {"read", "seed encode_sample", "encode_sample", "encode_batch"} <= {stages[-1] for stages in observer.begun}
    assert observer.sources - {None} == set(loader.dataset.order.source_keys)
    assert observer.running == []
    assert observer.num_batches[0] == observer.num_batches[1] >= 10
    assert max(map(len, observer.begun)) <= 2, "a stage that does not end would stay around all later ones"


def test_each_stage_ends_when_a_hook_stops_the_run(data: Path) -> None:
    observer = Listening()
    with pytest.raises(FatalSampleError, match="a broken sample"):
        next(iter(loader_of(data, Stopping(), observer)))
    assert ("encode_sample",) in observer.begun
    assert observer.running == []
    assert observer.num_batches == [1, 1]
