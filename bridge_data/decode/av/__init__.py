"""Video and audio: clips of a medium, decoded on request by PyAV (`pip install av`).

`AVDecoder` decodes. The names here are Energon's, with its arguments and results: the decoder of media parts, and
functions for evenly spaced clips and frames. They read the bytes of a part, or an `AVDecoder`, and return an
`AVDecoder`, an `AVData`, a PyAV container, or a tensor of frames.

Source: Energon's `AVWebdatasetDecoder` (this one knows more extensions) and `megatron.energon.av`.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, overload

from bridge_data.decode.av.av_decoder import AVDecoder
from bridge_data.decode.av.clips import AVData
from bridge_data.decode.av.container import open_container
from bridge_data.decode.media_kinds import AV_EXTENSIONS
from bridge_data.errors import ConfigError
from bridge_data.later import torch
from bridge_data.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from av.container import InputContainer

__all__ = [
    "AV_EXTENSIONS",
    "AVData",
    "AVDecoder",
    "AVDecoderType",
    "AVWebdatasetDecoder",
    "get_clips_uniform",
    "get_single_frames_uniform",
]

AVDecoderType: TypeAlias = Literal["torch", "AVDecoder", "pyav"]


class AVWebdatasetDecoder:
    """Decodes video and audio parts.

    `av_decode="AVDecoder"` gives an `AVDecoder`, which decodes lazily; `"torch"` the `AVData` of the whole medium, with
    the audio of a video if `video_decode_audio`; `"pyav"` a PyAV container. `limits` bound what is decoded.

    Raises:
        ConfigError: for an unknown `av_decode`.
    """

    def __init__(
        self, video_decode_audio: bool, av_decode: AVDecoderType = "AVDecoder", *, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        if av_decode not in get_args(AVDecoderType):
            raise ConfigError(f"av_decode={av_decode!r}: expected one of {', '.join(get_args(AVDecoderType))}")
        self.video_decode_audio = video_decode_audio
        self.av_decode = av_decode
        self.limits = limits

    def decode(self, content: bytes) -> AVDecoder | AVData | InputContainer:
        if self.av_decode == "AVDecoder":
            return AVDecoder(content, limits=self.limits)
        if self.av_decode == "pyav":
            return open_container(io.BytesIO(content), self.limits)
        with AVDecoder(content, limits=self.limits) as decoder:
            return decoder.get_frames(video_decode_audio=self.video_decode_audio)

    def __call__(self, key: str, data: bytes) -> Any:
        """Decode the part named `key`; None if its extension is not in `AV_EXTENSIONS`."""
        return self.decode(data) if key.lower().rpartition(".")[2] in AV_EXTENSIONS else None


def get_clips_uniform(
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool | None = None,
    request_audio: bool = False,
    video_out_frame_size: tuple[int, int] | None = None,
) -> AVData:
    """See `AVDecoder.get_clips_uniform`."""
    return av_decoder.get_clips_uniform(
        clip_duration_seconds, num_clips, request_video, request_audio, video_out_frame_size
    )


@overload
def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: Literal[False] = False,
) -> torch.Tensor: ...
@overload
def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: Literal[True],
) -> tuple[torch.Tensor, list[float]]: ...
def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, list[float]]:
    """See `AVDecoder.get_single_frames_uniform`."""
    if return_timestamps:
        return av_decoder.get_single_frames_uniform(
            num_frames, video_out_frame_size=video_out_frame_size, return_timestamps=True
        )
    return av_decoder.get_single_frames_uniform(num_frames, video_out_frame_size=video_out_frame_size)
