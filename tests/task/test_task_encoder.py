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


@pytest.mark.parametrize("tolerance", [-1, math.nan, "many"])
def test_a_wrong_tolerance_is_an_error_where_it_is_declared(tolerance: float) -> None:
    with pytest.raises(ConfigError, match=r"stateless\(failure_tolerance=.*expected a number of consecutive failures"):
        stateless(failure_tolerance=tolerance)


class OwnDecoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(image_decode="pilrgb")


def test_a_hook_is_seeded_unless_it_is_declared_stateless() -> None:
    @stateless
    def plain(sample: int) -> int:
        return sample + 1

    @stateless(restore_seeds=True, failure_tolerance=7)
    def drawing(sample: int) -> int:
        return sample

    assert plain(1) == 2
    assert [declared(hook).seeded for hook in (plain, drawing, lambda sample: sample)] == [False, True, True]
    assert declared(drawing).failure_tolerance == 7
    assert (drawing.__stateless__, drawing.__failure_tolerance__) == (True, 7), "under Energon's names too"


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("is_mixed_in", [False, True])
def test_a_class_that_overrides_what_is_never_called_is_refused(name: str, is_mixed_in: bool) -> None:
    overrides = {name: lambda self: None}
    bases: tuple[type, ...] = (type("Mixed", (), overrides),) if is_mixed_in else ()
    with pytest.raises(ConfigError, match=rf"Mine overrides {name}, which is never called here\. Instead: \w+"):
        type("Mine", (*bases, DefaultTaskEncoder), {} if is_mixed_in else overrides)
    type("Mine", (DefaultTaskEncoder,), {"build_prompt": lambda self: None})


def test_a_setting_of_a_decoder_that_is_switched_off_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert with_decoding(DefaultTaskEncoder(), False).decoder is None and not caplog.messages
    assert with_decoding(DefaultTaskEncoder(), False, image_decode="pilrgb", av_decode=None).decoder is None
    assert caplog.messages == ["image_decode: no effect with auto_decode=False, which decodes nothing"]


def test_decoding_that_is_asked_for_is_done_by_a_copy_and_overrules_no_decoder() -> None:
    encoder, own = DefaultTaskEncoder(), OwnDecoder()
    assert with_decoding(own, None, image_decode=None) is with_decoding(own, True) is own
    assert with_decoding(encoder, False).decoder is None
    asked = with_decoding(encoder, None, image_decode="pilrgb").decoder
    assert isinstance(asked, SampleDecoder)
    assert encoder.decoder is DefaultTaskEncoder.decoder is not asked
    with pytest.raises(ConfigError, match="OwnDecoder has its own decoder"):
        with_decoding(own, False)
    with pytest.raises(ConfigError, match="OwnDecoder has its own decoder"):
        with_decoding(own, None, image_decode="rgb")
    with pytest.raises(ConfigError, match="image_decode='jpg'"):
        with_decoding(encoder, None, image_decode="jpg")
