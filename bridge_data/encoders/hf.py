"""`HFTaskEncoder`: any processor of transformers as a task encoder.

Reads conversations about images. Returns `FamilyBatch`, with all outputs of the processor, and labels for the answers.
It works for any family. But the number of tokens of a sample is known only once its images are processed, so a packing
buffer holds pixel values, not files. For families that `bridge_data.encoders` knows, `FamilyTaskEncoder` gives the same
batches with less memory, and does less work for samples that are skipped.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bridge_data.encoders.chat import (
    chat_template_of,
    lacks_beginning,
    note_moved_media,
    render_conversation,
)
from bridge_data.encoders.conversations import Conversation, check_written
from bridge_data.encoders.encoder_config import SEQ_LENGTH, FamilyConfig
from bridge_data.encoders.family_encoder import ConversationTaskEncoder, in_bfloat16
from bridge_data.encoders.joining import Joining
from bridge_data.encoders.packed_models import PackedModel
from bridge_data.encoders.pretrained import open_processor
from bridge_data.encoders.qwen_encoder import QwenVLBatch
from bridge_data.encoders.sequences import (
    FamilyBatch,
    FamilySample,
    Media,
    check_length,
    sequence_fields,
)
from bridge_data.encoders.tokens import MarkedTokens, Span, tokenize_text, touching
from bridge_data.encoders.visuals import picture_sizes, pictures, probes, without_settings
from bridge_data.errors import BridgeDataError, ConfigError, SkipSample
from bridge_data.samples import Batch, Sample
from bridge_data.task import stateless

_NOT_FOR_MODELS = ("offset_mapping", "text_replacement_offsets", "attention_mask")

_OTHER_IMAGE_TOKENS = ("boi_token", "image_placeholder_token")
"""Where processors say what a chat template writes for an image, if it is not `image_token`: Gemma 3 before
transformers 5.23, and Qianfan-OCR."""

_OWN_FAMILY = "for it, write a VisionFamily for FamilyTaskEncoder, or a task encoder"
"""The way out if a processor cannot be driven."""

_QWEN_PROCESSORS = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor")
"""Processors before which Bridge resizes images."""


class HFTaskEncoder(ConversationTaskEncoder):
    """Conversations to the batches of `processor` (or its folder or hub id), which gets `processor_options` with each
    call, and of a model with `model_config` (or its folder or hub id; None: that next to the processor, if it is given
    by name), which packs of models with M-RoPE need.

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
        model_config: Any = None,
    ) -> None:
        given, processor = processor, open_processor(processor)
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
        of_images = {"return_tensors": "pt", **self.processor_options.get("images_kwargs", {})}
        self._options = {**self.processor_options, "images_kwargs": of_images}
        template = self.config.conversation_template_config
        self._renderer = processor if getattr(processor, "chat_template", None) else tokenizer
        self.chat_template = chat_template_of(self._renderer, template)
        self.image_token = getattr(processor, "image_token", None)
        self._name = f"HFTaskEncoder(processor={type(processor).__name__})"
        self._prefix, self._nests = 0, True
        self._aligned: frozenset[str] = frozenset()
        self._joining = Joining(type(processor).__name__, {})
        self._joining = self._probe()
        self._model = PackedModel.of(self._name, processor, given, model_config)

    @stateless
    def encode_sample(self, sample: Sample) -> FamilySample:
        """The sequence and its processed images."""
        said, key = self.checked_conversation(sample), sample.__key__
        marked, whole, media, aligned = self._process(said, key)
        aligned = {name: self._layout.filled(tensor, 0) for name, tensor in aligned.items()}
        fields = self._filled(marked.ids, *self._layout.labels(marked, lambda: whole))
        made = FamilySample.derive_from(sample, **sequence_fields(**fields), media=media, aligned=aligned)
        if self._layout.has_positions and (positions := self._model.positions(made.tokens, aligned, media)) is not None:
            made.position_ids = positions
        return made

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Several sequences as one.

        Raises:
            ConfigError: if the model does not keep them apart.
        """
        if len(samples) > 1 and self._layout.has_positions:
            self._model.check_packs()
        return super().pack_selected_samples(samples)

    @stateless
    def batch(self, samples: list[Any]) -> Batch | dict[str, Any]:
        """The sequences as rows of a batch: a `QwenVLBatch` if positions are several numbers for each token."""
        made = super().batch(samples)
        has_mrope = isinstance(made, FamilyBatch) and made.position_ids.ndim == 3
        return QwenVLBatch.extend(made) if has_mrope else made

    def join_media(self, rows: list[Media]) -> Media:
        """Join the media of several samples as the processor does it for the images of one."""
        return self._joining.in_sequence(rows)

    def batch_media(self, rows: list[Media]) -> Media:
        """Join the media of rows as the processor does it for a batch."""
        media = self._joining.in_batch(rows)
        return in_bfloat16(media) if self._pixels == "bfloat16" else media

    def _process(self, said: Conversation, key: str) -> tuple[MarkedTokens, MarkedTokens, Media, dict[str, Tensor]]:
        """The tokens that fit, all tokens, media, and tensors with one number for each token that fits."""
        if not said.messages:
            marked = tokenize_text(self.tokenizer, said.text)
            check_length(marked, [], self.seq_length, self.config.policies.overlong, key)
            return marked[: self.seq_length], marked, {}, {}
        limits = self._limits
        if said.images and getattr(self.processor, "image_processor", None) is None:
            raise ConfigError(f"sample {key!r} has images, and {self._name} has no image_processor to make any of them")
        images = without_settings(said.images, self._name, key)
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
        before = self._added_before(text, made)
        spans = [(start + before, end + before) for start, end in spans]
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
                text = text[: made["text_replacement_offsets"][0][cut]["span"][0] - before]
                made = self._call(text, images[:cut], special)
                marked = self._layout.learnt(_marked(made, spans)[0])
        media, aligned = self._sorted(made)
        return marked[:limit], whole, media, {name: value[:limit] for name, value in aligned.items()}

    def _call(self, text: str, images: Sequence[Image.Image], special: bool) -> Mapping[str, Any]:
        """What the processor makes of a text with these images."""
        made: Mapping[str, Any] = self.processor(
            text=[text],
            images=([list(images)] if self._nests else list(images)) if images else None,
            add_special_tokens=special,
            return_offsets_mapping=True,
            return_text_replacement_offsets=True,
            **self._options,
        )
        made = {**made, **{name: torch.as_tensor(made[name]).tolist() for name in ("input_ids", "offset_mapping")}}
        if images and self.image_token is not None and "text_replacement_offsets" not in made:
            made = {**made, "text_replacement_offsets": [self._replacements(text, made)]}
        return made

    def _made_of_batch(self, texts: Sequence[str], images: Sequence[Sequence[Image.Image]]) -> Mapping[str, Any]:
        """What the processor makes of a batch of texts with images."""
        given = [list(own) for own in images] if self._nests else [image for own in images for image in own]
        made: Mapping[str, Any] = self.processor(text=list(texts), images=given, padding=True, **self._options)
        return made

    def _added_before(self, text: str, made: Mapping[str, Any]) -> int:
        """How many characters the processor wrote before the text, such as a beginning-of-sequence token.

        Raises:
            ConfigError: if it wrote some elsewhere: then it is unknown where the answers are.
        """
        replaced = (made.get("text_replacement_offsets") or [[]])[0]
        tokens = "|".join(re.escape(token) for token in dict.fromkeys(one["text"] for one in replaced))
        places = [match.start() for match in re.finditer(tokens, text)] if replaced else []
        grown = sum(len(one["replacement"]) - len(one["text"]) for one in replaced)
        added = max(0, max((end for _, end in made["offset_mapping"][0]), default=0) - len(text) - grown)
        moved = {one["span"][0] - place for one, place in zip(replaced, places, strict=False)}
        is_known = moved == {added} if replaced else added in (0, self._prefix)
        if len(places) != len(replaced) or not is_known:
            raise ConfigError(
                f"{self._name}: it writes more into a conversation than the chat template does, so the answers cannot "
                f"be found; {_OWN_FAMILY}"
            )
        return added

    def _replacements(self, text: str, made: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What replaced each image token, if the processor does not report it, as in older versions of transformers
        (5.12): a run of tokens of images, and around it the same characters for each.

        Raises:
            ConfigError: if it is otherwise.
        """
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
            raise ConfigError(
                f"{self._name}: it does not say what it makes of an image (text_replacement_offsets, as those of "
                f"transformers 5.23 do), and around the tokens of images are not the same ones; {_OWN_FAMILY}"
            )
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

    def _sorted(self, made: Mapping[str, Any]) -> tuple[Media, dict[str, Tensor]]:
        """The outputs of the processor without the tokens: media, and tensors with one number for each token."""
        media, aligned = {}, {}
        length = len(made["input_ids"][0])
        for name, value in made.items():
            if name == "input_ids" or name in _NOT_FOR_MODELS:
                continue
            tensor = torch.as_tensor(value)
            if name in self._aligned or (tensor.shape == (1, length) and not isinstance(value, Tensor)):
                aligned[name] = tensor[0]
            else:
                media[name] = self._joining.own(name, tensor)
        return media, aligned

    def _probe(self) -> Joining:
        """How outputs for several conversations are joined, after trying what a chat template writes for an image.

        Raises:
            ConfigError: if the processor does not take the options that are needed, or is not one for chats.
        """
        kind = type(self.processor).__name__
        if getattr(self.processor, "image_processor", None) is None:
            return Joining(kind, {})
        tokens = (self.image_token, *(getattr(self.processor, name, None) for name in _OTHER_IMAGE_TOKENS))
        written = [*dict.fromkeys(str(token) for token in tokens if token is not None)]
        if not written:
            raise ConfigError(
                f"{self._name}: no token stands for an image in a text (it has no image_token), so it is not one for "
                f"chats; {_OWN_FAMILY}"
            )
        first: Exception | None = None
        for token, texts in [
            *self._in_template(written),
            *((one, (f"{one} a", f"{one} a {one}", f"{one} a {one} {one}")) for one in written),
        ]:
            self.image_token = token
            try:
                return self._tried(kind, *texts)
            except Exception as error:  # a processor of another kind may raise anything
                first = first or error
        if isinstance(first, ConfigError):
            raise first
        raise ConfigError(
            f"{self._name}: it does not say what it makes of an image ({type(first).__name__}: {first}); expected a "
            "processor that takes return_offsets_mapping and return_text_replacement_offsets, as those of transformers "
            f"5.23 do. Otherwise {_OWN_FAMILY}"
        ) from first

    def _in_template(self, tokens: Sequence[str]) -> Iterator[tuple[str, tuple[str, str, str]]]:
        """Conversations with one, two and three images, as the template writes them with each of the tokens."""
        asks, placeholder = self.config.conversation_template_config.roles[0], self.config.placeholder
        questions = [f"{placeholder} a" + f" {placeholder}" * more for more in range(3)]
        for token in tokens:
            texts = []
            for question in questions:
                said = [{"role": asks, "content": question}, {"role": self.answers, "content": "a"}]
                messages = self._layout.messages(said, self.chat_template, {placeholder: ("image", token)})
                with contextlib.suppress(BridgeDataError):  # the template wants other conversations
                    texts.append(render_conversation(self._renderer, messages, self.chat_template, self.answers)[0])
            if [text.count(token) for text in texts] == [1, 2, 3]:
                yield token, (texts[0], texts[1], texts[2])

    def _tried(self, kind: str, one: str, two: str, three: str) -> Joining:
        """How outputs are joined, from what the processor makes of texts with so many images."""
        special = lacks_beginning(self._renderer, one)
        small, wide, tall = probes()
        conversations = ((two, [wide, tall]), (one, [small]))
        self._nests = True
        try:
            made = [self._call(text, images, special) for text, images in conversations]
        except Exception:  # some take images without their conversations alone
            self._nests = False
            made = [self._call(text, images, special) for text, images in conversations]
        replaced, offsets = made[0]["text_replacement_offsets"][0], made[0]["offset_mapping"]
        if len(replaced) != 2 or len(offsets) != 1:
            raise ValueError(f"of 2 images in 1 text it makes {len(replaced)} in {len(offsets)}")
        if "labels" in made[0]:
            raise ConfigError(f"{self._name}: it makes labels by itself, so it is not one for chats; {_OWN_FAMILY}")
        self._prefix = replaced[0]["span"][0] - two.index(replaced[0]["text"])
        self._added_before(two, made[0])
        together = self._call(three, [wide, tall, small], special)
        batch: Media | None = None
        with contextlib.suppress(Exception):
            batch = self._sorted(self._made_of_batch([two, one], [[wide, tall], [small]]))[0]
        lengths = [len(one["input_ids"][0]) for one in made]
        shapes = [{name: tuple(np.shape(value)) for name, value in one.items()} for one in made]
        self._aligned = frozenset(
            name
            for name in shapes[0].keys() & shapes[1].keys()
            if all(shape[name] == (1, length) for shape, length in zip(shapes, lengths, strict=True))
        )
        alone = [self._sorted(one)[0] for one in made]
        return Joining.found(kind, alone, batch, self._sorted(together)[0])


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
