"""A tokenizer with the sizes of LLaVA 1.5's: SentencePiece's BPE of 32,000 tokens as Llama has it, then <image> and
<pad>. Its merges are not learnt: each token is one before it and a letter."""

import itertools
import json
import string
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

NUM_MODEL_TOKENS = 32_000
IMAGE_ID, PAD_ID = 32_000, 32_001
SPACE = "▁"

CONFIG = {
    "tokenizer_class": "LlamaTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "extra_special_tokens": {"image_token": "<image>"},
    "add_bos_token": True,
    "add_eos_token": False,
    "legacy": False,
    "padding_side": "left",
}


def words() -> Iterator[tuple[str, str]]:
    """(token before, letter), from the shortest on."""
    for length in itertools.count(1):
        for word in itertools.product(string.ascii_lowercase, repeat=length):
            for first in (SPACE, *string.ascii_lowercase):
                yield first + "".join(word[:-1]), word[-1]


def write_tokenizer(folder: Path) -> Path:
    """Save it, as LLaVA's folder on the hub has it; without a chat template, which is there beside it."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary += [SPACE, *string.ascii_letters, *string.digits, *string.punctuation, "\n"]
    merges = [*itertools.islice(words(), NUM_MODEL_TOKENS - len(vocabulary))]
    vocabulary += [token + letter for token, letter in merges]
    numbers = {token: number for number, token in enumerate(vocabulary)}
    made = Tokenizer(models.BPE(numbers, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    made.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    for tokens in (("<unk>", "<s>", "</s>"), ("<image>", "<pad>")):
        made.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])
    folder.mkdir(parents=True)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    return folder
