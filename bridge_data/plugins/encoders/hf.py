"""`HFTaskEncoder`: any processor of transformers that is one for chats, as a task encoder.

Reads conversations about images and videos. Returns `FamilyBatch`, with all outputs of the processor, and labels for
the answers. But the number of tokens of a sample is known only once its images are processed, so a packing buffer holds
pixel values, not files. For families that `bridge_data.encoders` knows, `FamilyTaskEncoder` gives the same batches with
less memory, and does less work for samples that are skipped.
"""

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bridge_data.encoders.chat import (
    chat_template_of,
    lacks_beginning,
    note_moved_media,
    note_unended,
    render_conversation,
)
from bridge_data.encoders.conversations import VIDEO, Conversation, check_written
from bridge_data.encoders.encoder_config import SEQ_LENGTH, FamilyConfig
from bridge_data.encoders.pretrained import open_processor
from bridge_data.encoders.sequences import (
    FamilyBatch,
    FamilySample,
    Media,
    check_length,
    sequence_fields,
)
from bridge_data.encoders.tokens import MarkedTokens, tokenize_text
from bridge_data.encoders.visuals import VideoSampling, open_video, picture_sizes, pictures, without_settings
from bridge_data.errors import BridgeDataError, ConfigError, SampleError, SkipSample
from bridge_data.plugins.encoders.driven_processor import Clip, DrivenProcessor, MediaKind, marked_in, replacements_in
from bridge_data.plugins.encoders.packed_models import PackedModel
from bridge_data.plugins.encoders.qwen_encoder import QwenVLBatch
from bridge_data.plugins.encoders.video_encoder import VideoTaskEncoder
from bridge_data.samples import Batch, Sample
from bridge_data.task import stateless

_QWEN_PROCESSORS = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor")
"""Processors before which Bridge resizes images."""


class HFTaskEncoder(VideoTaskEncoder):
    """Conversations to the batches of `processor` (or its folder or hub id), which gets `processor_options` with each
    call, and of a model with `model_config` (or its folder or hub id; None: that next to the processor, if it is given
    by name), which packs need of some models.

    Outputs with one number for each token (such as `mm_token_type_ids`) are cut and padded with the tokens; all others
    are media. A sequence longer than `seq_length` is cut as in `FamilyTaskEncoder`. Samples that take more than
    `max_image_tokens` are skipped. Frames of videos are those that the video processor samples.

    Raises:
        ConfigError: if the processor has no fast tokenizer, no chat template, does not say which tokens an image
            becomes, or is not one for chats; if it makes something that cannot be joined to a pack or batch.
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
        self._name = f"HFTaskEncoder(processor={type(processor).__name__})"
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"{self._name}: expected a processor of transformers with a fast tokenizer, such as "
                "AutoProcessor.from_pretrained(...); for a tokenizer alone see text_encoder"
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
        self._driven = DrivenProcessor(
            self._name,
            processor,
            self.processor_options,
            functools.partial(lacks_beginning, self._renderer),
            self._written,
        )
        self._model = PackedModel.of(self._name, processor, given, model_config)
        if self.video_placeholder is not None:
            self._cook_with(self.config.placeholder, self.video_placeholder)

    @property
    def image_token(self) -> str | None:
        """The token that a chat template writes for an image."""
        return self._driven.image_token

    @property
    def video_placeholder(self) -> str | None:
        return None if getattr(self.processor, "video_processor", None) is None else VIDEO

    @property
    def placeholders(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.config.placeholder, self.video_placeholder)))

    @stateless
    def encode_sample(self, sample: Sample) -> FamilySample:
        """The sequence and its processed images and videos."""
        said = self.checked_conversation(sample)
        marked, whole, media, aligned = self._process(said, self.videos(sample), sample.__key__)
        of_qwen = self._is_qwen and not self._layout.has_positions  # Bridge's models compute its types themselves
        aligned = {} if of_qwen else {name: self._layout.filled(tensor, 0) for name, tensor in aligned.items()}
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
        return self._driven.joining.in_sequence(rows)

    def batch_media(self, rows: list[Media]) -> Media:
        """Join the media of rows as the processor does it for a batch."""
        media = self._driven.joining.in_batch(rows)
        if self._pixels == "float32":
            return media
        names = [name for name, value in media.items() if "pixel_values" in name and value.is_floating_point()]
        return media | {name: media[name].to(torch.bfloat16) for name in names}

    def _process(
        self, said: Conversation, videos: list[Any], key: str
    ) -> tuple[MarkedTokens, MarkedTokens, Media, dict[str, Tensor]]:
        """The tokens that fit, all tokens, media, and tensors with one number for each token that fits."""
        limit, limits, driven = self.seq_length, self._limits, self._driven
        if not said.messages:
            marked = tokenize_text(self.tokenizer, said.text)
            check_length(marked, [], limit, self.config.policies.overlong, key)
            fitting = marked[:limit]
            return fitting, marked, {}, {name: torch.zeros(len(fitting), dtype=torch.int64) for name in driven.aligned}
        if said.images and getattr(self.processor, "image_processor", None) is None:
            raise ConfigError(f"sample {key!r} has images, and {self._name} has no image_processor to make any of them")
        images = without_settings(said.images, self._name, key)
        picture_sizes(images, limits, key)
        images = pictures(images, limits, key)
        if self._is_qwen:
            images = [self._layout.picture(image) for image in images]
        if videos:
            driven.check_videos(key)
        clips = [self._clip(video, key) for video in videos]
        media_tokens = {self.config.placeholder: ("image", self.image_token or self.config.placeholder)}
        if driven.video_token is not None:
            media_tokens[VIDEO] = "video", driven.video_token
        messages = self._layout.messages(said.messages, self.chat_template, media_tokens)
        text, spans = render_conversation(self._renderer, messages, self.chat_template, self.answers, said.tools)
        owner = f"{type(self).__name__}({type(self.processor).__name__})"
        note_moved_media(owner, said.messages, media_tokens, text)
        note_unended(owner, messages, self.config.conversation_template_config, text, spans)
        spans = self._layout.spans_with_loss(text, spans)
        for token, number, kind in (
            (self.image_token, len(images), "image"),
            (driven.video_token, len(clips), "video"),
        ):
            if token is not None:
                check_written(text.count(token), number, kind, self.config, key)
        made = driven.call(text, images, clips)
        try:
            before = driven.added_before(text, made)
        except ConfigError as error:  # not so of what it was tried with: this sample alone
            raise SampleError(f"sample {key!r}: {error}") from None
        spans = [(start + before, end + before) for start, end in spans]
        marked, images_at = marked_in(made, spans)
        whole = marked = self._layout.learnt(marked)
        num_image_tokens = sum(end - start for start, end in images_at)
        if limits.max_image_tokens is not None and num_image_tokens > limits.max_image_tokens:
            raise SkipSample(f"its images take more than max_image_tokens={limits.max_image_tokens}")
        check_length(marked, [], limit, self.config.policies.overlong, key)
        if len(marked) > limit:
            cut = next((number for number, (_, end) in enumerate(images_at) if end > limit), None)
            if cut is not None:
                # Process the text again without the images that are cut off, so that they have no pixel values.
                replaced = replacements_in(made)
                left = [one["type"] for one in replaced[:cut]]
                text = text[: replaced[cut]["span"][0] - before]
                made = driven.call(text, images[: left.count("image")], clips[: left.count("video")])
                marked = self._layout.learnt(marked_in(made, spans)[0])
        media, aligned = driven.sorted(made)
        return marked[:limit], whole, media, {name: value[:limit] for name, value in aligned.items()}

    def _clip(self, video: Any, key: str) -> Clip:
        """The sampled frames of a video."""
        try:
            return Clip.of(open_video(video, key, VideoSampling(), self._driven.choose_frames), self._name)
        except ValueError as error:  # such as of fewer frames than the video processor samples
            raise SampleError(
                f"sample {key!r}: {type(self.processor.video_processor).__name__} cannot sample a video: {error} "
                "(processor_options={'videos_kwargs': {...}} has its settings)"
            ) from error

    def _written(self, kind: MediaKind, token: str, number: int) -> str | None:
        """A conversation about so many images or videos as the template writes it, with this token for each; None if it
        does not."""
        asks, placeholder = self.config.conversation_template_config.roles[0], self.config.placeholder
        question = f"{placeholder} a" + f" {placeholder}" * (number - 1)
        said = [{"role": asks, "content": question}, {"role": self.answers, "content": "a"}]
        messages = self._layout.messages(said, self.chat_template, {placeholder: (kind, token)})
        try:
            text, _ = render_conversation(self._renderer, messages, self.chat_template, self.answers)
        except BridgeDataError:  # the template wants other conversations
            return None
        return text if text.count(token) == number else None
