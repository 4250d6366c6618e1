import collections
from typing import Any, NamedTuple

import pytest
import torch

from bridge_data.samples import (
    Batch,
    CaptioningSample,
    Sample,
    SourceInfo,
    TextSample,
    edataclass,
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


def test_derived_samples_keep_provenance_and_extended_ones_all_fields() -> None:
    encoded = Numbered.derive_from(sample(), number=3)
    assert (encoded.__key__, encoded.__restore_key__, encoded.__sources__) == ("s.tar/a", ("f", 0, 1, 0), (SOURCE,))
    assert (encoded.number, Numbered.derive_from(sample(), __key__="other", number=1).__key__) == (3, "other")

    @edataclass
    class Tagged(CaptioningSample):
        tag: str

    tagged = Tagged.extend(sample(), tag="x")
    assert (tagged.caption, tagged.tag) == ("a cat", "x")
    with pytest.raises(TypeError, match="does not derive"):
        Captions.extend(sample())  # type: ignore[arg-type]
    for base in (None, {"__key__": "k"}, "k"):
        told = rf"TextSample.derive_from: expected a sample, got {type(base).__name__}; .*"
        with pytest.raises(TypeError, match=told):
            TextSample.derive_from(base, text="x")


@edataclass
class Numbered(Sample):
    number: int


@edataclass
class NumberedText(Numbered):
    text: str = "none"


def test_from_joined_takes_the_fields_of_all_and_the_provenance_of_the_first() -> None:
    sources = [SourceInfo(dataset_path=path, index=0, shard_name="s", file_names=()) for path in "abc"]
    first = TextSample(
        __key__="k", __restore_key__=("r",), __subflavors__={"x": 1}, __sources__=(sources[0],), text="1"
    )
    second = Numbered(__key__="l", __sources__=(sources[1],), number=2)
    third = NumberedText(__key__="m", __sources__=(sources[2],), number=3, text="3")
    joined = NumberedText.from_joined(first, second)
    assert joined == NumberedText(
        __key__="k",
        __restore_key__=("r",),
        __subflavors__={"x": 1},
        __sources__=(sources[0], sources[1]),
        number=2,
        text="1",
    )
    assert (NumberedText.from_joined(first, None, third).number, NumberedText.from_joined(third, None).text) == (3, "3")


@pytest.mark.parametrize(
    ("join", "told"),
    [
        (lambda text, number: Numbered.from_joined(number, text), "'text'"),
        (
            lambda text, number: NumberedText.from_joined(left=text, right=number),
            r"expected samples by position, the first one there, got left, right; write",
        ),
        (lambda text, number: NumberedText.from_joined(None, number), r"got NoneType, Numbered; write"),
    ],
)
def test_from_joined_says_what_it_cannot_join(join: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        join(TextSample(__key__="k", text="1"), Numbered(__key__="l", number=2))


def test_batches_collect_fields_and_provenance_and_move_tensors_at_any_depth() -> None:
    batch = Captions.from_samples([sample("a", 2), sample("b", 3)], caption=["given"])
    assert (batch.image.shape, batch.caption, batch.__key__) == ((2, 3, 2, 3), ["given"], ["a", "b"])
    assert (batch.__subflavors__, batch.__sources__) == ([{"kind": "photo"}] * 2, (SOURCE, SOURCE))
    moved = batch.to("meta", non_blocking=True)
    assert (moved.image.device.type, batch.image.device.type, moved.caption) == ("meta", "cpu", ["given"])
    value = {"a": [torch.ones(1)], "b": (Pair(torch.ones(1), "x"),), "c": collections.OrderedDict(t=torch.ones(1))}
    assert map_tensors(value, lambda tensor: tensor * 2) == {
        "a": [torch.full((1,), 2.0)],
        "b": (Pair(torch.full((1,), 2.0), "x"),),
        "c": collections.OrderedDict(t=torch.full((1,), 2.0)),
    }


@pytest.mark.gpu
def test_pinning_makes_every_tensor_page_locked() -> None:
    batch = Captions.from_samples([sample()]).pin_memory()
    assert batch.image.is_pinned()
    assert all(tensor.is_pinned() for tensor in pin({"x": [torch.ones(2)]})["x"])
