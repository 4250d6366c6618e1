"""Videos in all their forms give the frames that they said."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from bridge_data.decode.av import AVDecoder
from bridge_data.encoders import VideoSampling
from bridge_data.encoders.videos import open_video
from bridge_data.errors import ConfigError, SampleError
from tests.decode.av.media import decode_all, numbers, write
from tests.encoders.qwen_parts import make_family


def choose(num_frames: int, fps: float, sampling: VideoSampling) -> Sequence[int]:
    """The frames that Qwen2-VL takes."""
    return make_family("qwen2_vl").choose_frames(num_frames, fps, sampling)


def test_encoded_videos_give_the_frames_chosen() -> None:
    data = write("mp4", video="libx264")
    for source in (data, AVDecoder(data)):
        video = open_video(source, "v", VideoSampling(fps=4), choose)
        assert (video.num_frames, video.fps, video.size) == (50, 25.0, (48, 64))
        assert video.frames == (0, 6, 12, 18, 25, 31, 37, 43)
        assert video.sampled_fps == 4
        shown = np.stack([np.asarray(picture) for picture in video.pictures()]).transpose(0, 3, 1, 2)
        assert numbers(shown) == list(video.frames)
        assert np.array_equal(shown, decode_all(data)[list(video.frames)])


def test_tensors_give_the_frames_chosen() -> None:
    frames = torch.randint(0, 255, (48, 3, 6, 8), dtype=torch.uint8)
    video = open_video(frames, "v", VideoSampling(fps=2, default_fps=24), choose)
    assert video.frames == (0, 12, 24, 36)
    shown = np.stack([np.asarray(picture) for picture in video.pictures()]).transpose(0, 3, 1, 2)
    assert np.array_equal(shown, frames[[0, 12, 24, 36]].numpy())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (torch.zeros(4, 6, 8, 3, dtype=torch.uint8), r"a video is torch.uint8 \(4, 6, 8, 3\)"),
        (torch.zeros(4, 3, 6, 8), "a video is torch.float32"),
        (torch.zeros(0, 3, 6, 8, dtype=torch.uint8), "a video has no frame"),
        ("file.mp4", "a video is str; expected an AVDecoder, bytes, or frames"),
        (write("wav", audio="pcm_s16le", num_samples=1000), "the medium has no video"),
    ],
)
def test_what_is_no_video_is_refused(source: Any, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        open_video(source, "v", VideoSampling(), choose)


@pytest.mark.parametrize("options", [{"fps": 0}, {"min_frames": 0}, {"min_frames": 9, "max_frames": 8}])
def test_wrong_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        VideoSampling(**options)
