"""Layouts of batches: `layout="native"` and `layout="bridge"`.

    NativeLayout ─ `FamilyBatch`, equal to what the processors of transformers make
    BridgeLayout ─ a dict for Megatron-Bridge's step for vision-language models

Reads turns, images, encoded samples or packs, and their media. Returns which text has a loss, images for the processor,
and batches. Those of `BridgeLayout` have the keys, dtypes, shapes and values that Bridge's own encoders make of the
same conversations; docs/compatibility.md lists where they differ on purpose. Bridge is not imported. Its batches have
`input_ids`, `labels`, `loss_mask`, `position_ids`, `attention_mask` or the bounds of packed sequences, and
`visual_inputs`. Positions are one number for each token: its models compute M-RoPE from the tokens and grids.

Source: the encoders and `vlm_step` of Megatron-Bridge 0.6.2, and `qwen_vl_utils` 0.0.14 for sizes of images and frames.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bridge_data.encoders.chat import padding_token_of
from bridge_data.encoders.chat_turns import messages_for, messages_in_form
from bridge_data.encoders.encoder_config import ConversationConfig
from bridge_data.encoders.sequences import (
    FamilySample,
    Media,
    batch_family,
    filled_up,
    lengths_of,
    next_token_labels,
    padded,
)
from bridge_data.encoders.tokens import Floats, Ints, MarkedTokens, Span
from bridge_data.encoders.visual_settings import NO_SETTINGS, VisualSettings
from bridge_data.encoders.visuals import Size, VideoFrames, smart_resize
from bridge_data.errors import ConfigError
from bridge_data.samples import Batch, Sample, edataclass


class NativeLayout:
    """Samples are padded to a multiple one by one; a batch is a `FamilyBatch`."""

    has_positions = True
    """Whether samples carry the positions and types of tokens that a model takes; else it computes them."""

    def __init__(self, tokenizer: Any, config: ConversationConfig, seq_length: int) -> None:
        self.pad_id = padding_token_of(tokenizer)
        self._seq_length, self._ignored = seq_length, config.ignore_place_holder
        self._length = seq_length if config.pad_to_max_length else 0
        self._multiple = config.pad_to_multiple_of

    def messages(
        self,
        messages: list[dict[str, Any]],
        template: str,
        media: Mapping[str, tuple[str, str]],
        *,
        media_first: bool = False,
    ) -> list[dict[str, Any]]:
        """The messages in the form that the template reads; `media` as of `messages_for`, `media_first` as of
        `bridge_parts`."""
        return messages_for(template, messages, media)

    def spans_with_loss(self, text: str, spans: list[Span]) -> list[Span]:
        """The ranges of the text of a conversation that have loss; `spans` are those of the answers."""
        return spans

    def learnt(self, marked: MarkedTokens) -> MarkedTokens:
        """The tokens of a conversation, with a mark on those that are learnt."""
        return marked

    def labels(self, marked: MarkedTokens, whole: Callable[[], MarkedTokens]) -> tuple[Ints, Floats]:
        """Labels and loss mask of a decoder, for the tokens that fit; `whole` makes all tokens of the sample."""
        return next_token_labels(marked, self._ignored)

    def filled(self, tensor: Tensor, value: float) -> Tensor:
        """A tensor of a sample, padded with `value` to the multiple."""
        return filled_up(tensor, self._multiple, value)

    def size(self, size: Size, own: VisualSettings = NO_SETTINGS) -> Size:
        """The size in which the processor of Qwen-VL gets an image with settings of its `own`."""
        return size

    def picture(self, picture: Image.Image, own: VisualSettings = NO_SETTINGS) -> Image.Image:
        """The image in that size."""
        return picture

    def video(self, video: VideoFrames) -> VideoFrames:
        """The video as that processor gets it."""
        return video

    def packed(self, pack: FamilySample) -> FamilySample:
        """A pack as `batch` takes it."""
        return pack

    def batch(self, rows: list[FamilySample], media: Media, samples: list[Sample]) -> Batch | dict[str, Any]:
        """A batch of `rows` with their `media`; `samples` are what they were made of."""
        return batch_family(rows, media, pad=self.pad_id, ignored=self._ignored, length=self._length)


class BridgeLayout(NativeLayout):
    """The rows of a batch are padded to a multiple, rather than each sample; the samples of a pack are too. A batch is
    a dict, and packs come in one row, in which `pack_pad_id` (None: the padding token) pads each sample."""

    has_positions = False

    def __init__(
        self, tokenizer: Any, config: ConversationConfig, seq_length: int, pack_pad_id: int | None = 0
    ) -> None:
        super().__init__(tokenizer, config, seq_length)
        self._pack_pad_id = self.pad_id if pack_pad_id is None else pack_pad_id
        added = getattr(tokenizer, "added_tokens_decoder", {})
        never = [number for number, token in added.items() if str(token) in NEVER_LEARNT]
        self._may_be_learnt = np.ones(max(never, default=0) + 2, bool)  # the last stands for all after it
        self._may_be_learnt[never] = False

    def messages(
        self,
        messages: list[dict[str, Any]],
        template: str,
        media: Mapping[str, tuple[str, str]],
        *,
        media_first: bool = False,
    ) -> list[dict[str, Any]]:
        return messages_in_form(template, messages, media, functools.partial(bridge_parts, media_first=media_first))

    def spans_with_loss(self, text: str, spans: list[Span]) -> list[Span]:
        """The answers with the line break after their end token: it is learnt, too."""
        return [
            (start, end + (text.endswith(_TURN_END, 0, end) and text[end : end + 1] == "\n")) for start, end in spans
        ]

    def labels(self, marked: MarkedTokens, whole: Callable[[], MarkedTokens]) -> tuple[Ints, Floats]:
        """The last position of a full sequence learns the token that was cut off after it."""
        labels, loss_mask = super().labels(marked, whole)
        if len(marked) == self._seq_length:
            following = whole()[self._seq_length :]
            if len(following) and following.has_loss[0]:
                labels[-1], loss_mask[-1] = following.ids[0], 1
        return labels, loss_mask

    def learnt(self, marked: MarkedTokens) -> MarkedTokens:
        """Some tokens of conversations are never learnt."""
        return MarkedTokens(marked.ids, marked.has_loss & self._may_be_learnt.take(marked.ids, mode="clip"))

    def filled(self, tensor: Tensor, value: float) -> Tensor:
        return tensor

    def size(self, size: Size, own: VisualSettings = NO_SETTINGS) -> Size:
        return utils_size(size, own=own)

    def picture(self, picture: Image.Image, own: VisualSettings = NO_SETTINGS) -> Image.Image:
        return resized_by_utils(picture, own=own)

    def video(self, video: VideoFrames) -> VideoFrames:
        return UtilsVideo.of(video)

    def packed(self, pack: FamilySample) -> FamilySample:
        return PackedSample.extend(pack)

    def batch(self, rows: list[FamilySample], media: Media, samples: list[Sample]) -> dict[str, Any]:
        ignored, multiple = self._ignored, self._multiple
        if isinstance(rows[0], PackedSample):
            return packed_row(rows, media, samples, pad=self._pack_pad_id, ignored=ignored, multiple=multiple)
        return padded_rows(rows, media, pad=self.pad_id, ignored=ignored, multiple=multiple, length=self._length)


def layout_of(tokenizer: Any, config: ConversationConfig, seq_length: int, pack_pad_id: int | None) -> NativeLayout:
    """The layout that the settings name."""
    if config.layout == "bridge":
        return BridgeLayout(tokenizer, config, seq_length, pack_pad_id)
    return NativeLayout(tokenizer, config, seq_length)


# Tokens for Bridge

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


def bridge_parts(content: str, media: Mapping[str, tuple[str, str]], *, media_first: bool) -> list[dict[str, str]]:
    """The content of a turn as parts for a chat template; `media` as of `messages_for`.

    Spaces around each text are dropped, line breaks are kept. With `media_first`, images and videos come before the
    texts of their turn.
    """
    if not any(placeholder in content for placeholder in media):
        return [{"type": "text", "text": content}]
    pieces = re.split(f"({'|'.join(map(re.escape, media))})", content)
    parts = [
        {"type": media[piece][0]} if piece in media else {"type": "text", "text": piece.strip(" ")}
        for piece in pieces
        if piece
    ]
    return sorted(parts, key=lambda part: part["type"] == "text") if media_first else parts


# Images and videos for Bridge

_FACTOR = 28
"""Sides are a multiple of this, for any patch size of the model."""


def utils_size(size: Size, factor: int = _FACTOR, own: VisualSettings = NO_SETTINGS) -> Size:
    """The size that `qwen_vl_utils` gives an image with settings of its `own`: sides are multiples of `factor`."""
    usual = 4 * factor**2, 16_384 * factor**2
    if own.exact_size is not None:
        return smart_resize(own.exact_size, factor, *usual, least_side=factor)
    return smart_resize(size, factor, *own.image_limits(usual), least_side=factor)


def resized_by_utils(picture: Image.Image, factor: int = _FACTOR, own: VisualSettings = NO_SETTINGS) -> Image.Image:
    """The image in the size of `utils_size`."""
    height, width = utils_size((picture.height, picture.width), factor, own)
    return picture.resize((width, height))


class UtilsVideo(VideoFrames):
    """A video whose frames `qwen_vl_utils` resizes twice before the model's processor gets them: `size` is the second
    of these sizes."""

    @classmethod
    def of(cls, video: VideoFrames) -> "UtilsVideo":
        """`video`, with the size that its frames are resized to before the processor."""
        num_frames, own = len(video.frames) + len(video.frames) % 2, video.own
        token = _FACTOR**2
        least, share = 128 * token, 128_000 * token * 0.9 / num_frames * 2
        most = max(min(768 * token, share), int(least * 1.05))
        if own.exact_size is not None:
            size = utils_size(video.size, own=own)
        else:
            first = utils_size(video.size, 2 * _FACTOR, own)
            size = smart_resize(first, _FACTOR, *own.frame_limits((least, most), num_frames), least_side=_FACTOR)
        return cls(video.source, video.num_frames, video.fps, size, video.frames, own, video.key)

    def resized(self, size: Size, resample: Image.Resampling) -> list[Any]:
        """As float32 arrays (3, height, width) of 0 to 255: the processors of videos do not round them."""
        pictures = [resized_by_utils(picture, 2 * _FACTOR, self.own) for picture in self.pictures()]
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


# Batches for Bridge


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
    types = {name: padded([sample.aligned[name] for sample in samples], 0, total) for name in _types_in(samples)}
    positions = torch.arange(total)
    lengths = torch.tensor([sample.length for sample in samples])
    return _fields(samples, media | types) | {
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
    lengths = lengths_of(rows)
    whole = (lengths + multiple - 1) // multiple * multiple
    bounds, bounds_padded = _bounds(lengths), _bounds(whole)
    total, longest = int(bounds_padded[-1]), whole.max().to(torch.int32)

    def filled(name: str, value: float) -> Tensor:
        return in_one_row([getattr(row, name) for row in rows], value)

    def in_one_row(tensors: Sequence[Tensor], value: float) -> Tensor:
        joined = torch.cat([*tensors])
        if multiple == 1:
            return joined[None]
        pieces = torch.split(joined, lengths.tolist())
        sizes = zip(pieces, whole.tolist(), strict=True)
        fill = torch.nn.functional.pad
        return torch.cat([fill(piece, (0, size - len(piece)), value=value) for piece, size in sizes])[None]

    types = {name: in_one_row([row.aligned[name] for row in rows], 0) for name in _types_in(rows)}
    return _fields(samples, media | types) | {
        "input_ids": filled("tokens", pad),
        "labels": filled("labels", ignored),
        "loss_mask": filled("loss_mask", 0),
        "position_ids": (torch.arange(total) - bounds_padded[:-1].repeat_interleave(whole))[None],
        "cu_seqlens_q": bounds,
        "cu_seqlens_kv": bounds,
        **dict.fromkeys(("cu_seqlens_q_padded", "cu_seqlens_kv_padded"), bounds_padded if multiple > 1 else None),
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
        "total_tokens": total,
    }


def _types_in(samples: Sequence[FamilySample]) -> list[str]:
    """What the container has of each token."""
    known = {field.name for field in dataclasses.fields(VisualInputs)}
    return [name for name in samples[0].aligned if name in known]


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
