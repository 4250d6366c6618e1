"""The task encoder of the Qwen-VL families: conversations about images and videos, with M-RoPE positions.

Reads the samples of `FamilyTaskEncoder`, questions about videos, and `VideoConversationSample`. Returns `QwenVLBatch`:
tokens, types of tokens, grids and pixel values are those of the family's processor, positions those of the family's
model. In the packing buffer a video stays the bytes of its file.

M-RoPE (multimodal rotary positions) gives each token three numbers: time, row and column within an image or video.

Source: P. Wang et al., Qwen2-VL (2024); S. Bai et al., Qwen2.5-VL (2025) for time in seconds. The rounding, and that
the time of a video does not shift the text after it, are as in transformers 5.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bridge_data.encoders.chat import only_token
from bridge_data.encoders.conversations import Conversation, check_written
from bridge_data.encoders.encoder_config import IGNORED, SEQ_LENGTH, FamilyConfig, refuse
from bridge_data.encoders.families import Pieces
from bridge_data.encoders.family_encoder import FamilyTaskEncoder
from bridge_data.encoders.sequences import FamilyBatch, FamilySample, Media, TokenizedSample
from bridge_data.encoders.tokens import MarkedTokens
from bridge_data.encoders.visual_settings import Visual, with_own
from bridge_data.encoders.visuals import VideoFrames, VideoSampling, open_video, pictures
from bridge_data.plugins.encoders.qwen_families import MAX_ASPECT, Grid, Qwen2VL
from bridge_data.plugins.encoders.video_encoder import VideoTaskEncoder
from bridge_data.samples import Sample, edataclass
from bridge_data.task import stateless

TEXT, IMAGE, VIDEO = 0, 1, 2
"""Types of tokens, as in `mm_token_type_ids` of transformers."""


def mrope_positions(
    types: Tensor, images: Sequence[Grid], videos: Sequence[Grid], intervals: Sequence[Tensor | float] | None = None
) -> Tensor:
    """The positions, int64 (3, S), of a sequence with tokens of `types`, int64 (S,): time, row and column.

    `images` has the grid of each image, in tokens. `videos` has the grid of each run of consecutive video tokens, of
    which a video may have several; `intervals` has the distance between the time steps of each run (None: 1). A text
    token has the same number three times, one more than the token before. Those of an image or a run start at the next
    number of the text; the text after it continues at this number plus the larger of its rows and columns.
    """
    grids = {IMAGE: iter(images), VIDEO: iter(videos)}
    steps = iter(intervals if intervals is not None else itertools.repeat(1))
    pieces = []
    start = 0
    for kind, run in itertools.groupby(types.tolist()):
        length = len(list(run))
        if kind == TEXT:
            pieces.append(torch.arange(start, start + length).expand(3, -1))
            start += length
            continue
        num_times, rows, columns = next(grids[kind])
        interval = next(steps) if kind == VIDEO else 1
        times = (torch.arange(num_times) * interval).long()
        cells = torch.meshgrid(times, torch.arange(rows), torch.arange(columns), indexing="ij")
        pieces.append(torch.stack(cells).reshape(3, -1) + start)
        start += max(rows, columns)
    return torch.cat(pieces, dim=1)


@edataclass
class QwenVLBatch(FamilyBatch):
    """As `FamilyBatch`; `position_ids` are int64 (B, 3, S), and `aligned` holds `mm_token_type_ids`."""

    def model_inputs(self, ignored: int = IGNORED) -> dict[str, Tensor]:
        """As `FamilyBatch.model_inputs`. The positions of a packed batch are (4, B, S), as in transformers: first those
        of the text, which restart with each sample, then the other three."""
        inputs = FamilyBatch.model_inputs(self, ignored)
        if self.is_packed:
            positions = torch.arange(self.tokens.shape[1], device=self.tokens.device)
            starts = [row[torch.searchsorted(row[1:], positions, right=True)] for row in self.cu_seqlens]
            text = torch.where(positions < self.lengths[:, None], positions - torch.stack(starts), 0)
            inputs["position_ids"] = torch.cat([text[None], self.position_ids.transpose(0, 1)])
        return inputs


class QwenVLTaskEncoder(VideoTaskEncoder, FamilyTaskEncoder):
    """Conversations to the batches of Qwen-VL; `sampling` chooses the frames of videos.

    `max_image_tokens` of the settings is a budget for images and videos together.

    Raises:
        ConfigError: as `FamilyTaskEncoder`.
    """

    family: Qwen2VL
    _with_mrope = ""
    _family_kind = Qwen2VL
    _family_expected = "a family of Qwen-VL: Qwen2VL, Qwen2_5VL or Qwen3VL"

    def __init__(
        self,
        tokenizer: Any,
        family: Qwen2VL,
        config: FamilyConfig | None = None,
        *,
        seq_length: int = SEQ_LENGTH,
        sampling: VideoSampling | None = None,
    ) -> None:
        super().__init__(tokenizer, family, config, seq_length=seq_length)
        self.sampling = sampling or VideoSampling()
        self._video_id = only_token(self.tokenizer, family.video_token)
        self._cook_with(self.config.placeholder, family.video_placeholder)

    @property
    def placeholders(self) -> tuple[str, ...]:
        return tuple(self._media_tokens)

    @property
    def video_placeholder(self) -> str:
        return self.family.video_placeholder

    @stateless
    def postencode_sample(self, sample: Any) -> FamilySample:
        """The sequence with its images and videos as the model takes them, and its M-RoPE positions."""
        made: FamilySample = super().postencode_sample(sample)
        if not self._layout.has_positions:
            return made
        types = (made.tokens == self._image_id) * IMAGE + (made.tokens == self._video_id) * VIDEO
        merge = int(self.family.image_processor.merge_size)
        grids = {}
        for name in ("image_grid_thw", "video_grid_thw"):
            rows = made.media[name].tolist() if name in made.media else []
            grids[name] = [(times, high // merge, wide // merge) for times, high, wide in rows]
        videos = [part for grid in grids["video_grid_thw"] for part in self.family.token_runs(grid)]
        intervals = self.family.intervals(made.media)
        made.position_ids = mrope_positions(types, grids["image_grid_thw"], videos, intervals)
        made.aligned = {"mm_token_type_ids": types}
        return made

    def costs(self, sample: Any) -> Mapping[str, int]:
        """Also `video_tokens`; `frames`, those sampled; and `milliseconds` of the videos."""
        videos = [visual for visual in sample.images if isinstance(visual, VideoFrames)]
        return {
            **super().costs(sample),
            "images": len(sample.images) - len(videos),
            "video_tokens": int((sample.tokens == self._video_id).sum()),
            "frames": sum(len(video.frames) for video in videos),
            "milliseconds": sum(round(1000 * video.num_frames / video.fps) for video in videos),
        }

    @stateless
    def batch(self, samples: list[Any]) -> QwenVLBatch | dict[str, Any]:
        made = super().batch(samples)
        return made if isinstance(made, dict) else QwenVLBatch.extend(made)

    def _with_visuals(self, sample: Sample, said: Conversation, marked: MarkedTokens) -> tuple[MarkedTokens, list[Any]]:
        """The tokens of a sample, with one image token for each image and video; and these, in their order."""
        videos, key = self.videos(sample), sample.__key__
        is_video = marked.ids == self._video_id
        kinds = marked.ids[is_video | (marked.ids == self._image_id)].tolist()
        check_written(kinds.count(self._image_id), len(said.images), "image", self.config, key)
        check_written(kinds.count(self._video_id), len(videos), "video", self.config, key)
        opened = iter([self._open(video, key) for video in videos])
        images = iter(said.images)
        # `with_image_tokens` looks for one id; `visuals`, in the order of these ids, say which are videos.
        visuals = [next(images if kind == self._image_id else opened) for kind in kinds]
        return MarkedTokens(np.where(is_video, self._image_id, marked.ids), marked.has_loss), visuals

    def _open(self, video: Any, key: str) -> VideoFrames:
        """The video, with no frame decoded yet."""
        return self._layout.video(open_video(video, key, self.sampling, self.family.choose_frames))

    def _messages(self, messages: list[dict[str, Any]], template: str) -> list[dict[str, Any]]:
        return self._layout.messages(messages, template, self._media_tokens, media_first=True)

    @property
    def _media_tokens(self) -> dict[str, tuple[str, str]]:
        family = self.family
        return {**super()._media_tokens, family.video_placeholder: ("video", family.video_token)}

    def _sized(self, visuals: list[Any], key: str) -> list[Any]:
        """The sizes of images, with their settings; and the videos."""
        images = [visual for visual in visuals if not isinstance(visual, VideoFrames)]
        owns = [own for _, own in map(with_own, images)]
        sizes = [self._layout.size(size, own) for size, own in zip(super()._sized(images, key), owns, strict=True)]
        sized_images = map(Visual, sizes, owns)
        sized = [visual if isinstance(visual, VideoFrames) else next(sized_images) for visual in visuals]
        for visual in sized:
            height, width = visual.size if isinstance(visual, VideoFrames) else visual.source
            if max(height, width) > MAX_ASPECT * min(height, width):
                what = f"an image or video is {width} x {height} pixels; Qwen-VL takes aspects of {MAX_ASPECT} at most"
                refuse(self._limits.extreme_image, key, what)
        return sized

    def _text_of(self, visual: Any, detail: int) -> Pieces:
        if isinstance(visual, VideoFrames):
            return self.family.video_text(visual, detail)
        return self.family.image_text(visual.source, detail, visual.settings)

    def _cost(self, texts: list[list[int]]) -> int:
        """Tokens of images and videos, without the times between them."""
        return sum(ids.count(self._image_id) + ids.count(self._video_id) for ids in texts)

    def _media(self, sample: TokenizedSample) -> Media:
        images = [visual for visual in sample.images if not isinstance(visual, VideoFrames)]
        videos = [visual for visual in sample.images if isinstance(visual, VideoFrames)]
        media: Media = {}
        if images:
            owns = [own for _, own in map(with_own, images)]
            media |= self.family.pixels(self._pictures(images, sample.__key__), sample.detail, owns)
        if videos:
            media |= self.family.video_pixels(videos, sample.detail)
        return media

    def _pictures(self, images: list[Any], key: str) -> list[Image.Image]:
        """The images, decoded, as the layout hands them to the processor."""
        decoded = zip(pictures(images, self._limits, key), images, strict=True)
        return [self._layout.picture(picture, with_own(image)[1]) for picture, image in decoded]
