"""Batches for Megatron-Bridge's step for vision-language models: `layout="bridge"` of an encoder's settings.

Enters: encoded samples or packs, and their media. Leaves: a dict with `input_ids`, `labels`, `loss_mask`,
`position_ids`, `attention_mask` or the bounds of packed sequences, and `visual_inputs`. Guarantee: keys, dtypes, shapes
and values are those that Bridge's own encoders make of the same conversations; docs/compatibility.md lists
where they differ on purpose. Bridge is not imported.

    tokens ─ bridge_parts, turn_ends, NEVER_LEARNT: what is written, and what is learnt
    images ─ utils_size, resized_by_utils, UtilsVideo: what Bridge resizes images and frames to before the processor
    batches ─ padded_rows, or packed_row

Positions are one number for each token, as in Bridge: its models compute M-RoPE from the tokens and grids.

Source: the encoders and `vlm_step` of Megatron-Bridge 0.6.2, and `qwen_vl_utils` 0.0.14 for sizes of images and frames.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bridge_data.encoders.chat import Span
from bridge_data.encoders.sequences import FamilySample, Media, padded
from bridge_data.encoders.visuals import Size, VideoFrames, smart_resize
from bridge_data.errors import ConfigError
from bridge_data.samples import Batch, Sample, edataclass

# Tokens

NEVER_LEARNT = frozenset(
    [
        "<|im_start|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|image_pad|>",
        "<|video_pad|>",
        "<|AUDIO|>",
        "<|audio_bos|>",
        "<|audio_eos|>",
        "<image>",
        "<pad>",
        "<|begin_of_text|>",
        "<|finetune_right_pad_id|>",
        "<|step_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|python_tag|>",
        "<|image|>",
        "<image_soft_token>",
        "<audio_soft_token>",
        "<start_of_audio>",
        "<start_of_image>",
        "<end_of_audio>",
        "<end_of_image>",
    ]
)
"""Special tokens that are never labels, in any role."""

_TURN_END = "<|im_end|>"


def never_learnt_ids(tokenizer: Any) -> frozenset[int]:
    """The ids of those of `NEVER_LEARNT` that the tokenizer has as special tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(number for number, token in added.items() if str(token) in NEVER_LEARNT)


def bridge_parts(content: str, media: Mapping[str, tuple[str, str]], *, media_first: bool) -> list[dict[str, str]]:
    """The content of a turn as parts for a chat template; `media` as of `messages_for`.

    Spaces around each text are dropped, line breaks are kept. With `media_first`, images and videos come before the
    texts of their turn.
    """
    pieces = re.split(f"({'|'.join(map(re.escape, media))})", content) if media else [content]
    if len(pieces) == 1:
        return [{"type": "text", "text": content}]
    parts = [
        {"type": media[piece][0]} if piece in media else {"type": "text", "text": piece.strip(" ")}
        for piece in pieces
        if piece
    ]
    return sorted(parts, key=lambda part: part["type"] == "text") if media_first else parts


def turn_ends(text: str, spans: Sequence[Span]) -> list[Span]:
    """The spans of answers with the line break after their end token: it is learnt, too."""
    return [(start, end + (text[:end].endswith(_TURN_END) and text[end : end + 1] == "\n")) for start, end in spans]


# Images and videos

_FACTOR = 28
"""Sides are a multiple of this, for any patch size of the model."""


def utils_size(size: Size, factor: int = _FACTOR) -> Size:
    """The size that `qwen_vl_utils` gives an image: sides are multiples of `factor`."""
    return smart_resize(size, factor, 4 * factor**2, 16_384 * factor**2, least_side=factor)


def resized_by_utils(picture: Image.Image, factor: int = _FACTOR) -> Image.Image:
    """The image in the size of `utils_size`."""
    height, width = utils_size((picture.height, picture.width), factor)
    return picture.resize((width, height))


class UtilsVideo(VideoFrames):
    """A video whose frames `qwen_vl_utils` resizes twice before the model's processor gets them: `size` is the second
    of these sizes."""

    @classmethod
    def of(cls, video: VideoFrames) -> "UtilsVideo":
        """`video`, with the size that its frames are resized to before the processor."""
        num_frames = len(video.frames) + len(video.frames) % 2
        token = _FACTOR**2
        least, share = 128 * token, 128_000 * token * 0.9 / num_frames * 2
        most = max(min(768 * token, share), int(least * 1.05))
        size = smart_resize(utils_size(video.size, 2 * _FACTOR), _FACTOR, least, most, least_side=_FACTOR)
        return cls(video.source, video.num_frames, video.fps, size, video.frames)

    def resized(self, size: Size, resample: Image.Resampling) -> list[Any]:
        """As float32 arrays (3, height, width) of 0 to 255: the processors of videos do not round them."""
        pictures = [resized_by_utils(picture, 2 * _FACTOR) for picture in self.pictures()]
        frames = torch.stack([torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in pictures])
        rounded = _interpolated(frames.float(), self.size).clamp(0, 255).round()
        return list(_interpolated(rounded, size).numpy())


def _interpolated(frames: Tensor, size: Size) -> Tensor:
    if tuple(frames.shape[-2:]) == size:
        return frames
    return torch.nn.functional.interpolate(frames, size, mode="bicubic", antialias=True)


@dataclasses.dataclass
class VisualInputs:
    """What a model takes in addition to tokens, by the parameter names of its `forward`: tensors or None, in layouts of
    the family's processor. It has the fields and methods of Bridge's own container, which the step reads."""

    pixel_values: Tensor | None = None
    pixel_values_videos: Tensor | None = None
    image_grid_thw: Tensor | None = None
    video_grid_thw: Tensor | None = None
    second_per_grid_ts: Tensor | None = None
    image_sizes: Tensor | None = None
    image_position_ids: Tensor | None = None
    mm_token_type_ids: Tensor | None = None

    def as_model_kwargs(self) -> dict[str, Tensor]:
        """The tensors that are not None."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def normalized_for_model(self) -> dict[str, Tensor]:
        """The same, with pixel values (rows, images, channels, height, width) and grids (rows, images, 3) of nested
        images joined along their first two dimensions."""
        tensors = self.as_model_kwargs()
        for name, nested in _NESTED.items():
            if name in tensors and tensors[name].ndim == nested:
                tensors[name] = tensors[name].flatten(0, 1)
        return tensors


_NESTED = {"pixel_values": 5, "pixel_values_videos": 5, "image_grid_thw": 3, "video_grid_thw": 3}


def visual_inputs(media: Media) -> VisualInputs:
    """The media of a batch in Bridge's container.

    Raises:
        ConfigError: if the container has no field for one of them, so that no model of Bridge takes it.
    """
    known = [field.name for field in dataclasses.fields(VisualInputs)]
    if unknown := sorted(media.keys() - known):
        raise ConfigError(
            f"layout='bridge' has no field for {', '.join(unknown)}, which this family makes of images; Bridge's "
            f"models take {', '.join(known)}. Leave layout out, and use a model of transformers"
        )
    return VisualInputs(**media)


# Batches


@edataclass
class PackedSample(FamilySample):
    """A pack whose batch has the bounds of its samples, however many there are."""


def padded_rows(
    samples: Sequence[FamilySample], media: Media, *, pad: int, ignored: int, multiple: int, length: int
) -> dict[str, Any]:
    """B samples as rows of one batch, padded to a `multiple`, or to `length` (0: none).

    `input_ids`, `labels`, `position_ids` and `attention_mask` are int64 (B, S), `loss_mask` float32 (B, S). Up to the
    longest sample rows are padded with `pad`, and after it with token 0. Positions continue through the padding.
    """
    longest = max(sample.length for sample in samples)
    total = length or -(-longest // multiple) * multiple
    shorter = padded([sample.tokens for sample in samples], pad)
    positions = torch.arange(total)
    lengths = torch.tensor([sample.length for sample in samples])
    return _fields(samples, media) | {
        "input_ids": torch.nn.functional.pad(shorter, (0, total - longest)),
        "labels": padded([sample.labels for sample in samples], ignored, total),
        "loss_mask": padded([sample.loss_mask for sample in samples], 0, total),
        "position_ids": positions.repeat(len(samples), 1),
        "attention_mask": (positions < lengths[:, None]).to(torch.int64),
    }


def packed_row(
    rows: Sequence[FamilySample], media: Media, samples: Sequence[Sample], *, pad: int, ignored: int, multiple: int
) -> dict[str, Any]:
    """The samples of `rows`, which are unpadded packs, concatenated in one row; `samples` name its parts.

    Each sample is padded to a `multiple` with token `pad`, and its positions continue through its padding.
    `cu_seqlens_q` int32 (samples + 1,) are bounds without the padding, `cu_seqlens_q_padded` those with it (None if
    `multiple` is 1); `max_seqlen_q` int32 () is the longest sample with it. Those of `kv` are the same.
    """
    lengths = torch.cat([row.cu_seqlens.diff() for row in rows])
    whole = (lengths + multiple - 1) // multiple * multiple
    bounds, bounds_padded = _bounds(lengths), _bounds(whole) if multiple > 1 else None
    longest = whole.max().to(torch.int32)

    def filled(name: str, value: float) -> Tensor:
        pieces = torch.split(torch.cat([getattr(row, name) for row in rows]), lengths.tolist())
        sizes = zip(pieces, whole.tolist(), strict=True)
        fill = torch.nn.functional.pad
        return torch.cat([fill(piece, (0, size - len(piece)), value=value) for piece, size in sizes])[None]

    return _fields(samples, media) | {
        "input_ids": filled("tokens", pad),
        "labels": filled("labels", ignored),
        "loss_mask": filled("loss_mask", 0),
        "position_ids": torch.cat([torch.arange(size) for size in whole.tolist()])[None],
        "cu_seqlens_q": bounds,
        "cu_seqlens_kv": bounds,
        "cu_seqlens_q_padded": bounds_padded,
        "cu_seqlens_kv_padded": bounds_padded,
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
        "total_tokens": int(whole.sum()),
    }


_BOUNDS = (
    "cu_seqlens_q",
    "cu_seqlens_kv",
    "cu_seqlens_q_padded",
    "cu_seqlens_kv_padded",
    "max_seqlen_q",
    "max_seqlen_kv",
    "total_tokens",
)


def _fields(samples: Sequence[Sample], media: Media) -> dict[str, Any]:
    """Provenance, images, and None for all that only some batches have."""
    origin = Batch.from_samples(samples)
    return {
        "__key__": origin.__key__,
        "__restore_key__": origin.__restore_key__,
        "__sources__": origin.__sources__,
        "__keys__": origin.__key__,
        "attention_mask": None,
        **dict.fromkeys(_BOUNDS),
        "visual_inputs": visual_inputs(media),
    }


def _bounds(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
