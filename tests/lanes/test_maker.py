"""Makers: the core's own, in all ways in which it reads, observed, and inside wrappers that an outsider would write."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge_data import WorkerConfig, get_savable_loader, stateless
from bridge_data.counts import COUNTS
from bridge_data.lanes.maker import Made, Maker, outputs_of
from bridge_data.lanes.maker_wrappers import LaneView
from bridge_data.order import SampleRef
from tests.lanes.maker_contract import (
    ENCODERS,
    Together,
    check_maker,
    opened,
    produced,
    unchanged,
    wrapped_by,
    write_captions,
)
from tests.prepared import train_dataset, write_pair


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_captions(tmp_path_factory.mktemp("makers") / "captions")


class CountingMaker:
    """An outsider's: counts what it makes of each source. The counts come to the trainer with the batches."""

    def __init__(self, inner: Maker, lane: LaneView) -> None:
        self._inner, self._names = inner, lane.maker.ids.source_ids

    def make(self, refs: Sequence[SampleRef]) -> Iterable[Made]:
        for ref, made in zip(refs, self._inner.make(refs), strict=True):
            COUNTS.others[f"made/{self._names[ref.source]}"] += len(outputs_of(made))
            yield made


class AdoptingMaker:
    """An outsider's: half of the samples are made before the lane needs them."""

    def __init__(self, inner: Maker, lane: LaneView) -> None:
        assert lane.new_ahead_maker is not None
        self._inner, self._lane, self._ahead = inner, lane, lane.new_ahead_maker(lane.inside)

    def make(self, refs: Sequence[SampleRef]) -> Iterable[Made]:
        for ref in refs:
            outcome = None
            if self._lane.may_come_from_others(ref) and ref.index % 2:
                outcome = self._ahead.made(ref)
            if outcome is None:
                yield from self._inner.make((ref,))
            else:
                yield self._lane.adopted(ref, outcome)


class Listener:
    """An observer that does nothing."""

    def __init__(self, source_keys: Sequence[int]) -> None:
        self.num_open = 0

    def begin_batch(self) -> None:
        self.num_open += 1

    def end_batch(self) -> None:
        self.num_open -= 1
        assert not self.num_open

    def begin(self, stage: str, source_key: int | None = None) -> None:
        self.num_open += 1

    def end(self) -> None:
        self.num_open -= 1

    def finished(self, batch: Any) -> Any:
        return batch


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize(
    "changed",
    [
        unchanged,
        lambda dataset: dataset.observed(Listener),
        wrapped_by(CountingMaker),
        wrapped_by(AdoptingMaker),
        lambda dataset: wrapped_by(CountingMaker)(wrapped_by(AdoptingMaker)(dataset)),
    ],
    ids=["core", "observed", "counting", "adopting", "counting what is adopted"],
)
def test_each_maker_makes_the_samples_skips_and_counts_of_the_core(data: Path, encoder: Any, changed: Any) -> None:
    check_maker(data, encoder, changed)


class AlsoTogether(Together):
    """It notes what the watch saw of each sample that it was given, and how many it was given at once."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: list[SampleRef] = []
        self.seen: list[list[tuple[int, int]]] = []

    def many(self, samples: Iterable[Any]) -> Any:
        self.seen.append([(int(sample.caption), self.watched[-1].index) for sample in samples])
        return self.preencode_sample


class Overriding(AlsoTogether):
    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        return super().preencode_sample(sample)


@pytest.mark.parametrize("encoder", [AlsoTogether, Overriding])
def test_many_samples_are_encoded_together_each_under_the_watch_unless_the_hook_is_overridden(
    data: Path, encoder: type[AlsoTogether]
) -> None:
    dataset = opened(data, encoder)
    hooks: Any = dataset.task_encoder
    lane = dataset.lane(0, dataset.new_state(), watch=hooks.watched.append)
    batches = [lane.next().batch for _ in range(6)]
    made = [int(caption) for batch in batches for caption in batch.caption]
    assert not any(number % 7 == 1 for number in made)
    if encoder is Overriding:
        assert not hooks.seen
        return
    assert all(number == index for asked in hooks.seen for number, index in asked)
    assert {len(asked) for asked in hooks.seen} >= {4} and max(len(asked) for asked in hooks.seen) == 4
    together = {number for asked in hooks.seen for number, _ in asked}
    assert len(together.intersection(made)) > len(made) - 4  # but one that replaces a skipped one


def test_wrappers_of_a_lane_are_around_those_of_its_data_set(data: Path) -> None:
    calls: list[str] = []

    @dataclasses.dataclass
    class Named:
        name: str

        def __call__(self, inner: Maker, lane: LaneView) -> Maker:
            calls.append(f"{self.name} around {len(lane.inside)}")
            return inner

    dataset = wrapped_by(Named("inner"))(opened(data, ENCODERS[0]))
    produced(dataset, [Named("outer")])
    assert calls == ["inner around 0", "outer around 1"]


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_a_maker_that_counts_needs_no_change_of_the_core(tmp_path: Path, num_workers: int) -> None:
    config = WorkerConfig(0, 1, num_workers, num_lanes=2)
    dataset = train_dataset(write_pair(tmp_path, 60, 40), worker_config=config, batch_size=4)
    expected, names = [], dataset.source_ids
    with get_savable_loader(dataset) as loader:
        expected = [batch.__key__ for batch in itertools.islice(loader, 20)]
    with get_savable_loader(wrapped_by(CountingMaker)(dataset)) as loader:
        batches = [*itertools.islice(loader, 20)]
        counts = loader.metrics().others
    assert [batch.__key__ for batch in batches] == expected
    drawn = [key[0] for batch in batches for key in batch.__restore_key__[3:]]
    assert counts == {f"made/{name}": drawn.count(name) for name in names}
    assert all(counts.values())
