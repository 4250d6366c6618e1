import collections
import dataclasses
import os
import subprocess
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
from bridge_data.samples.collation import (
    batch_pad_stack,
    batch_stack,
    concat_pad,
    generic_batch,
    generic_concat,
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


SHAPES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=5)


@dataclasses.dataclass
class Point:
    at: torch.Tensor
    name: str


@edataclass
class Words(Batch):
    ids: torch.Tensor
    words: list[str]


def source(index: int) -> SourceInfo:
    return SourceInfo(dataset_path="/d", index=index, shard_name="s.tar", file_names=("a.txt",))


def text(index: int) -> TextSample:
    return TextSample(
        __key__=str(index), __restore_key__=("d", 0, index, 0), __sources__=(source(index),), text=f"text {index}"
    )


@settings(deadline=None)
@given(SHAPES | st.just([(300, 1500), (200, 2100), (310, 1950)]))
def test_padding_is_zero_and_at_the_end(shapes: list[tuple[int, int]]) -> None:
    tensors = [torch.full(shape, number + 1.0) for number, shape in enumerate(shapes)]
    stacked, joined = batch_pad_stack(tensors), concat_pad(tensors)
    heights, widths = zip(*shapes, strict=True)
    assert stacked.shape == (len(shapes), max(heights), max(widths))
    assert joined.shape == (sum(heights), max(widths))
    for row, rows, tensor in zip(stacked, joined.split(heights), tensors, strict=True):
        height, width = tensor.shape
        assert torch.equal(row[:height, :width], tensor) and torch.equal(rows[:, :width], tensor)
        assert row.sum() == rows.sum() == tensor.sum()


@pytest.mark.parametrize("fn", [batch_stack, batch_pad_stack, concat_pad])
def test_no_value_is_cast_to_the_dtype_of_another_nor_stacked_with_other_dimensions(fn: Any) -> None:
    for mixed in ([torch.ones(2, dtype=torch.int32), torch.full((2,), 2.75)], [torch.ones(2), torch.ones(3).bool()]):
        for batch in (mixed, mixed[::-1]):
            with pytest.raises(ValueError, match=r"tensors of torch\..*, torch\.\w+ cannot be in one"):
                fn(batch)
    with pytest.raises((ValueError, RuntimeError), match=r"numbers of dimensions.*\(2,\), \(2, 3\)|equal size"):
        fn([torch.ones(2), torch.ones(2, 3)])
    rows = torch.zeros(4, 5, 6, dtype=torch.uint8)
    fn([*rows]).add_(1)
    assert rows.sum() == 0  # another's rows are copied


def test_a_field_that_only_some_have_is_an_error_whichever_is_first() -> None:
    @edataclass
    class Masked(TextSample):
        mask: int

    text = {"__key__": "k", "__restore_key__": (), "__subflavors__": None, "text": "t"}
    for samples in ([{"x": 1, "mask": 2}, {"x": 3}], [TextSample(**text), Masked(**text, mask=1)]):
        for batch in (samples, samples[::-1]):
            with pytest.raises(ValueError, match="values to be batched, only some have mask"):
                generic_batch(batch)

    @edataclass
    class Words(Batch):
        text: list[str]
        mask: list[int] = dataclasses.field(default_factory=list)

    for batch in (samples, samples[::-1]):
        with pytest.raises(ValueError, match="field 'mask': only 1 of 2 samples have it"):
            Words.from_samples(batch)
    with pytest.raises(ValueError, match="some are of the type TextSample"):
        generic_batch([dataclasses.asdict(samples[0]), samples[0]])


def test_batching_descends_into_structures() -> None:
    values = [{"pair": Pair(torch.ones(n), "x"), "point": Point(torch.ones(2), "p"), "n": n} for n in (1, 2)]
    batch = generic_batch(values)
    assert batch["pair"].left.tolist() == [[1, 0], [1, 1]]
    assert batch["pair"].right == ["x", "x"]
    assert isinstance(batch["point"], Point)
    assert batch["point"].name == ["p", "p"]
    assert batch["n"] == [1, 2]


@pytest.mark.parametrize("first", [None, torch.zeros(2), "text"])
def test_tensors_and_others_in_one_field_are_an_error_whichever_is_first(first: Any) -> None:
    samples = [{"images": {"thumbnail": value}} for value in (first, torch.zeros(3), None)]
    with pytest.raises(ValueError, match=r"field 'images': field 'thumbnail': . of 3 values are tensors"):
        generic_batch(samples)
    assert generic_batch([{"size": value} for value in (1, None, "large")]) == {"size": [1, None, "large"]}


def test_batching_collects_provenance_for_samples_and_for_dicts() -> None:
    samples = [text(0), text(1)]
    values = {"__key__": ["0", "1"], "__restore_key__": [("d", 0, 0, 0), ("d", 0, 1, 0)], "text": ["text 0", "text 1"]}
    for batch in (generic_batch(samples), generic_batch([dataclasses.asdict(sample) for sample in samples])):
        found = batch if isinstance(batch, dict) else dataclasses.asdict(batch)
        assert found.items() >= values.items() and len(found["__sources__"]) == 2


def test_joined_batches_keep_one_key_a_sample() -> None:
    batches = [
        Words(
            __key__=[f"{number}a", f"{number}b"],
            __sources__=(source(number),),
            ids=torch.full((2, number), number),
            words=[str(number)],
        )
        for number in (1, 3)
    ]
    joined = generic_concat(batches)
    assert isinstance(joined, Words)
    assert joined.ids.tolist() == [[1, 0, 0], [1, 0, 0], [3, 3, 3], [3, 3, 3]]
    assert joined.words == [["1"], ["3"]]
    assert joined.__key__ == ["1a", "1b", "3a", "3b"]
    assert joined.__sources__ == (source(1), source(3))


PEER = """
import torch
from typing import NamedTuple
from megatron.energon import batch_pad_stack, concat_pad, generic_batch, generic_concat

class Pair(NamedTuple):
    left: torch.Tensor
    right: str
"""
CASES = """
tensors = [torch.arange(6.0).reshape(2, 3), torch.arange(4.0).reshape(1, 4) + 0.5, torch.zeros(3, 0)]
scalars = [torch.tensor(3), torch.tensor(2)]
forms = [{"a": Pair(tensor, "x"), "b": {"c": tensor, "d": [1]}, "e": None} for tensor in tensors]
for made in (batch_pad_stack(tensors), batch_pad_stack(scalars), concat_pad(tensors), generic_batch(forms),
             generic_batch(scalars), generic_concat(forms), generic_concat(["a", "b"])):
    print(made, made.dtype if isinstance(made, torch.Tensor) else type(made))
"""


@pytest.mark.peer
@pytest.mark.skipif("BRIDGE_DATA_PEER" not in os.environ, reason="BRIDGE_DATA_PEER names no Python with the peer")
def test_values_dtypes_and_padding_are_those_of_the_peer(capsys: pytest.CaptureFixture[str]) -> None:
    program = [os.environ["BRIDGE_DATA_PEER"], "-c", PEER + CASES]
    theirs = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    scope = {**globals(), "Pair": Pair}
    exec(CASES, scope)
    assert capsys.readouterr().out == theirs.replace("__main__", Pair.__module__)


def test_images_that_are_views_of_pixels_make_a_batch_that_is_one() -> None:
    pixels = [torch.arange(h * w * 3, dtype=torch.uint8).reshape(h, w, 3) for h, w in ((4, 5), (6, 3))]
    images = [image.permute(2, 0, 1) for image in pixels]
    batch, same = batch_pad_stack(images), batch_stack([images[0], images[0]])
    assert all(made.is_contiguous(memory_format=torch.channels_last) for made in (batch, same))
    assert torch.equal(batch, batch_pad_stack([image.contiguous() for image in images]))
    assert batch_pad_stack([images[0], images[1].contiguous()]).is_contiguous() and torch.equal(same[1], images[0])
    mono = [torch.rand(1, length).T for length in (300_000, 250_000)]
    padded = batch_pad_stack(mono)
    assert padded.shape == (2, 300_000, 1) and padded[1, 250_000:].sum() == 0
    assert torch.equal(padded[1, :250_000], mono[1]) and torch.equal(batch_stack([mono[0]] * 2)[1], mono[0])


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
