"""Videos on their way to a model: which of their frames are taken, known before any is decoded.

Enters: videos as `AVDecoder`, encoded bytes, or frames. Leaves: `VideoFrames`, which say how many frames there are of
which size, and give them. Guarantee: a video gives the frames that it said.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from PIL import Image

from bridge_data.decode.av import AVDecoder
from bridge_data.encoders.family import Size
from bridge_data.errors import ConfigError, SampleError


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VideoSampling:
    """Which frames are taken: `fps` a second, but `min_frames` (where there are so many) and at most `max_frames`; with
    `fps=None`, all. Frames that come without a rate are `default_fps` a second.

    Raises:
        ConfigError: if a number is out of range.
    """

    fps: float | None = 2.0
    min_frames: int = 4
    max_frames: int = 768
    default_fps: float = 24.0

    def __post_init__(self) -> None:
        for name in ("fps", "min_frames", "max_frames", "default_fps"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"VideoSampling({name}={value}): expected more than 0")
        if self.min_frames > self.max_frames:
            raise ConfigError(f"VideoSampling(min_frames={self.min_frames}): more than max_frames={self.max_frames}")


class FrameChoice(Protocol):
    """How a family chooses frames."""

    def __call__(self, num_frames: int, fps: float, sampling: VideoSampling) -> Sequence[int]:
        """The numbers of the frames that are taken, of so many at this rate."""


@dataclasses.dataclass(frozen=True, slots=True)
class VideoFrames:
    """`frames` are those taken, of `num_frames` frames of this `size`, at `fps`."""

    source: Any
    num_frames: int
    fps: float
    size: Size
    frames: tuple[int, ...]

    @property
    def sampled_fps(self) -> float:
        """Frames taken a second."""
        return len(self.frames) / self.num_frames * self.fps

    def pictures(self) -> list[Image.Image]:
        """The frames that are taken, decoded.

        Raises:
            SampleError: if one cannot be decoded.
        """
        if isinstance(self.source, AVDecoder):
            clips, _ = self.source.get_video_clips([(number, number) for number in self.frames], video_unit="frames")
            self.source.close()
            frames = torch.cat(clips)
        else:
            frames = self.source[list(self.frames)]
        return [Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy()) for frame in frames]


def open_video(source: Any, key: str, sampling: VideoSampling, choose: FrameChoice) -> VideoFrames:
    """A video of sample `key`; of an encoded one the header is read, and its packets are counted.

    Raises:
        SampleError: if it cannot be read, has no frame, or is not of one of the forms that `VideoConversationSample`
            takes.
    """
    if isinstance(source, bytes):
        source = AVDecoder(source)
    if isinstance(source, AVDecoder):
        metadata = source.get_metadata(get_video_duration=False, get_audio=False)
        source.close()
        num_frames, width, height = metadata.video_num_frames, metadata.video_width, metadata.video_height
        if not num_frames or not width or not height:
            raise SampleError(f"sample {key!r}: the medium has no video")
        fps = metadata.video_fps or sampling.default_fps
    elif isinstance(source, torch.Tensor) and source.ndim == 4 and source.shape[1] == 3 and source.dtype == torch.uint8:
        num_frames, _, height, width = source.shape
        fps = sampling.default_fps
        if not num_frames:
            raise SampleError(f"sample {key!r}: a video has no frame")
    else:
        got = f"{source.dtype} {tuple(source.shape)}" if isinstance(source, torch.Tensor) else type(source).__name__
        raise SampleError(
            f"sample {key!r}: a video is {got}; expected an AVDecoder, bytes, or frames as a uint8 tensor "
            "(frames, 3, height, width)"
        )
    frames = range(num_frames) if sampling.fps is None else choose(num_frames, fps, sampling)
    return VideoFrames(source, num_frames, fps, (height, width), tuple(frames))
