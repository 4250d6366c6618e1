"""A small local tokenizer, trained on the demo's own text: nothing is downloaded.

Reads texts. Writes a folder that `transformers.AutoTokenizer` loads, with special tokens and a chat template that marks
what the assistant says, so that only answers have a loss.
"""

from collections.abc import Iterable
from pathlib import Path

PAD, IMAGE, START, END = "<pad>", "<image>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] + '<|im_end|>' -}}
{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str], folder: Path, vocab_size: int) -> None:
    """Train a byte-level BPE tokenizer of `vocab_size` on `texts` and save it to `folder`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, IMAGE, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(sorted(texts), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[IMAGE, START],
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.save_pretrained(folder)


def demo_texts(data: Path) -> list[str]:
    """The captions and questions of the demo's data sets."""
    captions = [file.read_text() for file in sorted((data / "captions" / "raw").glob("*.txt"))]
    return captions + [file.read_text() for file in sorted((data / "questions" / "raw").glob("*.json"))]
