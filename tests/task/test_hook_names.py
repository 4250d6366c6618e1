"""Names of encoders that nothing uses are errors if they look like misspelt hooks or settings."""

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


def calls_itself(self: Any, sample: Any) -> Any:
    return self.encode_sampel(sample)


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("encode_sampel", plain, "encode_sample"),
        ("encode_sampel", calls_itself, "encode_sample"),
        ("encode_samples", plain, "encode_sample"),
        ("encode_smple", plain, "encode_sample"),
        ("encodeSample", plain, "encode_sample"),
        ("pre_encode_sample", plain, "preencode_sample"),
        ("encode_bacth", plain, "encode_batch"),
        ("bacth", plain, "batch"),
        ("cook_crude_samples", plain, "cook_crude_sample"),
        ("select_sample_to_pack", plain, "select_samples_to_pack"),
        ("empty_bach", plain, "empty_batch"),
        ("batch_group_criteron", group_by(source_of), "batch_group_criterion"),
        ("decoders", SampleDecoder(), "decoder"),
        ("decoders", None, "decoder"),
        ("cooker", None, "cookers"),
        ("failure_tolerance", None, "__default_failure_tolerance__"),
        ("__failure_tolerance__", None, "__default_failure_tolerance__"),
        ("__default_failure_tolerence__", None, "__default_failure_tolerance__"),
        ("__defalt_failure_tolerance__", None, "__default_failure_tolerance__"),
    ],
)
def test_a_misspelt_name_is_an_error_with_the_one_that_is_meant(name: str, value: Any, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"test_hook_names\.Mine\.{name} is .*did you mean '{meant}'\?"):
        check_hook_names(encoder_with(**{name: value})())


@pytest.mark.parametrize(
    "name",
    [
        "match",
        "catch",
        "patch",
        "watch",
        "hatch",
        "fetch",
        "decode_sample",
        "batch_size",
        "batches",
        "branch",
        "make",
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
        "conversaton",  # a misspelt name of another encoder of the package
    ],
)
def test_a_method_that_is_like_a_hook_by_chance_is_none(name: str) -> None:
    check_hook_names(encoder_with(**{name: plain})())


class Everything:
    """Has every attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Everything()

    def __call__(self) -> None:
        pass


class UsesAll(DefaultTaskEncoder):
    """What is like a misspelt hook, or decorated as one, is used by the encoder itself."""

    processor = Everything()
    batch_group_criterion = group_by(source_of)
    Batch = dict

    def __init__(self) -> None:
        super().__init__()
        self.cookers = [*self.cookers, Cooker(self.cook_books)]

    @staticmethod
    @stateless
    def cook_pages(sample: CrudeSample) -> Any: ...

    @stateless
    def cook_books(self, sample: CrudeSample) -> Any: ...

    @staticmethod
    @stateless
    def cook_lists(size: int, sample: CrudeSample) -> Any: ...

    cookers = (Cooker(cook_pages), Cooker(functools.partial(cook_lists, 3)))

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return [self.encode_samples([sample]), list(self.tokens(one) for one in [sample])]  # noqa: C400

    def encode_samples(self, samples: Any) -> Any: ...

    @stateless
    def tokens(self, text: Any) -> Any: ...

    @property
    def rows(self) -> Any:
        return getattr(self, "batchs", None)

    @stateless
    def batchs(self) -> Any: ...

    def _encode_batch(self) -> Any: ...


class UsesThatOfAnother(AugmentTaskEncoder[Any, Any, Any, Any]):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return self.task_encoder.encode_sampel(sample)  # type: ignore[attr-defined]


def test_what_the_encoder_itself_uses_is_meant() -> None:
    check_hook_names(UsesAll())
    check_hook_names(UsesThatOfAnother(encoder_with(encode_sampel=plain)()))


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call


@pytest.mark.parametrize("decorate", [lambda hook: hook, staticmethod, classmethod, wrapped])
@pytest.mark.parametrize("name", ["tokenize", "_tokenize"])
def test_what_is_decorated_as_a_hook_must_be_one(name: str, decorate: Callable[..., Any]) -> None:
    told = rf"Mine\.{name} is decorated with @stateless like a hook, .* cook_crude_"
    with pytest.raises(ConfigError, match=told):
        check_hook_names(encoder_with(**{name: decorate(stateless(lambda self, sample: sample))})())


def test_encoders_of_the_package_and_those_inside_others_are_checked(tmp_path: Path) -> None:
    mine = encoder_with(MultiModalTaskEncoder, conversaton=plain)
    with pytest.raises(ConfigError, match="did you mean 'conversation'"):
        check_hook_names(mine.__new__(mine))
    inner = encoder_with(encode_sampel=plain)()
    with pytest.raises(ConfigError, match="did you mean 'encode_sample'"):
        get_train_dataset(
            write_texts(tmp_path / "data", 10),
            worker_config=WorkerConfig(0, 1, 0),
            batch_size=1,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            task_encoder=AugmentTaskEncoder(AugmentTaskEncoder(inner)),
        )
