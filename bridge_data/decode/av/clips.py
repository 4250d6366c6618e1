"""Clips: the ranges that a caller requests, and the data returned.

Reads (start, end) pairs in frames, audio samples or seconds. Returns ranges of frame or sample numbers, which are
within the medium and never empty. A video range includes its end, as in Energon: frames `(0, 15)` are 16 frames, and
seconds `(2, 2)` is the frame on screen at that time. An audio range excludes it: `(0, 100)` is 100 samples.

Source: the fields of `AVData` are Energon's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from bridge_data.decode.av.audio import Sound
from bridge_data.decode.av.video import Video
from bridge_data.errors import ConfigError, SampleError
from bridge_data.later import torch
from bridge_data.samples import edataclass

Clip: TypeAlias = tuple[float, float]
"""(start, end)"""


@edataclass
class AVData:
    """Clips of a medium. Times are (start, end) in seconds from the start of the medium."""

    #: Each clip uint8 RGB, (frames, 3, height, width)
    video_clips: list[torch.Tensor] | None
    #: Start of each clip's first frame, and end of its last one
    video_timestamps: list[tuple[float, float]] | None
    #: Each clip (channels, samples), of the codec's own dtype: float32, int16, ...
    audio_clips: list[torch.Tensor] | None
    #: Start of each clip's first sample, and end of its last one
    audio_timestamps: list[tuple[float, float]] | None


def frame_ranges(video: Video, clips: Sequence[Clip], unit: str, stride: int) -> list[range]:
    """The frame numbers of each clip, every `stride`-th."""
    _check_unit("video_unit", unit, "frames")
    if stride < 1:
        raise ConfigError(f"video_stride={stride}: expected 1 (every frame) or more")
    ranges = []
    for clip in clips:
        where = _check_clip("video", clip, unit, is_end_included=True)
        start, end = clip
        if unit == "frames":
            last = len(video) - 1 if end == math.inf else min(int(end), len(video) - 1)
            frames = range(int(start), last + 1, stride)
        else:
            frames = video.frames_shown(start, end)[::stride]
        if not frames:
            raise SampleError(
                f"{where} begins after the video, which has {len(video)} frames and ends at {video.duration_s:.6g} s"
            )
        ranges.append(frames)
    return ranges


def sample_ranges(audio: Sound, clips: Sequence[Clip], unit: str) -> list[range]:
    """The audio sample numbers of each clip."""
    _check_unit("audio_unit", unit, "samples")
    ranges = []
    for clip in clips:
        where = _check_clip("audio", clip, unit, is_end_included=False)
        start, end = clip
        if unit == "samples":
            first, length = int(start), end - start
        else:
            first, length = audio.sample_at(start), (end - max(start, audio.start_s)) * audio.rate
        stop = audio.num_samples if first + length >= audio.num_samples else first + int(length + 0.5)
        if first >= stop:
            raise SampleError(
                f"{where} holds no sample of the audio, which has {audio.num_samples} of them, at {audio.rate} Hz from "
                f"{audio.start_s:.6g} s to {audio.duration_s:.6g} s"
            )
        ranges.append(range(first, stop))
    return ranges


def uniform_clips(num_clips: int, clip_s: float, begin_s: float, end_s: float) -> list[Clip]:
    """Evenly spaced clips of `clip_s` seconds: the first starts at `begin_s`, the last ends at `end_s`."""
    if num_clips < 1:
        raise ConfigError(f"{num_clips} clips or frames: expected 1 or more")
    if not clip_s >= 0:
        raise ConfigError(f"clip_duration_seconds={clip_s}: expected 0 (single frames) or more")
    if clip_s > end_s - begin_s:
        raise SampleError(f"a clip of {clip_s:.6g} s was asked for, but the medium ends at {end_s:.6g} s")
    return [(float(start), float(start) + clip_s) for start in np.linspace(begin_s, end_s - clip_s, num_clips)]


def _check_unit(name: str, unit: str, own: str) -> None:
    if unit not in (own, "seconds"):
        raise ConfigError(f'{name}={unit!r}: expected "{own}" or "seconds"')


def _check_clip(kind: str, clip: Clip, unit: str, *, is_end_included: bool) -> str:
    """Check a clip, with `SampleError` if it is not a valid range; returns its description for messages."""
    where = f"{kind} clip {clip!r} in {unit}"
    try:
        start, end = clip
        numbers = float(start), float(end)
    except (TypeError, ValueError):
        raise SampleError(f"{where}: expected a pair of numbers, (start, end)") from None
    if any(math.isnan(number) for number in numbers):
        raise SampleError(f"{where}: expected numbers")
    if numbers[0] < 0:
        raise SampleError(f"{where} begins before 0; clips are counted from the start of the medium")
    if unit != "seconds" and any(number != math.inf and number % 1 for number in numbers):
        raise SampleError(f"{where}: {unit} are whole numbers; give fractions in seconds")
    if start > end or (start == end and not is_end_included):
        raise SampleError(
            f"{where} is empty: {'its end comes before its start' if start > end else 'nothing is in it'}"
        )
    return where
