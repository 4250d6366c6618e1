"""Tokenizers and image processors for tests, made on the spot, and samples for them."""

import functools
import io
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from bridge_data.encoders import ImageToken, MultiModalSampleConfig, MultiModalTaskEncoder
from tests.later import hf

WORDS = (
    "<pad> <end> <unk> <image> <user> <bot> <system> "
    "a boat on the sea what is this red Describe image . ? one two three"
)
VOCABULARY = {word: number for number, word in enumerate(WORDS.split())}
PAD, END, UNKNOWN, IMAGE = 0, 1, 2, 3

TURNS = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
<bot> {% generation %}{{ message['content'] }} <end>{% endgeneration %}
{% elif message['role'] == 'system' -%}
<system> {{ message['content'] }}
{% else -%}
<user> {{ message['content'] }}
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<bot> {% endif -%}
"""
TURNS_WITHOUT_MARKS = TURNS.replace("{% generation %}", "").replace("{% endgeneration %}", "")

CONFIG = MultiModalSampleConfig(image_token=ImageToken(token_str="<image>"), patch_size=8)
TOKENS_PER_IMAGE = 4


def make_tokenizer(template: str | None = TURNS, *, pad: bool = True, end: bool = True) -> Any:
    """A tokenizer of whole words, "fast" in the sense of transformers."""
    backend = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>" if pad else None, "eos_token": "<end>" if end else None, "unk_token": "<unk>"}
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=template,
        additional_special_tokens=["<image>", "<user>", "<bot>", "<system>", "<pad>", "<end>"],
        **special,
    )


class Words:
    """What `PreTrainedTokenizer` of transformers lacks."""

    def __init__(self, **options: Any) -> None:
        special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
        super().__init__(**special, **options)

    @property
    def vocab_size(self) -> int:
        return len(VOCABULARY)

    def get_vocab(self) -> dict[str, int]:
        return dict(VOCABULARY)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return text.replace("?", " ? ").replace(".", " . ").split()

    def _convert_token_to_id(self, token: str) -> int:
        return VOCABULARY.get(token, UNKNOWN)

    def _convert_id_to_token(self, index: int) -> str:
        return WORDS.split()[index]


def slow_tokenizer(words: type[Words] = Words, **options: Any) -> Any:
    """A tokenizer of the same words by plain Python: it knows no offsets."""
    return type("SlowTokenizer", (words, hf.PreTrainedTokenizer), {})(**options)


@functools.cache
def image_processor() -> Any:
    """CLIP's, for images of 16 by 16: 4 patches of 8 by 8."""
    return hf.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})


def make_encoder(
    tokenizer: Any = None, config: MultiModalSampleConfig = CONFIG, **options: Any
) -> MultiModalTaskEncoder:
    return MultiModalTaskEncoder(tokenizer or make_tokenizer(), image_processor(), config, **options)


def png(shade: int = 90, size: tuple[int, int] = (24, 20)) -> bytes:
    """An image file with a gradient, so that mistaken axes show."""
    width, height = size
    pixels = np.full((height, width, 3), shade, np.uint8)
    pixels[..., 0] = np.linspace(0, 255, width, dtype=np.uint8)
    pixels[..., 1] = np.linspace(0, 255, height, dtype=np.uint8)[:, None]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def words(ids: Any) -> str:
    """The words of token ids, `-` for what is ignored."""
    return " ".join("-" if number == -100 else WORDS.split()[number] for number in ids.tolist())
