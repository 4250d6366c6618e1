import dataclasses
import math
from typing import Any, NamedTuple

import pytest
import torch

from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError
from bridge_data.samples import Batch, CaptioningSample, CrudeSample
from bridge_data.task import DefaultTaskEncoder, TaskEncoder, is_overridden, with_decoding
from bridge_data.task.task_encoder import BUILDERS, declared, stateless


def caption(key: str, width: int) -> CaptioningSample:
    return CaptioningSample(
        __key__=key, __restore_key__=("s", 0, width, 0), image=torch.ones(3, 2, width), caption=f"caption of {key}"
    )


def test_default_batch_pads_tensors_and_lists_the_rest() -> None:
    batch = DefaultTaskEncoder().batch([caption("a", 2), caption("b", 5)])
    assert batch.image.shape == (2, 3, 2, 5)
    assert batch.image[0, :, :, 2:].abs().sum() == 0
    assert batch.caption == ["caption of a", "caption of b"]
    assert batch.__key__ == ["a", "b"]


def test_types_map_fields_by_name() -> None:
    @dataclasses.dataclass
    class Raw(Batch):
        image: torch.Tensor
        caption: list[str]

    class Pair(NamedTuple):
        image: torch.Tensor
        caption: str

    raw = DefaultTaskEncoder(raw_batch_type=Raw).batch([caption("a", 2)])
    assert isinstance(raw, Raw)
    assert raw.image.shape == (1, 3, 2, 2)
    encoder = DefaultTaskEncoder(encoded_sample_type=dict, batch_type=dict)
    encoded = encoder.encode_sample(caption("a", 2))
    assert encoded["caption"] == "caption of a"
    with pytest.raises(ConfigError, match=r"CaptioningSample into Pair: Pair has no __key__, __restore_key__"):
        DefaultTaskEncoder(encoded_sample_type=Pair).encode_sample(caption("a", 2))
    pair = DefaultTaskEncoder(encoded_sample_type=Pair).encode_sample({"image": torch.zeros(1), "caption": "x"})
    assert pair.caption == "x"


def test_a_value_without_fields_cannot_be_mapped() -> None:
    with pytest.raises(ConfigError, match="no named fields"):
        DefaultTaskEncoder(batch_type=dict).encode_batch(5)


def test_only_hooks_of_the_user_count_as_overridden() -> None:
    class Mine(DefaultTaskEncoder):
        def encode_sample(self, sample: CaptioningSample) -> CaptioningSample:
            return sample

    assert is_overridden(Mine(), "encode_sample")
    assert not is_overridden(Mine(), "batch")
    assert not is_overridden(DefaultTaskEncoder(), "encode_sample")
    assert not is_overridden(TaskEncoder(), "encode_batch")


def test_cooking_leaves_typed_samples_alone() -> None:
    encoder = TaskEncoder()
    sample = caption("a", 2)
    assert encoder.cook_crude_sample(sample) is sample
    with pytest.raises(Exception, match="no cooker"):
        encoder.cook_crude_sample(CrudeSample(__key__="x"))


def test_plain_stateless_spares_the_seeding() -> None:
    @stateless
    def hook(sample: int) -> int:
        return sample + 1

    assert hook(1) == 2
    assert not declared(hook).seeded


def test_arguments_are_kept() -> None:
    @stateless(restore_seeds=True, failure_tolerance=7)
    def hook(sample: int) -> int:
        return sample

    assert declared(hook).seeded
    assert declared(hook).failure_tolerance == 7
    assert (hook.__stateless__, hook.__failure_tolerance__) == (True, 7), "under Energon's names too"


def test_an_undeclared_hook_is_seeded() -> None:
    assert declared(lambda sample: sample).seeded


@pytest.mark.parametrize("tolerance", [-1, math.nan, "many"])
def test_a_wrong_tolerance_is_an_error_where_it_is_declared(tolerance: float) -> None:
    with pytest.raises(ConfigError, match=r"stateless\(failure_tolerance=.*expected a number of consecutive failures"):
        stateless(failure_tolerance=tolerance)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_class_that_overrides_what_is_never_called_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"Mine overrides {name}, which is never called here\. Instead: \w+"):
        type("Mine", (DefaultTaskEncoder,), {name: lambda self: None})


def test_so_is_one_that_is_mixed_with_such_a_class() -> None:
    class Mixed:
        def build_batch(self, dataset: Any) -> Any:
            return dataset

    with pytest.raises(ConfigError, match="build_batch"):
        type("Mine", (Mixed, DefaultTaskEncoder), {})


def test_other_methods_of_yours_are_yours() -> None:
    class Mine(DefaultTaskEncoder[Any, Any, Any, Any]):
        def build_prompt(self, text: str) -> str:
            return text

    assert Mine().build_prompt("a") == "a"


class OwnDecoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(image_decode="pilrgb")


def test_nothing_asked_for_leaves_the_encoder_as_it_is() -> None:
    encoder = OwnDecoder()
    assert with_decoding(encoder, None, image_decode=None) is encoder
    assert with_decoding(encoder, True) is encoder


def test_what_is_asked_for_is_decoded_by_a_copy() -> None:
    encoder: Any = DefaultTaskEncoder()
    assert with_decoding(encoder, False).decoder is None
    asked = with_decoding(encoder, None, image_decode="pilrgb").decoder
    assert isinstance(asked, SampleDecoder)
    assert encoder.decoder is DefaultTaskEncoder.decoder is not asked


@pytest.mark.parametrize("asked", [{"auto_decode": False}, {"auto_decode": None, "image_decode": "rgb"}])
def test_an_encoder_with_a_decoder_of_its_own_is_not_overruled(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="OwnDecoder has its own decoder"):
        with_decoding(OwnDecoder(), **asked)


def test_an_unknown_form_of_images_is_an_error() -> None:
    with pytest.raises(ConfigError, match="image_decode='jpg'"):
        with_decoding(DefaultTaskEncoder(), None, image_decode="jpg")
