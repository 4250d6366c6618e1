import functools
import pickle
from typing import Any

import pytest

from bridge_data import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    Packing,
    SampleDecoder,
    TextSample,
    stateless,
)
from bridge_data.order.plan_order import Numbering
from bridge_data.task import AugmentTaskEncoder, EncoderHooks, Hooks, hook_of, is_overridden
from bridge_data.task.task_encoder import declared
from bridge_data.topology import WorkerConfig


def hooks(encoder: Any) -> Hooks:
    return Hooks(EncoderHooks(encoder), WorkerConfig(rank=0, world_size=1, num_workers=0), Numbering([1], [10]))


def cook(sample: Any) -> TextSample:
    return TextSample(__key__="a", text="cooked")


class Inner(DefaultTaskEncoder[Any, Any, Any, Any]):
    __default_failure_tolerance__ = 7
    decoder = SampleDecoder(image_decode="pilrgb")
    cookers = (Cooker(cook),)

    def __init__(self) -> None:
        super().__init__()
        self.select_samples_to_pack = Packing(length=len, capacity=3, overlong="alone")  # type: ignore[method-assign]

    @stateless(restore_seeds=True, failure_tolerance=3)
    def encode_sample(self, sample: str) -> str:
        return sample + "i"

    @stateless
    def pack_selected_samples(self, samples: list[str]) -> str:
        return "+".join(samples)

    @stateless
    def batch(self, samples: list[str]) -> str:
        return ",".join(samples)

    @stateless
    def batch_group_criterion(self, sample: str) -> tuple[str, int]:
        return sample, 2

    def empty_batch(self, batch: str) -> str:
        return "empty"


class Outer(AugmentTaskEncoder[Any, Any, Any, Any]):
    @stateless
    def encode_sample(self, sample: str) -> str:
        return f"<{super().encode_sample(sample)}>"


class Own(AugmentTaskEncoder[Any, Any, Any, Any]):
    __default_failure_tolerance__ = 1
    decoder = None
    cookers = ()


def test_what_is_not_overridden_is_the_other_encoders() -> None:
    inner = Inner()
    outer = Outer(inner)
    assert outer.task_encoder is inner
    assert (outer.decoder, outer.cookers, outer.__default_failure_tolerance__) == (inner.decoder, inner.cookers, 7)
    assert outer.batch(["a", "b"]) == "a,b"
    assert outer.encode_batch("a") == "a"
    assert outer.batch_group_criterion("a") == ("a", 2)
    assert outer.select_samples_to_pack(["aa", "bb"]) == [["aa"]]
    assert outer.pack_selected_samples(["a", "b"]) == "a+b"
    assert outer.preencode_sample("a") == outer.postencode_sample("a") == "a"
    assert outer.empty_batch("a") == "empty"
    crude = CrudeSample(__key__="a", txt="raw")
    assert outer.cook_crude_sample(crude).text == outer.cook_crude_sample(crude, Cooker(cook), aux={}).text == "cooked"
    assert pickle.loads(pickle.dumps(Outer(outer))).encode_sample("x") == "<<xi>>"
    own = Own(inner)
    assert (own.decoder, own.cookers, own.__default_failure_tolerance__) == (None, (), 1)


def test_hooks_count_as_overridden_where_an_encoder_inside_overrides_them() -> None:
    outer = Outer(Own(Inner()))
    overridden = {"encode_sample", "batch", "batch_group_criterion", "select_samples_to_pack", "pack_selected_samples"}
    for hook in (*overridden, "preencode_sample", "postencode_sample", "encode_batch", "cook_crude_sample"):
        assert is_overridden(outer, hook) == (hook in overridden), hook
    assert isinstance(hook_of(outer, "select_samples_to_pack"), Packing)
    assert hook_of(outer, "encode_sample") == outer.encode_sample
    assert not is_overridden(AugmentTaskEncoder(DefaultTaskEncoder()), "batch")


@pytest.mark.parametrize("base_draws", [True, False])
def test_a_hook_is_seeded_if_the_version_that_super_leads_to_draws(base_draws: bool) -> None:
    class Base(DefaultTaskEncoder[Any, Any, Any, Any]):
        def encode_sample(self, sample: Any) -> Any:
            return sample

    if not base_draws:
        Base.encode_sample = stateless(Base.encode_sample)  # type: ignore[method-assign]

    class Derived(Base):
        @stateless
        def encode_sample(self, sample: Any) -> Any:
            return super().encode_sample(sample)

    assert ("encode_sample" in hooks(Derived()).seeded) == base_draws


class OneArgument(DefaultTaskEncoder[Any, Any, Any, Any]):
    @stateless
    def cook_crude_sample(self, sample: Any) -> Any:  # type: ignore[override]
        return sample

    @stateless
    def encode_sample(self, anything: Any) -> Any:
        return anything


class ByName(AugmentTaskEncoder[Any, Any, Any, Any]):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return super().encode_sample(sample=sample)


def test_hooks_inside_may_take_other_parameters() -> None:
    encoder = ByName(OneArgument())
    assert encoder.encode_sample("a") == "a"
    assert encoder.cook_crude_sample("a", None, None) == "a"


def test_a_hook_around_another_one_has_its_own_tolerance() -> None:
    inner = stateless(failure_tolerance=5)(lambda sample: sample)
    outer = stateless(functools.wraps(inner)(lambda sample: inner(sample)))
    assert declared(inner).failure_tolerance == 5
    assert declared(outer).failure_tolerance is None


def test_an_inner_hook_that_draws_is_seeded_although_the_outer_one_draws_nothing() -> None:
    both = hooks(Outer(Inner()))
    assert both.of_encoder.declared["encode_sample"].failure_tolerance == 3
    assert both.seeded >= {"encode_sample", "cook_crude_sample"} and "batch" not in both.seeded
    plain = Inner()
    plain.cookers = (Cooker(stateless(cook)),)
    assert "cook_crude_sample" not in hooks(plain).seeded


def _yielding(sample: Any) -> Any:
    yield sample


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("inner", "encode_sample", str),
        ("outer", "cookers", [Cooker(_yielding)]),
        ("outer", "__default_failure_tolerance__", 3),
    ],
)
def test_what_is_set_on_an_encoder_later_is_looked_up_again(where: str, name: str, value: Any) -> None:
    inner: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder()
    outer = AugmentTaskEncoder(inner)
    looked_up = EncoderHooks(outer)
    assert looked_up.are_of(outer)
    setattr(inner if where == "inner" else outer, name, value)
    assert not looked_up.are_of(outer)
