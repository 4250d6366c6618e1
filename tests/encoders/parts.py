"""Tokenizers and processors of model families, made on the spot, and conversations drawn for them."""

import dataclasses
import functools
import io
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers.processors import TemplateProcessing

from bridge_data.encoders import ConversationSample, HFTaskEncoder, Idefics3, InternVL, Llava, LlavaNext, VisionFamily
from recipes.demo.tokenizer import train_tokenizer
from tests.later import hf

TILE = 16
TEXT = "a boat on the sea what is this red Describe image . ? one two three and where of sails"
IDEFICS_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
SPECIAL = (*IDEFICS_TOKENS, "<IMG_CONTEXT>", "<img>", "</img>", "<video>")


@functools.cache
def make_tokenizer(*, begin: bool = False, pad: bool = True, template: str | None = None) -> Any:
    """A trained byte-level BPE tokenizer that knows the special tokens of all families; with `begin`, it writes a
    beginning-of-sequence token by itself, as that of Llama does."""
    with tempfile.TemporaryDirectory() as folder:
        train_tokenizer([TEXT, "user system assistant\n"], Path(folder), 320)
        backend = hf.AutoTokenizer.from_pretrained(folder).backend_tokenizer
    names = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<pad>" if pad else None,
        bos_token="<s>" if begin else None,
        extra_special_tokens={**names, "video_token": "<video>"},
        chat_template=template,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)}, replace_extra_special_tokens=False)
    if begin:
        post = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)])
        tokenizer.backend_tokenizer.post_processor = post
    return tokenizer


@dataclasses.dataclass(frozen=True)
class Case:
    """A family, and the processor of transformers that it must equal."""

    make: Callable[[], VisionFamily]
    processor: Callable[[Any], Any]
    begin: bool = False


def _llava_images() -> Any:
    return hf.LlavaImageProcessorPil(size={"shortest_edge": TILE}, crop_size={"height": TILE, "width": TILE})


def _next_images() -> Any:
    grids = [[TILE * rows, TILE * columns] for rows, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))]
    sizes = {"size": {"shortest_edge": TILE}, "crop_size": {"height": TILE, "width": TILE}}
    return hf.LlavaNextImageProcessorPil(**sizes, image_grid_pinpoints=grids)


def _idefics_images(kind: str = "Idefics3ImageProcessorPil", **options: Any) -> Any:
    return getattr(hf, kind)(size={"longest_edge": 4 * TILE}, max_image_size={"longest_edge": TILE}, **options)


def _intern_images(most: int = 6) -> Any:
    return hf.GotOcr2ImageProcessorPil(size={"height": TILE, "width": TILE}, max_patches=most)


class _VideoProcessor:
    """Stands where InternVL's processor wants one for videos, which needs torchvision; it is never called."""

    model_input_names: Sequence[str] = ()


def unchecked(kind: Any) -> Any:
    """The class `kind` of processors without the check of the classes of its parts."""
    return type("Unchecked", (kind,), {"check_argument_for_proper_class": lambda *_: None})


def _tower(processor: Any) -> Callable[[Any], Any]:
    kind = hf.LlavaNextProcessor if isinstance(processor, hf.LlavaNextImageProcessorPil) else hf.LlavaProcessor
    return lambda tokenizer: kind(
        processor, tokenizer, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )


CASES = {
    "llava": Case(lambda: Llava(_llava_images(), patch_size=4), lambda t: _tower(_llava_images())(t)),
    "llava_begin": Case(lambda: Llava(_llava_images(), patch_size=4), lambda t: _tower(_llava_images())(t), begin=True),
    "llava_next": Case(lambda: LlavaNext(_next_images(), patch_size=4), lambda t: _tower(_next_images())(t)),
    "idefics3": Case(
        lambda: Idefics3(_idefics_images(), image_seq_len=4),
        lambda t: hf.Idefics3Processor(_idefics_images(), t, image_seq_len=4),
    ),
    "smolvlm": Case(  # its processor needs torchvision; it differs from that of Idefics3 in videos alone
        lambda: Idefics3(_idefics_images("SmolVLMImageProcessorPil"), image_seq_len=4),
        lambda t: hf.Idefics3Processor(_idefics_images("SmolVLMImageProcessorPil"), t, image_seq_len=4),
    ),
    "idefics3_whole": Case(
        lambda: Idefics3(_idefics_images(do_image_splitting=False), image_seq_len=4),
        lambda t: hf.Idefics3Processor(_idefics_images(do_image_splitting=False), t, image_seq_len=4),
    ),
    "internvl": Case(
        lambda: InternVL(_intern_images(), image_seq_length=4),
        lambda t: unchecked(hf.InternVLProcessor)(_intern_images(), t, _VideoProcessor(), image_seq_length=4),
    ),
}


def picture(size: tuple[int, int], seed: int = 0) -> Image.Image:
    """An image of (width, height) noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png(image: Image.Image) -> bytes:
    """The image as a file."""
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


@dataclasses.dataclass(frozen=True)
class Talk:
    """A conversation in the form of a processor (`messages`, with the images in them) and as a sample of ours."""

    messages: list[dict[str, Any]]
    sample: ConversationSample

    @property
    def images(self) -> list[Image.Image]:
        return [part["image"] for turn in self.messages for part in turn["content"] if part["type"] == "image"]


def draw_talk(seed: int, num_images: int | None = None) -> Talk:
    """A conversation of 1 to 3 questions, with 0, 1 or 3 images anywhere in them."""
    draw = random.Random(seed)

    def words(most: int) -> str:
        return " ".join(draw.choice(TEXT.split()) for _ in range(draw.randint(1, most)))

    num_images = draw.choice([0, 1, 3]) if num_images is None else num_images
    num_turns = draw.randint(1, 3)
    places = sorted(draw.randrange(num_turns) for _ in range(num_images))
    messages: list[dict[str, Any]] = []
    if draw.random() < 0.3:
        messages.append({"role": "system", "content": [{"type": "text", "text": words(4)}]})
    number = 0
    for turn in range(num_turns):
        parts: list[dict[str, Any]] = [{"type": "text", "text": words(8)}]
        for _ in range(places.count(turn)):
            image = picture((draw.randint(2, 90), draw.randint(2, 90)), seed * 10 + number)
            if draw.random() < 0.5 and parts[-1]["type"] == "image":
                parts.append({"type": "text", "text": words(3)})
            parts.insert(draw.choice([0, len(parts)]), {"type": "image", "image": image})
            number += 1
        messages.append({"role": "user", "content": parts})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": words(9)}]})
    return Talk(messages, _sample(messages, f"talk-{seed}", draw))


def _sample(messages: list[dict[str, Any]], key: str, draw: random.Random) -> ConversationSample:
    turns = []
    images = []
    for turn in messages:
        content = ""
        for part in turn["content"]:
            if part["type"] == "image":
                images.append(png(part["image"]))
                content += draw.choice(["", "\n"]) * bool(content) + "<image>" + draw.choice(["", "\n"])
            else:
                content += part["text"]
        turns.append({"role": turn["role"], "content": content})
    return ConversationSample(__key__=key, messages=turns, images=images)


def of_transformers(
    processor: Any, template: str, talks: Sequence[Talk], **options: Any
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What the processor makes of a batch of conversations, and labels by its own mask of what the assistant says."""
    made = processor.apply_chat_template(
        [talk.messages for talk in talks],
        chat_template=template,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
        processor_kwargs={"padding": True, "padding_side": "right", **options},
    )
    tensors = {
        name: torch.stack([torch.as_tensor(np.asarray(item)) for item in value])
        for name, value in made.items()
        if name not in ("offset_mapping", "text_replacement_offsets")
    }
    learnt = tensors.pop("assistant_masks")
    return tensors, torch.where(learnt == 1, tensors["input_ids"], -100)


def encode(encoder: Any, sample: Any) -> Any:
    """The sample, encoded as a loader would have it done."""
    if isinstance(encoder, HFTaskEncoder):
        return encoder.encode_sample(sample)
    return encoder.postencode_sample(encoder.preencode_sample(sample))


def forbid_calls(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be an error to call the processor."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the processor was called")

    for kind in type(processor).__mro__:
        if "__call__" in vars(kind):
            monkeypatch.setattr(kind, "__call__", refuse)


def assert_equal(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Two sets of inputs of a model are equal bit by bit, types included."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].dtype == value.dtype, name
        assert torch.equal(got[name], value), name


def learn(model: Any, batches: Sequence[Any], num_steps: int = 12, rate: float = 1e-2) -> list[float]:
    """The losses of so many steps of training, over the batches in turn."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for step in range(num_steps):
        loss = model(**batches[step % len(batches)].model_inputs()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
