"""Clips that are no clips."""

import math
from typing import Any

import pytest

from bridge_data.decode.av import AVDecoder
from bridge_data.errors import SampleError
from tests.decode.av.media import decoder_of, sound


@pytest.mark.parametrize(
    ("clip", "unit", "message"),
    [
        (
            (50, 60),
            "frames",
            r"video clip \(50, 60\) in frames begins after the video, which has 50 frames and ends at 2",
        ),
        ((2.0, 3.0), "seconds", r"clip \(2\.0, 3\.0\) in seconds begins after the video"),
        ((-1, 3), "frames", r"clip \(-1, 3\) in frames begins before 0"),
        ((5, 4), "frames", r"clip \(5, 4\) in frames is empty: its end comes before its start"),
        ((1, math.nan), "seconds", "expected numbers"),
        ((0.5, 3), "frames", "frames are whole numbers; give fractions in seconds"),
        (3, "frames", r"expected a pair of numbers, \(start, end\)"),
        (("a", 3), "frames", "expected a pair of numbers"),
    ],
)
def test_clips_that_are_none(clip: Any, unit: Any, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        decoder_of("mp4 with B-frames").get_video_clips([(0, 1), clip], unit)


@pytest.mark.parametrize(
    ("clip", "unit", "message"),
    [
        ((200_000, 200_001), "samples", r"audio clip \(200000, 200001\) in samples holds no sample .* 200000 of them"),
        ((99, 100), "seconds", r"clip \(99, 100\) in seconds holds no sample of the audio"),
        ((-0.5, 1), "seconds", "begins before 0"),
        ((7, 7), "samples", r"clip \(7, 7\) in samples is empty: nothing is in it"),
        ((2, 1), "seconds", "is empty: its end comes before its start"),
    ],
)
def test_audio_clips_that_are_none(clip: Any, unit: Any, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        AVDecoder(sound("wav")[0]).get_audio_clips([clip], unit)
