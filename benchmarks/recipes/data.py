"""The data of the recipes: chats with photos, chats of text, and the tokenizer; made once, the same for all sides.

Reads the photos that scikit-image and scikit-learn ship, and the English of Python's own help. Returns the folder of a
data set, with prepared shards in `tars`, and `tokenizer`: a byte-level BPE of 16,384 tokens that is trained on that
English, with the special tokens of the models.
"""

import functools
import itertools
import json
import random
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.speed import data as shards

VOCABULARY = 16_384
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<image>",
)
WIDTHS, HEIGHTS, PHOTO_BYTES = (400, 640), (300, 427), 40_000
NUM_PHOTO_CHATS, NUM_TEXT_CHATS = 512, 8_000


def make(name: str, folder: Path, scale: float = 1.0) -> Path:
    """The folder of the data set `recipe_photos` or `recipe_texts`, made if it does not exist."""
    target = folder / name
    if (target / ".made").exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    (target / "tars").mkdir(parents=True)
    print(f"making the data set {name}", file=sys.stderr, flush=True)
    save_tokenizer(target / "tokenizer")
    chats = _photo_chats if name == "recipe_photos" else _text_chats
    count, per_shard = (NUM_PHOTO_CHATS, 64) if name == "recipe_photos" else (NUM_TEXT_CHATS, 1_000)
    shards.write_tars(target / "tars", chats(max(64, int(count * scale))), per_shard)
    shards.prepare(target / "tars", shards.KINDS["crude"])
    (target / ".made").touch()
    return target


def save_tokenizer(folder: Path) -> None:
    """Train the tokenizer, and save it for `AutoTokenizer`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    words = r"'(?:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(words), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sentences(), trainer)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))


@functools.cache
def _sentences() -> list[str]:
    """The sentences of Python's help, in their order."""
    from pydoc_data.topics import topics

    text = re.sub(r"\s+", " ", " ".join(topics[name] for name in sorted(topics)))
    return [sentence for sentence in re.split(r"(?<=[.:;]) ", text) if 20 < len(sentence) < 400]


def _said(rng: random.Random, mean: float) -> str:
    """Neighbouring sentences, `mean` of them on average."""
    count = 1 + min(12, int(rng.expovariate(1 / mean)))
    first = rng.randrange(len(_sentences()) - count)
    return " ".join(_sentences()[first : first + count])


def _turns(rng: random.Random) -> Iterator[tuple[str, str]]:
    """One to three questions with their answers."""
    for _ in range(rng.randint(1, 3)):
        yield _said(rng, 0.5), _said(rng, 2.5)


def _messages(rng: random.Random, num_images: int) -> bytes:
    messages = []
    for (question, answer), is_first in zip(
        _turns(rng), itertools.chain([True], itertools.repeat(False)), strict=False
    ):
        images = "<image>" * num_images if is_first else ""
        messages += [{"role": "user", "content": images + question}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages}).encode()


def _photo_chats(count: int) -> shards.Samples:
    """Chats about one or two photos."""
    rng = random.Random(0)
    for number in range(count):
        sizes = [(rng.randint(*WIDTHS), rng.randint(*HEIGHTS)) for _ in range(rng.randint(1, 2))]
        photos = [photo for size in sizes for photo in shards.photos_of(size, PHOTO_BYTES, 1, rng)]
        parts = {f"{at}.jpg": photo for at, photo in enumerate(photos)}
        yield f"{number:07d}", {"json": _messages(rng, len(photos))} | parts


def _text_chats(count: int) -> shards.Samples:
    rng = random.Random(1)
    for number in range(count):
        yield f"{number:07d}", {"json": _messages(rng, 0)}
