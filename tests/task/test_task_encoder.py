import dataclasses
from typing import NamedTuple

import pytest
import torch

from bridge_data.errors import ConfigError
from bridge_data.samples import Batch, CaptioningSample, CrudeSample
from bridge_data.task import DefaultTaskEncoder, TaskEncoder, is_overridden


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
