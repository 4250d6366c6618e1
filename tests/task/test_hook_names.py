import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge_data.decode import SampleDecoder
from bridge_data.encoders import MultiModalTaskEncoder
from bridge_data.errors import ConfigError
from bridge_data.lanes.datasets import get_train_dataset
from bridge_data.samples import CrudeSample
from bridge_data.task import (
    AugmentTaskEncoder,
    Cooker,
    DefaultTaskEncoder,
    TaskEncoder,
    check_hook_names,
    group_by,
    source_of,
    stateless,
)
from bridge_data.topology import WorkerConfig
from tests.prepared import write_texts


def plain(self: Any, sample: Any) -> Any:
    return sample


def encoder_with(base: type = DefaultTaskEncoder, **names: Any) -> type[TaskEncoder[Any, Any, Any, Any]]:
    return type("Mine", (base,), {"__module__": __name__, "__qualname__": "Mine", **names})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("encode_sampel", "encode_sample"),
        ("encode_samples", "encode_sample"),
        ("encode_smple", "encode_sample"),
        ("encodeSample", "encode_sample"),
        ("pre_encode_sample", "preencode_sample"),
        ("encode_bacth", "encode_batch"),
        ("bacth", "batch"),
        ("cook_crude_samples", "cook_crude_sample"),
        ("select_sample_to_pack", "select_samples_to_pack"),
        ("empty_bach", "empty_batch"),
    ],
)
def test_a_misspelt_hook_is_an_error_with_the_one_that_is_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"test_hook_names\.Mine\.{name} is .*did you mean '{meant}'\?"):
        check_hook_names(encoder_with(**{name: plain})())


@pytest.mark.parametrize(
    "name",
    ["match", "catch", "patch", "watch", "hatch", "fetch", "decode_sample", "batch_size", "batches", "branch", "make"],
)
def test_a_method_that_is_like_a_hook_by_chance_is_none(name: str) -> None:
    check_hook_names(encoder_with(**{name: plain})())


def test_what_the_encoder_itself_uses_is_meant() -> None:
    class Mine(DefaultTaskEncoder):
        @stateless
        def encode_sample(self, sample: Any) -> Any:
            return [self.encode_samples([sample]), list(self.tokens(one) for one in [sample])]  # noqa: C400

        def encode_samples(self, samples: Any) -> Any:
            return samples

        @stateless
        def tokens(self, text: Any) -> Any:
            return text

        @property
        def rows(self) -> Any:
            return getattr(self, "batchs", None)

        @stateless
        def batchs(self) -> Any: ...

        def _encode_batch(self) -> Any: ...

    check_hook_names(Mine())


def test_a_method_that_calls_itself_alone_is_misspelt() -> None:
    class Mine(DefaultTaskEncoder):
        def encode_sampel(self, sample: Any) -> Any:
            return self.encode_sampel(sample)

    with pytest.raises(ConfigError, match=r"Mine\.encode_sampel is used by nothing"):
        check_hook_names(Mine())


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call


@pytest.mark.parametrize("decorate", [lambda hook: hook, staticmethod, classmethod, wrapped])
def test_what_is_decorated_as_a_hook_must_be_one(decorate: Callable[..., Any]) -> None:
    for name in ("tokenize", "_tokenize"):
        with pytest.raises(
            ConfigError, match=rf"Mine\.{name} is decorated with @stateless like a hook, .* cook_crude_"
        ):
            check_hook_names(encoder_with(**{name: decorate(stateless(lambda self, sample: sample))})())


def test_cookers_may_be_decorated() -> None:
    class Mine(DefaultTaskEncoder):
        @staticmethod
        @stateless
        def cook_pages(sample: CrudeSample) -> Any: ...

        @stateless
        def cook_books(self, sample: CrudeSample) -> Any: ...

        @staticmethod
        @stateless
        def cook_lists(size: int, sample: CrudeSample) -> Any: ...

        cookers = (Cooker(cook_pages), Cooker(functools.partial(cook_lists, 3)))

        def __init__(self) -> None:
            super().__init__()
            self.cookers = [*self.cookers, Cooker(self.cook_books)]

    check_hook_names(Mine())


def test_hooks_that_are_no_functions_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="did you mean 'batch_group_criterion'"):
        check_hook_names(encoder_with(batch_group_criteron=group_by(source_of))())
    check_hook_names(encoder_with(batch_group_criterion=group_by(source_of), Batch=dict)())


def test_a_misspelt_decoder_is_an_error() -> None:
    with pytest.raises(ConfigError, match="did you mean 'decoder'"):
        check_hook_names(encoder_with(decoders=SampleDecoder())())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cooker", "cookers"),
        ("decoders", "decoder"),
        ("failure_tolerance", "__default_failure_tolerance__"),
        ("__failure_tolerance__", "__default_failure_tolerance__"),
        ("__default_failure_tolerence__", "__default_failure_tolerance__"),
        ("__defalt_failure_tolerance__", "__default_failure_tolerance__"),
    ],
)
def test_a_misspelt_setting_is_an_error(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"Mine\.{name} is used by nothing; did you mean '{meant}'"):
        check_hook_names(encoder_with(**{name: None})())


def test_names_of_the_package_s_encoders_are_checked_in_their_subclasses() -> None:
    mine = encoder_with(MultiModalTaskEncoder, conversaton=plain)
    with pytest.raises(ConfigError, match="did you mean 'conversation'"):
        check_hook_names(mine.__new__(mine))
    check_hook_names(encoder_with(conversaton=plain)())


def test_encoders_inside_others_are_checked() -> None:
    inner = encoder_with(encode_sampel=plain)()
    with pytest.raises(ConfigError, match="did you mean 'encode_sample'"):
        check_hook_names(AugmentTaskEncoder(AugmentTaskEncoder(inner)))

    class Outer(AugmentTaskEncoder[Any, Any, Any, Any]):
        @stateless
        def encode_sample(self, sample: Any) -> Any:
            return self.task_encoder.encode_sampel(sample)  # type: ignore[attr-defined]

    check_hook_names(Outer(inner))


def test_it_is_checked_when_the_data_set_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'encode_sample'"):
        get_train_dataset(
            write_texts(tmp_path / "data", 10),
            worker_config=WorkerConfig(0, 1, 0),
            batch_size=1,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            task_encoder=encoder_with(encode_sampel=plain)(),
        )


def test_an_attribute_that_has_every_attribute_is_none_of_a_hook() -> None:
    class Everything:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return Everything()

        def __call__(self) -> None:
            pass

    class Encoder(DefaultTaskEncoder):
        processor = Everything()

    check_hook_names(Encoder())


@pytest.mark.parametrize(
    "name",
    [
        "empty_cache",
        "encode_sample_text",
        "encode_image",
        "batch_costs_of_ranks",
        "empty_bucket",
        "select_pack",
        "pack",
        "select_samples_to_save",
        "select_samples_to_drop",
        "pack_selected_example",
    ],
)
def test_a_longer_name_that_has_more_or_other_letters_is_none(name: str) -> None:
    check_hook_names(encoder_with(**{name: plain})())
