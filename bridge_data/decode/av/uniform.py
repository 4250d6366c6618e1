"""Clips and frames at equal distances over a medium, as functions.

Source: the names and signatures are those of Energon's `megatron.energon.av`.
"""

from __future__ import annotations

from typing import Literal, overload

from bridge_data.decode.av.av_decoder import AVDecoder
from bridge_data.decode.av.data import AVData
from bridge_data.later import torch


def get_clips_uniform(
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool | None = None,
    request_audio: bool = False,
    video_out_frame_size: tuple[int, int] | None = None,
) -> AVData:
    """`AVDecoder.get_clips_uniform`."""
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
    """`AVDecoder.get_single_frames_uniform`."""
    if return_timestamps:
        return av_decoder.get_single_frames_uniform(
            num_frames, video_out_frame_size=video_out_frame_size, return_timestamps=True
        )
    return av_decoder.get_single_frames_uniform(num_frames, video_out_frame_size=video_out_frame_size)
