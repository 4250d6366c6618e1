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

from bridge_data.errors import ConfigError, FatalSampleError, SkipSample, log_exception, reraise_exception
from bridge_data.order.plan_order import Numbering
from bridge_data.samples import TextSample
from bridge_data.task import TRUNCATED, DefaultTaskEncoder, EncoderHooks, Hooks, stateless
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


def hooks(handler: Any = log_exception, seed: int = 3, encoder: Any = None) -> Hooks:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, seed_offset=seed, global_error_handler=handler)
    return Hooks(EncoderHooks(encoder or Encoder()), config, Numbering([1, 2], [10, 5]))


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


@pytest.mark.parametrize("how", ["bfloat16", "device", "inference", "no_grad"])
def test_hooks_have_torch_as_a_worker_has_it_whatever_the_trainer_has_set(how: str) -> None:
    def made(sample: Any) -> Any:
        with_gradients = torch.tensor(torch.is_grad_enabled())
        return torch.rand(3), torch.tensor([len(sample.text) / 3]), torch.arange(2), with_gradients

    with hooks() as lane:
        (expected,) = lane.run("encode_sample", made, SAMPLE, REF)
    before, device = torch.get_default_dtype(), "meta" if how == "device" else "cpu"
    with torch.inference_mode(how == "inference"), torch.set_grad_enabled(how != "no_grad"), torch.device(device):
        torch.set_default_dtype(torch.bfloat16 if how == "bfloat16" else before)
        try:
            with hooks() as lane:
                (found,) = lane.run("encode_sample", made, SAMPLE, REF)
            after = torch.empty(1)
        finally:
            torch.set_default_dtype(before)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and not one.is_meta and not one.is_inference() and torch.equal(one, other)
    assert after.is_meta == (how == "device") and after.is_inference() == (how == "inference")
    assert (after.dtype == torch.bfloat16) == (how == "bfloat16")


def test_a_hook_may_end_the_run() -> None:
    def found_damage(sample: Any) -> Any:
        raise FatalSampleError.from_sample(sample, "damaged")

    with pytest.raises(FatalSampleError, match=r"sample s\.tar/7 failed: damaged"):
        hooks(lambda error, sample, sources: None).run("encode_sample", found_damage, SAMPLE, REF)
    assert str(FatalSampleError.from_sample({"__key__": "k"})) == "sample k failed"
    assert str(FatalSampleError.from_sample_key("k")) == "sample k failed"


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


@pytest.mark.parametrize("tolerance", [None, -1, "many", math.nan])
def test_a_tolerance_that_is_no_number_of_failures_is_an_error(tolerance: Any) -> None:
    encoder = Tolerant()
    encoder.__default_failure_tolerance__ = tolerance
    with pytest.raises(ConfigError, match=r"Tolerant\(__default_failure_tolerance__=.*0 for no limit"):
        hooks(encoder=encoder)


@pytest.mark.parametrize(
    "fault", [NameError("x"), ImportError("y"), ConfigError("z"), OSError(5, "disk"), MemoryError()]
)
def test_faults_that_are_no_fault_of_the_sample_stop_at_once(fault: Exception) -> None:
    def broken(sample: Any) -> Any:
        raise fault

    with pytest.raises(type(fault)):
        hooks().run("encode_sample", broken, SAMPLE, REF)


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


def test_a_stateless_hook_is_not_seeded_and_the_callers_generators_are_given_back() -> None:
    before = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    lane = hooks()
    with lane:
        lane.run("encode_sample", lane.encoder.encode_sample, SAMPLE, REF)
    assert (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()) == before
    random.seed(11)
    drawn = lane.run("preencode_sample", lane.encoder.preencode_sample, SAMPLE, REF)
    random.seed(11)
    assert drawn == [random.random()]


def two_and_skips(sample: Any) -> Iterator[Any]:
    yield 1
    yield 2
    raise SkipSample


def one_and_fails(sample: Any) -> Iterator[int]:
    yield 1
    raise ValueError("later")


def skips(sample: Any) -> Any:
    raise SkipSample


class Partial(DefaultTaskEncoder):
    """Does not do this kind of sample."""

    @stateless(failure_tolerance=4)
    def encode_sample(self, sample: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("hook", "made", "skipped"),
    [
        (two_and_skips, [1, 2], {}),
        (one_and_fails, [], {"batch": 3, "failed": 3}),
        (skips, [], {"batch": 3}),
        (lambda sample: Image.open(io.BytesIO(b"no image")), [], {"batch": 3, "failed": 3}),
    ],
)
def test_what_a_hook_makes_and_leaves_out(hook: Any, made: list[Any], skipped: dict[str, int]) -> None:
    lane = hooks(lambda *failure: None)
    assert lane.run("batch", hook, [SAMPLE] * 3, REF, count=3) == made
    assert lane.skipped == skipped


@pytest.mark.parametrize(
    ("encoder", "stage", "num_tolerated"),
    [
        (Encoder, "postencode_sample", 2),  # declared by the hook
        (Tolerant, "postencode_sample", 1),  # of the encoder, for hooks that declare none
        (Partial, "encode_sample", 4),  # NotImplementedError is one as well
        (Tolerant, "encode_sample", 1_000),  # 0 and infinity: no limit, but a warning
        (Tolerant, "preencode_sample", 1_000),
    ],
)
def test_failures_are_handed_to_the_handler_until_the_tolerance_is_spent(
    encoder: type, stage: str, num_tolerated: int, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    lane = hooks(lambda error, sample, sources: seen.append(sample), encoder=encoder())
    for _ in range(num_tolerated):
        assert lane.run(stage, getattr(lane.encoder, stage), SAMPLE, REF) == []
    assert seen == [SAMPLE] * num_tolerated
    assert lane.skipped == {stage: num_tolerated, "failed": num_tolerated}
    if num_tolerated == 1_000:
        assert ["failed 100 times in a row" in record.message for record in caplog.records] == [True]
        return
    told = rf"(?s){stage} of {encoder.__name__} failed {num_tolerated + 1} times in a row \(tolerance .*s\.tar/7"
    with pytest.raises(FatalSampleError, match=told):
        lane.run(stage, getattr(lane.encoder, stage), SAMPLE, REF)


def test_samples_that_were_cut_were_not_left_out() -> None:
    lane = hooks()
    lane.skipped[TRUNCATED] += 3
    assert lane.skip_summary() == ""
    lane.skipped["encode_sample"] += 2
    assert lane.skip_summary() == "were left out (2 in encode_sample)"
