"""The task encoder of the Qwen-VL families: conversations about images and videos, with M-RoPE positions.

Enters: what `FamilyTaskEncoder` takes, questions about videos, and `VideoConversationSample`. Leaves: `QwenVLBatch`.
Guarantee: tokens, types of tokens, grids and pixel values are those of the family's processor, positions those of the
family's model. A video waits in the packing buffer as the bytes of its file.
"""

import re
from typing import Any

import torch
from torch import Tensor

from bridge_data.encoders.chat import (
    MarkedTokens,
    only_token,
    render_conversation,
    takes_parts,
    tokenize_spans,
    tokenize_text,
)
from bridge_data.encoders.conversation import Conversation, ConversationSample
from bridge_data.encoders.family import Media
from bridge_data.encoders.family_config import FamilyConfig
from bridge_data.encoders.family_encoder import FamilyTaskEncoder
from bridge_data.encoders.family_samples import FamilyBatch, FamilySample, WaitingSample
from bridge_data.encoders.mrope import IMAGE, VIDEO, mrope_positions
from bridge_data.encoders.pictures import picture_sizes, pictures
from bridge_data.encoders.policies import refuse
from bridge_data.encoders.qwen_vl import MAX_ASPECT, Qwen2VL
from bridge_data.encoders.sequences import check_length, with_image_tokens
from bridge_data.encoders.videos import VideoConversationSample, VideoFrames, VideoSampling, open_video
from bridge_data.errors import SkipSample
from bridge_data.samples import Sample, VidQASample, VQASample, edataclass
from bridge_data.task import stateless


@edataclass
class QwenVLBatch(FamilyBatch):
    """As `FamilyBatch`; `position_ids` are int64 (B, 3, S), and `aligned` holds `mm_token_type_ids`."""

    def model_inputs(self, ignored: int = -100) -> dict[str, Tensor]:
        """As `FamilyBatch.model_inputs`. The positions of a packed batch are (4, B, S), as transformers has them: those
        of the text, which begin anew with each sample, before the three others."""
        inputs = FamilyBatch.model_inputs(self, ignored)
        if self.is_packed:
            places = torch.arange(self.tokens.shape[1], device=self.tokens.device)
            begins = [row[torch.searchsorted(row[1:], places, right=True)] for row in self.cu_seqlens]
            text = torch.where(places < self.lengths[:, None], places - torch.stack(begins), 0)
            inputs["position_ids"] = torch.cat([text[None], self.position_ids.transpose(0, 1)])
        return inputs


class QwenVLTaskEncoder(FamilyTaskEncoder):
    """Conversations to the batches of Qwen-VL; `sampling` says which frames of videos are taken.

    `max_image_tokens` of the settings is a budget for images and videos together.

    Raises:
        ConfigError: as `FamilyTaskEncoder`.
    """

    def __init__(
        self,
        tokenizer: Any,
        family: Qwen2VL,
        config: FamilyConfig | None = None,
        *,
        seq_length: int = 2048,
        sampling: VideoSampling | None = None,
    ) -> None:
        super().__init__(tokenizer, family, config, seq_length=seq_length)
        self.family: Qwen2VL = family
        self.sampling = sampling or VideoSampling()
        self._video_id = only_token(self.tokenizer, family.video_token)

    def conversation(self, sample: Any) -> Conversation:
        """What the sample says, without its videos."""
        if isinstance(sample, VideoConversationSample):
            told = {"messages": sample.messages, "images": sample.images}
            return super().conversation(ConversationSample.derive_from(sample, **told))
        if isinstance(sample, VidQASample):
            asked: dict[str, Any] = {"image": None, "context": sample.context, "answers": sample.answers}
            asked["answer_weights"] = sample.answer_weights
            return super().conversation(VQASample.derive_from(sample, **asked))
        return super().conversation(sample)

    def videos(self, sample: Any) -> list[Any]:
        """The videos of a sample; override it with `conversation` for classes of your own."""
        if isinstance(sample, VidQASample):
            return [sample.video]
        return sample.videos if isinstance(sample, VideoConversationSample) else []

    @stateless
    def preencode_sample(self, sample: Sample) -> WaitingSample:
        """Tokens, labels and loss mask; images and videos that have a place in them wait as they are."""
        said, key, policies = self.conversation(sample), sample.__key__, self.config.policies
        videos = self.videos(sample)
        marked = self._tokenize(self._with_videos(said, len(videos), key))
        kinds = [number for number in marked.ids if number in (self._image_id, self._video_id)]
        for number, visuals, kind in ((self._image_id, said.images, "image"), (self._video_id, videos, "video")):
            if kinds.count(number) != len(visuals):
                what = f"the chat template made {kinds.count(number)} {kind} placeholders of {len(visuals)}"
                refuse(policies.image_mismatch, key, what)
        opened = iter([open_video(video, key, self.sampling, self.family.choose_frames) for video in videos])
        images = iter(said.images)
        visuals = [next(images if kind == self._image_id else opened) for kind in kinds]
        detail, texts = self._visual_tokens(visuals, key)
        check_length(marked, texts, self.seq_length, policies.overlong, key)
        places = [self._image_id if number == self._video_id else number for number in marked.ids]
        sequence, num_kept = with_image_tokens(
            MarkedTokens(places, marked.is_answer), self._image_id, texts, self.seq_length
        )
        kept = visuals[:num_kept]
        return WaitingSample.derive_from(sample, **self._labelled(sequence), images=kept, detail=detail)

    @stateless
    def postencode_sample(self, sample: WaitingSample) -> FamilySample:
        """The sequence with its images and videos as the model takes them, and with its positions."""
        made = super().postencode_sample(sample)
        types = (made.tokens == self._image_id) * IMAGE + (made.tokens == self._video_id) * VIDEO
        merge = int(self.family.image_processor.merge_size)
        grids = {}
        for name in ("image_grid_thw", "video_grid_thw"):
            rows = made.media[name].tolist() if name in made.media else []
            grids[name] = [(times, high // merge, wide // merge) for times, high, wide in rows]
        stretches = [part for grid in grids["video_grid_thw"] for part in self.family.stretches(grid)]
        intervals = self.family.intervals(made.media)
        made.position_ids = mrope_positions(types, grids["image_grid_thw"], stretches, intervals)
        made.aligned = {"mm_token_type_ids": types}
        return made

    @stateless
    def batch(self, samples: list[FamilySample]) -> QwenVLBatch:
        """The sequences as rows of one batch; with `pack_in_batch`, as one row."""
        return QwenVLBatch.extend(super().batch(samples))

    def _with_videos(self, said: Conversation, num_videos: int, key: str) -> Conversation:
        """The conversation with placeholders for its videos, which come first where it has none."""
        placeholder = self.family.video_placeholder
        found = said.text.count(placeholder) + sum(turn["content"].count(placeholder) for turn in said.messages)
        if found and found != num_videos:
            what = (
                f"the text has {found} placeholders {placeholder!r} for {num_videos} videos; there must be one for "
                "each, or none at all"
            )
            refuse(self.config.policies.image_mismatch, key, what)
        if found or not num_videos:
            return said
        asks = self.config.conversation_template_config.roles[0]
        turns = [dict(turn) for turn in said.messages]
        first = next((turn for turn in turns if turn["role"] == asks), turns[0])
        first["content"] = f"{placeholder}\n" * num_videos + first["content"]
        return Conversation(messages=turns, images=said.images)

    def _tokenize(self, said: Conversation) -> MarkedTokens:
        if not said.messages:
            return tokenize_text(self.tokenizer, said.text)
        messages = [{**turn, "content": self._content(turn["content"])} for turn in said.messages]
        text, spans = render_conversation(self.tokenizer, messages, self.chat_template, self.answers)
        begin = self.tokenizer.bos_token
        return tokenize_spans(
            self.tokenizer, text, spans, add_special_tokens=begin is None or not text.startswith(begin)
        )

    def _content(self, content: str) -> Any:
        """The content as texts, images and videos, without the line breaks between them; as a text, where the template
        takes one."""
        image, video = self.config.image_placeholder, self.family.video_placeholder
        if not takes_parts(self.chat_template):
            return content.replace(image, self.family.image_token).replace(video, self.family.video_token)
        parts = []
        for piece in re.split(rf"\n?({re.escape(image)}|{re.escape(video)})\n?", content):
            if piece in (image, video):
                parts.append({"type": "image" if piece == image else "video"})
            elif piece:
                parts.append({"type": "text", "text": piece})
        return parts or [{"type": "text", "text": ""}]

    def _visual_tokens(self, visuals: list[Any], key: str) -> tuple[int, list[list[int]]]:
        """The level of detail at which images and videos keep to the budget, and the tokens of each."""
        if not visuals:
            return 0, []
        limits = self.config.images
        sizes = iter(picture_sizes([v for v in visuals if not isinstance(v, VideoFrames)], limits, key))
        told = [visual if isinstance(visual, VideoFrames) else next(sizes) for visual in visuals]
        for one in told:
            height, width = one.size if isinstance(one, VideoFrames) else one
            if max(height, width) > MAX_ASPECT * min(height, width):
                what = f"an image or video is {width} x {height} pixels; Qwen-VL takes aspects of {MAX_ASPECT} at most"
                refuse(limits.extreme_image, key, what)
        for detail in range(self.family.num_details):
            texts = [
                self._ids_of(
                    self.family.video_text(one, detail)
                    if isinstance(one, VideoFrames)
                    else self.family.image_text(one, detail)
                )
                for one in told
            ]
            num_tokens = sum(ids.count(self._image_id) + ids.count(self._video_id) for ids in texts)
            if limits.max_image_tokens is None or num_tokens <= limits.max_image_tokens:
                return detail, texts
        raise SkipSample

    def _media(self, sample: WaitingSample) -> Media:
        images = [visual for visual in sample.images if not isinstance(visual, VideoFrames)]
        videos = [visual for visual in sample.images if isinstance(visual, VideoFrames)]
        media: Media = {}
        if images:
            media |= self.family.pixels(pictures(images, self.config.images, sample.__key__), sample.detail)
        if videos:
            media |= self.family.video_pixels(videos, sample.detail)
        return media
