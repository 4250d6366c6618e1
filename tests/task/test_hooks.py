import io
import math
import os
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data import get_savable_loader, get_val_dataset
from bridge_data.errors import ConfigError, FatalSampleError, SkipSample, log_exception, reraise_exception
from bridge_data.order.plan_order import Numbering
from bridge_data.samples import TextSample
from bridge_data.task import TRUNCATED, DefaultTaskEncoder, Hooks, stateless
from bridge_data.topology import WorkerConfig

SAMPLE = TextSample(__key__="s.tar/7", text="seven")
REF = (1, 0, 7, 0)


class Encoder(DefaultTaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        return random.random()

    @stateless(failure_tolerance=2)
    def postencode_sample(self, sample: Any) -> Any:
        raise ValueError("no such luck")

    def encode_batch(self, batch: Any) -> Iterator[Any]:
        yield 1
        yield 2
        raise SkipSample


def hooks(handler: Any = log_exception, seed: int = 3, encoder: Any = None) -> Hooks:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, seed_offset=seed, global_error_handler=handler)
    return Hooks(encoder or Encoder(), config, Numbering([1, 2], [10, 5]))


def test_random_numbers_belong_to_the_sample() -> None:
    def draw(seed: int = 3, sample: tuple[int, ...] = REF) -> Any:
        lane = hooks(seed=seed)
        return lane.run("encode_sample", lane.encoder.encode_sample, SAMPLE, sample)[0]

    first = draw()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    assert draw() == first
    others = [draw(seed=4), draw(sample=(1, 1, 7, 0)), draw(sample=(2, 0, 7, 0)), draw(sample=(1, 0, 7, 1))]
    for other in others:
        assert all(a != b for a, b in zip(first, other, strict=True))


def test_a_stateless_hook_is_not_seeded() -> None:
    lane = hooks()
    random.seed(11)
    drawn = lane.run("preencode_sample", lane.encoder.preencode_sample, SAMPLE, REF)
    random.seed(11)
    assert drawn == [random.random()]


def test_the_callers_generators_are_given_back() -> None:
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()
    lane = hooks()
    with lane:
        lane.run("encode_sample", lane.encoder.encode_sample, SAMPLE, REF)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert np.random.get_state()[1].tolist() == before[2]


def test_a_generator_gives_several_results_and_may_stop_by_skipping() -> None:
    lane = hooks()
    assert lane.run("encode_batch", lane.encoder.encode_batch, SAMPLE, REF) == [1, 2]
    assert not lane.skipped


def test_skips_are_counted_by_hook() -> None:
    def skip(sample: Any) -> Any:
        raise SkipSample

    lane = hooks()
    assert lane.run("batch", skip, [SAMPLE] * 3, REF, count=3) == []
    assert lane.skipped == {"batch": 3}


def test_failures_are_handed_to_the_handler_until_the_tolerance_is_spent() -> None:
    seen: list[tuple[str, Any]] = []
    lane = hooks(lambda error, sample, sources: seen.append((str(error), sample)))
    for _ in range(2):
        assert lane.run("postencode_sample", lane.encoder.postencode_sample, SAMPLE, REF) == []
    with pytest.raises(FatalSampleError, match=r"(?s)postencode_sample of Encoder failed 3 times.*s\.tar/7.*luck"):
        lane.run("postencode_sample", lane.encoder.postencode_sample, SAMPLE, REF)
    assert seen == [("no such luck", SAMPLE)] * 2
    assert lane.skipped == {"postencode_sample": 3, "failed": 3}


def test_a_hook_may_end_the_run() -> None:
    def found_damage(sample: Any) -> Any:
        raise FatalSampleError.from_sample(sample, "damaged")

    with pytest.raises(FatalSampleError, match=r"sample s\.tar/7 failed: damaged"):
        hooks(lambda error, sample, sources: None).run("encode_sample", found_damage, SAMPLE, REF)
    assert str(FatalSampleError.from_sample({"__key__": "k"})) == "sample k failed"
    assert str(FatalSampleError.from_sample_key("k")) == "sample k failed"


def test_a_hook_that_does_not_do_a_kind_of_sample_leaves_it_out_until_the_tolerance_is_spent() -> None:
    class Encoder(DefaultTaskEncoder):
        kinds = 3

        @stateless(failure_tolerance=4)
        def encode_sample(self, sample: TextSample) -> TextSample:
            if int(sample.text) % self.kinds:
                raise NotImplementedError(f"no {sample.text}")
            return sample

    def loader(encoder: Encoder) -> Any:
        samples = [TextSample(__key__=str(number), text=str(number)) for number in range(12)]
        handler = lambda error, *_: told.append(str(error))  # noqa: E731
        config = WorkerConfig(0, 1, 0, global_error_handler=handler, num_lanes=1)
        dataset = get_val_dataset(samples, worker_config=config, batch_size=1, task_encoder=encoder)
        return get_savable_loader(dataset)

    told: list[str] = []
    kept = loader(Encoder())
    assert sorted(int(batch.text[0]) for batch in kept) == [0, 3, 6, 9]
    assert kept.skipped == {"encode_sample": 8} and sorted(told) == sorted(f"no {n}" for n in range(12) if n % 3)
    encoder = Encoder()
    encoder.kinds = 100
    with pytest.raises(FatalSampleError, match=r"encode_sample of Encoder failed 5 times .*NotImplementedError"):
        list(loader(encoder))


def test_a_success_in_between_starts_the_count_anew() -> None:
    lane = hooks(lambda error, sample, sources: None)

    def failing(sample: Any) -> Any:
        raise ValueError(sample)

    for number in range(300):
        lane.run("decode", failing if number % 100 else str, SAMPLE, REF)
    with pytest.raises(FatalSampleError, match=r"101 times in a row \(tolerance 100\)"):
        for _ in range(101):
            lane.run("decode", failing, SAMPLE, REF)


class Tolerant(DefaultTaskEncoder):
    __default_failure_tolerance__ = 1

    @stateless(failure_tolerance=0)
    def encode_sample(self, sample: Any) -> Any:
        raise ValueError("first")

    @stateless(failure_tolerance=math.inf)
    def preencode_sample(self, sample: Any) -> Any:
        raise ValueError("any number")

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        raise ValueError("twice")


@pytest.mark.parametrize("stage", ["encode_sample", "preencode_sample"])
def test_tolerances_0_and_infinity_have_no_limit_but_warn_and_count(
    stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    lane = hooks(lambda *failure: None, encoder=Tolerant())
    for _ in range(1_000):
        assert lane.run(stage, getattr(lane.encoder, stage), SAMPLE, REF) == []
    assert lane.skipped == {stage: 1_000, "failed": 1_000}
    assert [record.message for record in caplog.records if "failed 100 times in a row" in record.message]
    assert len(caplog.records) == 1


def test_the_encoder_has_a_tolerance_for_hooks_that_declare_none() -> None:
    lane = hooks(lambda *failure: None, encoder=Tolerant())
    assert lane.run("postencode_sample", lane.encoder.postencode_sample, SAMPLE, REF) == []
    with pytest.raises(FatalSampleError, match=r"2 times in a row \(tolerance 1\)"):
        lane.run("postencode_sample", lane.encoder.postencode_sample, SAMPLE, REF)


@pytest.mark.parametrize("tolerance", [None, -1, "many", math.nan])
def test_a_tolerance_that_is_no_number_of_failures_is_an_error(tolerance: Any) -> None:
    encoder = Tolerant()
    encoder.__default_failure_tolerance__ = tolerance
    with pytest.raises(ConfigError, match=r"Tolerant\(__default_failure_tolerance__=.*0 for no limit"):
        hooks(encoder=encoder)


def test_what_a_generator_yields_before_it_fails_is_not_kept() -> None:
    def failing(sample: Any) -> Iterator[int]:
        yield 1
        raise ValueError("later")

    lane = hooks(lambda *failure: None)
    assert lane.run("encode_sample", failing, SAMPLE, REF) == []
    assert lane.skipped == {"encode_sample": 1, "failed": 1}


@pytest.mark.parametrize(
    "fault", [NameError("x"), ImportError("y"), ConfigError("z"), OSError(5, "disk"), MemoryError()]
)
def test_faults_that_are_no_fault_of_the_sample_stop_at_once(fault: Exception) -> None:
    def broken(sample: Any) -> Any:
        raise fault

    with pytest.raises(type(fault)):
        hooks().run("encode_sample", broken, SAMPLE, REF)


def test_an_image_that_pillow_cannot_read_is_a_fault_of_the_sample() -> None:
    lane = hooks(lambda error, sample, sources: None)
    assert lane.run("encode_sample", lambda _: Image.open(io.BytesIO(b"no image")), SAMPLE, REF) == []
    assert lane.skipped == {"encode_sample": 1, "failed": 1}


def test_the_reraising_handler_stops_at_the_first_failure() -> None:
    lane = hooks(reraise_exception)
    with pytest.raises(ValueError, match="no such luck") as caught:
        lane.run("postencode_sample", lane.encoder.postencode_sample, SAMPLE, REF)
    assert "s.tar/7" in caught.value.__notes__[0]


def test_a_failure_is_logged_in_full_once_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    lane = hooks(encoder=Tolerant())

    def broken(sample: Any) -> Any:
        raise ZeroDivisionError("only here")

    for _ in range(50):
        lane.run("encode_sample", broken, SAMPLE, REF)
        lane.run("preencode_sample", broken, SAMPLE, REF)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 4 and all("only here" in text for text in texts)
    assert all("Traceback" in text for text in texts[:2])
    for text in texts[2:]:
        assert re.match(
            rf"process {os.getpid()} has left out samples for the same reason 10 times so far, the last", text
        )
        assert "sample s.tar/7" in text


def test_samples_that_were_cut_were_not_left_out() -> None:
    lane = hooks()
    lane.skipped[TRUNCATED] += 3
    assert lane.skip_summary() == ""
    lane.skipped["encode_sample"] += 2
    assert lane.skip_summary() == "were left out (2 in encode_sample)"
