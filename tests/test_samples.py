import collections
import dataclasses
from typing import NamedTuple

import pytest
import torch

from bridge_data.samples import (
    Batch,
    CaptioningSample,
    Sample,
    SourceInfo,
    batch_pad_stack,
    edataclass,
    generic_batch,
    map_tensors,
    pin,
)


@edataclass
class Captions(Batch):
    image: torch.Tensor
    caption: list[str]


class Pair(NamedTuple):
    left: torch.Tensor
    right: str


SOURCE = SourceInfo(dataset_path="/d", index=3, shard_name="s.tar", file_names=("a.png",))


def sample(key: str = "s.tar/a", width: int = 2) -> CaptioningSample:
    return CaptioningSample(
        __key__=key,
        __restore_key__=("f", 0, 1, 0),
        __subflavors__={"kind": "photo"},
        __sources__=(SOURCE,),
        image=torch.arange(6 * width, dtype=torch.float32).reshape(3, 2, width),
        caption="a cat",
    )


def test_derive_from_keeps_provenance_and_takes_new_fields() -> None:
    @dataclasses.dataclass
    class Encoded(Sample):
        tokens: torch.Tensor

    encoded = Encoded.derive_from(sample(), tokens=torch.ones(3))
    assert (encoded.__key__, encoded.__restore_key__, encoded.__sources__) == ("s.tar/a", ("f", 0, 1, 0), (SOURCE,))
    assert encoded.tokens.sum() == 3
    assert Encoded.derive_from(sample(), __key__="other", tokens=torch.ones(1)).__key__ == "other"


def test_extend_keeps_all_fields_of_the_base() -> None:
    @edataclass
    class Tagged(CaptioningSample):
        tag: str

    tagged = Tagged.extend(sample(), tag="x")
    assert (tagged.caption, tagged.tag) == ("a cat", "x")
    with pytest.raises(TypeError, match="does not derive"):
        Captions.extend(sample())  # type: ignore[arg-type]


def test_from_samples_collects_fields_and_provenance() -> None:
    batch = Captions.from_samples([sample("a", 2), sample("b", 3)], caption=["given"])
    assert batch.image.shape == (2, 3, 2, 3)
    assert batch.caption == ["given"]
    assert batch.__key__ == ["a", "b"]
    assert batch.__subflavors__ == [{"kind": "photo"}] * 2
    assert batch.__sources__ == (SOURCE, SOURCE)


def test_padding_is_zero_and_at_the_end() -> None:
    stacked = batch_pad_stack([torch.ones(2, 1), torch.ones(1, 3)])
    assert stacked.tolist() == [[[1, 0, 0], [1, 0, 0]], [[1, 1, 1], [0, 0, 0]]]


def test_generic_batch_descends_into_structures() -> None:
    values = [{"pair": Pair(torch.ones(n), "x"), "n": n} for n in (1, 2)]
    batch = generic_batch(values)
    assert batch["pair"].left.tolist() == [[1, 0], [1, 1]]
    assert batch["pair"].right == ["x", "x"]
    assert batch["n"] == [1, 2]


def test_to_moves_tensors_at_any_depth_and_leaves_the_rest() -> None:
    batch = Captions.from_samples([sample()])
    moved = batch.to("meta", non_blocking=True)
    assert moved.image.device.type == "meta"
    assert batch.image.device.type == "cpu"
    assert (moved.caption, moved.__sources__) == (["a cat"], (SOURCE,))


def test_map_tensors_keeps_types() -> None:
    value = {"a": [torch.ones(1)], "b": (Pair(torch.ones(1), "x"),), "c": collections.OrderedDict(t=torch.ones(1))}
    doubled = map_tensors(value, lambda tensor: tensor * 2)
    assert isinstance(doubled["b"][0], Pair)
    assert isinstance(doubled["c"], collections.OrderedDict)
    assert [float(t) for t in (doubled["a"][0], doubled["b"][0].left, doubled["c"]["t"])] == [2, 2, 2]
    assert float(value["a"][0]) == 1


@pytest.mark.gpu
def test_pinning_makes_every_tensor_page_locked() -> None:
    batch = Captions.from_samples([sample()]).pin_memory()
    assert batch.image.is_pinned()
    assert all(tensor.is_pinned() for tensor in pin({"x": [torch.ones(2)]})["x"])
