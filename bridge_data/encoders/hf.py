"""`HFTaskEncoder`: any processor of transformers as a task encoder.

Reads conversations about images. Returns `FamilyBatch`, with all outputs of the processor, and labels for the answers.
It works for any family. But the number of tokens of a sample is known only once its images are processed, so a packing
buffer holds pixel values, not files. For families that `bridge_data.encoders` knows, `FamilyTaskEncoder` gives the same
batches with less memory, and does less work for samples that are skipped.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bridge_data.encoders.chat import (
    chat_template_of,
    lacks_beginning,
    note_moved_media,
    render_conversation,
)
from bridge_data.encoders.conversations import Conversation, check_written
from bridge_data.encoders.encoder_config import SEQ_LENGTH, FamilyConfig
from bridge_data.encoders.family_encoder import ConversationTaskEncoder, in_bfloat16
from bridge_data.encoders.pretrained import open_processor
from bridge_data.encoders.sequences import (
    FamilySample,
    Media,
    check_length,
    joined,
    sequence_fields,
)
from bridge_data.encoders.tokens import MarkedTokens, Span, tokenize_text, touching
from bridge_data.encoders.visuals import picture_sizes, pictures, without_settings
from bridge_data.errors import ConfigError, SkipSample
from bridge_data.samples import Sample
from bridge_data.task import stateless

_NOT_FOR_MODELS = ("offset_mapping", "text_replacement_offsets", "attention_mask")

_QWEN_PROCESSORS = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor")
"""Processors before which Bridge resizes images."""


class HFTaskEncoder(ConversationTaskEncoder):
    """Conversations to the batches of `processor` (or its folder or hub id), which gets `processor_options` with each
    call.

    Outputs with one number for each token (such as `mm_token_type_ids`) are cut and padded with the tokens; all others
    are media. A sequence longer than `seq_length` is cut as in `FamilyTaskEncoder`. Samples that take more than
    `max_image_tokens` are skipped.

    Raises:
        ConfigError: if the processor has no fast tokenizer, no chat template, or does not say which tokens an image
            becomes.
    """

    _pixel_types = ("float32", "bfloat16")

    def __init__(
        self,
        processor: Any,
        config: FamilyConfig | None = None,
        *,
        seq_length: int = SEQ_LENGTH,
        processor_options: Mapping[str, Any] | None = None,
    ) -> None:
        processor = open_processor(processor)
        tokenizer = getattr(processor, "tokenizer", None)
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"HFTaskEncoder(processor={type(processor).__name__}): expected a processor of transformers with a "
                "fast tokenizer, such as AutoProcessor.from_pretrained(...); for a tokenizer alone see text_encoder"
            )
        kinds = {kind.__name__ for kind in type(processor).__mro__}
        self._is_qwen = not kinds.isdisjoint(_QWEN_PROCESSORS)
        self._pack_pad_id = 0 if self._is_qwen else None
        super().__init__(tokenizer, config, seq_length)
        if self.config.policies.overlong == "split":
            raise ConfigError(
                "HFTaskEncoder(policies.overlong='split'): a processor makes one sequence of a conversation; use the "
                "encoder of its family, such as FamilyTaskEncoder, or another policy"
            )
        self.processor = processor
        self.processor_options = dict(processor_options or {})
        template = self.config.conversation_template_config
        self._renderer = processor if getattr(processor, "chat_template", None) else tokenizer
        self.chat_template = chat_template_of(self._renderer, template)
        self.image_token = getattr(processor, "image_token", None)
        self._by_rows: frozenset[str] = frozenset()
        self._by_rows = self._probe()

    @stateless
    def encode_sample(self, sample: Sample) -> FamilySample:
        """The sequence and its processed images."""
        said, key = self.checked_conversation(sample), sample.__key__
        marked, whole, media, aligned = self._process(said, key)
        aligned = {name: self._layout.filled(tensor, 0) for name, tensor in aligned.items()}
        fields = self._filled(marked.ids, *self._layout.labels(marked, lambda: whole))
        return FamilySample.derive_from(sample, **sequence_fields(**fields), media=media, aligned=aligned)

    def join_media(self, rows: list[Media]) -> Media:
        """Concatenate the media of several samples, padded with zeros to one shape."""
        return joined(_evened(rows))

    def batch_media(self, rows: list[Media]) -> Media:
        """Concatenate media with one entry for each image; pad and stack those with one for each conversation."""
        media = joined([{n: v for n, v in row.items() if n not in self._by_rows} for row in _evened(rows)])
        some = next((row for row in rows if row), {})
        for name in sorted(self._by_rows & some.keys()):
            media[name] = pad_sequence([row.get(name, some[name][:0]) for row in rows], batch_first=True)
        return in_bfloat16(media) if self._pixels == "bfloat16" else media

    def _process(self, said: Conversation, key: str) -> tuple[MarkedTokens, MarkedTokens, Media, dict[str, Tensor]]:
        """The tokens that fit, all tokens, media, and tensors with one number for each token that fits."""
        if not said.messages:
            marked = tokenize_text(self.tokenizer, said.text)
            check_length(marked, [], self.seq_length, self.config.policies.overlong, key)
            return marked[: self.seq_length], marked, {}, {}
        limits = self._limits
        images = without_settings(said.images, f"HFTaskEncoder({type(self.processor).__name__})", key)
        picture_sizes(images, limits, key)
        images = pictures(images, limits, key)
        if self._is_qwen:
            images = [self._layout.picture(image) for image in images]
        placeholder = self.config.placeholder
        media_tokens = {placeholder: ("image", self.image_token or placeholder)}
        messages = self._layout.messages(said.messages, self.chat_template, media_tokens)
        text, spans = render_conversation(self._renderer, messages, self.chat_template, self.answers, said.tools)
        note_moved_media(f"{type(self).__name__}({type(self.processor).__name__})", said.messages, media_tokens, text)
        spans = self._layout.spans_with_loss(text, spans)
        special = lacks_beginning(self._renderer, text)
        if self.image_token is not None:
            check_written(text.count(self.image_token), len(images), "image", self.config, key)
        made = self._call(text, images, special)
        marked, images_at = _marked(made, spans)
        whole = marked = self._layout.learnt(marked)
        num_image_tokens = sum(end - start for start, end in images_at)
        if limits.max_image_tokens is not None and num_image_tokens > limits.max_image_tokens:
            raise SkipSample(f"its images take more than max_image_tokens={limits.max_image_tokens}")
        limit = self.seq_length
        check_length(marked, [], limit, self.config.policies.overlong, key)
        if len(marked) > limit:
            cut = next((number for number, (_, end) in enumerate(images_at) if end > limit), None)
            if cut is not None:
                # Process the text again without the images that are cut off, so that they have no pixel values.
                text = text[: made["text_replacement_offsets"][0][cut]["span"][0]]
                made = self._call(text, images[:cut], special)
                marked = self._layout.learnt(_marked(made, spans)[0])
        media, aligned = self._sorted(made, len(marked))
        return marked[:limit], whole, media, {name: value[:limit] for name, value in aligned.items()}

    def _call(self, text: str, images: Sequence[Image.Image], special: bool) -> Mapping[str, Any]:
        made: Mapping[str, Any] = self.processor(
            text=[text],
            images=list(images) or None,
            add_special_tokens=special,
            return_offsets_mapping=True,
            return_text_replacement_offsets=True,
            images_kwargs={"return_tensors": "pt"},
            **self.processor_options,
        )
        made = {**made, **{name: torch.as_tensor(made[name]).tolist() for name in ("input_ids", "offset_mapping")}}
        if images and self.image_token is not None and "text_replacement_offsets" not in made:
            made = {**made, "text_replacement_offsets": [self._replacements(text, made)]}
        return made

    def _replacements(self, text: str, made: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What replaced each image token, if the processor does not report it, as in older versions of transformers
        (5.12): a run of tokens of images, and around it the same characters for each. A KeyError otherwise."""
        token, matches = str(self.image_token), list(re.finditer(re.escape(str(self.image_token)), text))
        ids, offsets = made["input_ids"][0], made["offset_mapping"][0]
        runs = self._image_runs(ids, offsets)
        grown = max(end for _, end in offsets) - len(text) - sum(end - start for start, end in runs)
        around, rest = divmod(grown + len(token) * len(matches), max(len(matches), 1))
        before = runs[0][0] - matches[0].start() if matches and runs else 0
        replaced: list[dict[str, Any]] = []
        grown = 0
        for match, (start, end) in zip(matches, runs, strict=False):
            if start != match.start() + grown + before:
                break
            new = start - before, end + around - before
            becomes = " " * (new[1] - new[0])
            replaced.append({"span": match.span(), "text": token, "new_span": new, "replacement": becomes})
            grown = new[1] - match.end()
        if rest or not 0 <= before <= around or not len(replaced) == len(runs) == len(matches):
            raise KeyError("text_replacement_offsets")
        return replaced

    def _image_runs(self, ids: Sequence[int], offsets: Sequence[Span]) -> list[Span]:
        """The ranges of characters of consecutive tokens of images; an image ends with its end token, if it has one."""
        names = (getattr(self.processor, "image_token", None), getattr(self.processor, "image_break_token", None))
        last = getattr(self.processor, "image_end_token", None)
        own = {self.tokenizer.convert_tokens_to_ids(name) for name in (*names, last) if name is not None}
        end_id = None if last is None else self.tokenizer.convert_tokens_to_ids(last)
        runs: list[Span] = []
        is_open = False
        for number, (start, end) in zip(ids, offsets, strict=True):
            if number in own:
                runs[-1:] = [(runs[-1][0], end)] if is_open else [*runs[-1:], (start, end)]
            is_open = number in own and number != end_id
        return runs

    def _sorted(self, made: Mapping[str, Any], length: int) -> tuple[Media, dict[str, Tensor]]:
        """The outputs of the processor without the tokens: media, and tensors with one number for each token."""
        media, aligned = {}, {}
        for name, value in made.items():
            if name == "input_ids" or name in _NOT_FOR_MODELS:
                continue
            tensor = torch.as_tensor(value)
            if tensor.shape == (1, length) and not isinstance(value, Tensor):
                aligned[name] = tensor[0]
            else:
                media[name] = tensor[0] if name in self._by_rows else tensor
        return media, aligned

    def _probe(self) -> frozenset[str]:
        """The names of outputs with one entry for each conversation, rather than for each image: of two images, they
        have one. A ConfigError if the processor does not take the options that are needed."""
        if self.image_token is None or getattr(self.processor, "image_processor", None) is None:
            return frozenset()
        images = [Image.new("RGB", (48, 32)), Image.new("RGB", (32, 64))]
        # What a template writes for an image, which of Gemma 3 is another token before transformers 5.23.
        written = dict.fromkeys((self.image_token, getattr(self.processor, "boi_token", None) or self.image_token))
        failed: Exception | None = None
        for token in written:
            self.image_token = token
            try:
                made = self._call(f"{token} {token}", images, True)
                replaced = made["text_replacement_offsets"][0]
                break
            except (KeyError, TypeError, ValueError) as error:
                failed = failed or error
        else:
            raise ConfigError(
                f"HFTaskEncoder(processor={type(self.processor).__name__}): it does not say what it makes of an image "
                f"({type(failed).__name__}: {failed}); expected a processor that takes "
                "return_offsets_mapping and return_text_replacement_offsets, as those of transformers 5.23 do"
            ) from failed
        media, _ = self._sorted(made, len(made["input_ids"][0]))
        return frozenset(name for name, value in media.items() if len(value) == 1 < len(replaced) and value.ndim > 2)


def _evened(rows: Sequence[Media]) -> list[Media]:
    """The rows with tensors of the same shape except for dimension 0, padded with zeros."""
    shapes: dict[str, list[int]] = {}
    for row in rows:
        for name, value in row.items():
            known = shapes.setdefault(name, list(value.shape[1:]))
            shapes[name] = [max(pair) for pair in zip(known, value.shape[1:], strict=True)]
    evened = []
    for row in rows:
        filled = {}
        for name, value in row.items():
            filled[name] = value.new_zeros(len(value), *shapes[name])
            filled[name][(slice(None), *(slice(side) for side in value.shape[1:]))] = value
        evened.append(filled)
    return evened


def _marked(made: Mapping[str, Any], spans: Sequence[Span]) -> tuple[MarkedTokens, list[Span]]:
    """The tokens, with marks on those of answers but not of images; and the range of tokens of each image. `spans` are
    those of the text before its image tokens were replaced."""
    ids, offsets = list(made["input_ids"][0]), made["offset_mapping"][0]
    replaced = (made.get("text_replacement_offsets") or [[]])[0]
    moved = [(_moved(start, replaced), _moved(end, replaced)) for start, end in spans]
    in_answers = touching(offsets, moved)
    in_images = touching(offsets, [one["new_span"] for one in replaced])
    images_at = []
    number = 0
    for one in replaced:
        start, end = one["new_span"]
        while number < len(ids) and not (offsets[number][1] > start and offsets[number][0] < offsets[number][1]):
            number += 1
        first = number
        while number < len(ids) and offsets[number][0] < end and offsets[number][1] > start:
            number += 1
        images_at.append((first, number))
    return MarkedTokens.of(ids, in_answers & ~in_images), images_at


def _moved(offset: int, replaced: Sequence[Mapping[str, Any]]) -> int:
    """The offset of a character of the text after its image tokens were replaced."""
    grown = sum(len(one["replacement"]) - len(one["text"]) for one in replaced if one["span"][1] <= offset)
    return offset + grown
