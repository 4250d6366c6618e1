import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch

import bridge_data
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


@pytest.mark.parametrize("base", [None, {"__key__": "k"}, "k"])
def test_derive_from_takes_samples_only(base: Any) -> None:
    name = type(base).__name__
    with pytest.raises(TypeError, match=rf"TextSample.derive_from: expected a sample, got {name}; .*"):
        bridge_data.TextSample.derive_from(base, text="x")


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


def test_from_joined_says_what_it_cannot_join() -> None:
    text, number = TextSample(__key__="k", text="1"), Numbered(__key__="l", number=2)
    with pytest.raises(TypeError, match="'text'"):
        Numbered.from_joined(number, text)
    with pytest.raises(TypeError, match=r"expected samples by position, the first one there, got left, right; write"):
        NumberedText.from_joined(left=text, right=number)
    with pytest.raises(TypeError, match=r"got NoneType, Numbered; write"):
        NumberedText.from_joined(None, number)


def test_from_samples_collects_fields_and_provenance() -> None:
    batch = Captions.from_samples([sample("a", 2), sample("b", 3)], caption=["given"])
    assert batch.image.shape == (2, 3, 2, 3)
    assert batch.caption == ["given"]
    assert batch.__key__ == ["a", "b"]
    assert batch.__subflavors__ == [{"kind": "photo"}] * 2
    assert batch.__sources__ == (SOURCE, SOURCE)


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


FIELDS = {
    "TextSample": "text",
    "ImageSample": "image",
    "CaptioningSample": "image caption",
    "ImageClassificationSample": "image label=None label_name=None",
    "VQASample": "image context answers=None answer_weights=None",
    "MultiChoiceVQASample": "image context choices=None correct_choice_idx=0",
    "OCRSample": "image text block_boxes=None block_classes=None block_text=None lines_boxes=None lines_text=None "
    "words_boxes=None words_text=None chars_boxes=None chars_text=None",
    "VQAOCRSample": "image context text answers=None answer_weights=None words_boxes=None words_text=None",
    "VidQASample": "video context answers=None answer_weights=None",
    "InterleavedSample": "sequence",
    "SimilarityInterleavedSample": "images texts audio=None video=None similarity_matrix=None "
    "matched_text_indices=None",
}


@pytest.mark.parametrize("name", FIELDS)
def test_sample_classes_have_the_fields_and_defaults_that_the_format_gives_them(name: str) -> None:
    fields = dataclasses.fields(getattr(bridge_data, name))
    shown = [
        field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default}"
        for field in fields
        if not field.name.startswith("__")
    ]
    assert " ".join(shown) == FIELDS[name]
