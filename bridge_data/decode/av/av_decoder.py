"""The audio-video decoder: a lazy handle on a medium, from which clips are taken.

Enters: bytes, or a binary file. Leaves: clips as tensors. Guarantees: nothing is read before it is asked for, and only
what is asked for is decoded; what is open is released by `close`, at the end of a `with` block, or with the decoder; a
decoder travels to other processes closed, with its bytes.

Source: the names and signatures are those of Energon's `AVDecoder`.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import Any, BinaryIO, Literal, Self, overload

from bridge_data.decode.av.audio import Audio
from bridge_data.decode.av.container import Medium
from bridge_data.decode.av.data import AVData
from bridge_data.decode.av.frames import read_clips
from bridge_data.decode.av.ranges import Clip, frame_ranges, sample_ranges, uniform_clips
from bridge_data.decode.av.video import Video
from bridge_data.errors import ConfigError, SampleError
from bridge_data.later import torch
from bridge_data.shards.media_metadata import AVMetadata

_WHOLE: list[Clip] = [(0, math.inf)]


class AVDecoder:
    """Takes clips of video and audio out of `stream`: the bytes of a medium, or a binary file that can be sought.

    Times count from the start of the medium. `suppress_warnings` leaves out the warning about videos without usable
    timestamps. A decoder that was closed opens again when it is used. Every method may raise:

    Raises:
        ConfigError: if PyAV is not installed.
        SampleError: if the medium is damaged, or not of a kind that FFmpeg knows.
    """

    def __init__(self, stream: BinaryIO | bytes, suppress_warnings: bool = False) -> None:
        if hasattr(stream, "encoding"):
            raise ConfigError("AVDecoder: the file was opened as text; open it with mode 'rb'")
        self.stream: BinaryIO = io.BytesIO(stream) if isinstance(stream, (bytes, bytearray, memoryview)) else stream
        self.suppress_warnings = suppress_warnings
        self._medium: Medium | None = None
        self._video: Video | None = None
        self._audio: Audio | None = None

    # What it holds

    def has_video_stream(self) -> bool:
        """Whether there is video; the cover of music is none."""
        return "video" in self._open().tracks

    def has_audio_stream(self) -> bool:
        """Whether there is audio."""
        return "audio" in self._open().tracks

    def get_metadata(
        self,
        get_video: bool = True,
        get_video_duration: bool = True,
        get_video_frame_count: bool = True,
        get_video_frame_size: bool = True,
        get_audio: bool = True,
        get_audio_duration: bool = True,
        get_audio_num_samples: bool = False,
    ) -> AVMetadata:
        """A description of the medium. What its header tells costs nothing; the duration where it does not, and the
        count of frames, take a pass over the packets, and `get_audio_num_samples` decodes the last of them as well."""
        medium, metadata = self._open(), AVMetadata()
        if get_video and "video" in medium.tracks:
            facts = medium.tracks["video"].facts
            metadata.video_fps = float(facts.rate) if facts.rate else None
            metadata.video_duration = facts.duration_s
            if metadata.video_duration is None and get_video_duration:
                video = self._open_video()
                metadata.video_duration = video.duration_s - video.span_s(range(1))[0]
            if get_video_frame_count:
                metadata.video_num_frames = len(self._open_video())
            if get_video_frame_size:
                metadata.video_width, metadata.video_height = facts.size
        if get_audio and "audio" in medium.tracks:
            facts = medium.tracks["audio"].facts
            metadata.audio_sample_rate, metadata.audio_channels = facts.sample_rate, facts.channels
            if get_audio_num_samples:
                metadata.audio_num_samples = self._open_audio().num_samples
            metadata.audio_duration = facts.duration_s
            if metadata.audio_duration is None and get_audio_duration:
                audio = self._open_audio()
                metadata.audio_duration = audio.num_samples / audio.rate
        return metadata

    def get_video_fps(self) -> float:
        """Frames a second, on average."""
        fps = self.get_metadata(
            get_video_duration=False, get_video_frame_count=False, get_video_frame_size=False, get_audio=False
        ).video_fps
        if fps is None:
            raise SampleError("the medium has no video, or its video no frame rate")
        return fps

    def get_audio_samples_per_second(self) -> int:
        """Samples a second of each channel."""
        rate = self.get_metadata(get_video=False, get_audio_duration=False).audio_sample_rate
        if not rate:
            raise SampleError("the medium has no audio, or its audio no sample rate")
        return rate

    @overload
    def get_video_duration(self, get_frame_count: Literal[True]) -> tuple[float | None, int]: ...
    @overload
    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]: ...
    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]:
        """(seconds of video, number of frames if `get_frame_count`)."""
        metadata = self.get_metadata(get_video_frame_count=get_frame_count, get_video_frame_size=False, get_audio=False)
        return metadata.video_duration, metadata.video_num_frames

    def get_audio_duration(self) -> float | None:
        """Seconds of audio; None if there is none."""
        return self.get_metadata(get_video=False).audio_duration

    # What is taken out of it

    def get_clips(
        self,
        video_clip_ranges: Sequence[Clip] | None = None,
        audio_clip_ranges: Sequence[Clip] | None = None,
        video_unit: Literal["frames", "seconds"] = "seconds",
        audio_unit: Literal["samples", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
        video_stride: int = 1,
    ) -> AVData:
        """Clips of both kinds, at the ranges given; see `get_video_clips` and `get_audio_clips`."""
        data = AVData(video_clips=[], video_timestamps=[], audio_clips=[], audio_timestamps=[])
        if video_clip_ranges is not None:
            data.video_clips, data.video_timestamps = self.get_video_clips(
                video_clip_ranges, video_unit, video_out_frame_size, video_stride
            )
        if audio_clip_ranges is not None:
            data.audio_clips, data.audio_timestamps = self.get_audio_clips(audio_clip_ranges, audio_unit)
        return data

    def get_video_clips(
        self,
        video_clip_ranges: Sequence[Clip],
        video_unit: Literal["frames", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
        video_stride: int = 1,
    ) -> tuple[list[torch.Tensor], list[tuple[float, float]]]:
        """Clips of video, uint8 (frames, 3, height, width), and the seconds at which each begins and ends.

        Args:
            video_clip_ranges: (start, end), both included; an end beyond the video, or `inf`, is the end of the video.
            video_unit: frame numbers in the order of display, or seconds: the frames on screen at some time from start
                to end.
            video_out_frame_size: (width, height) to scale to, bilinearly.
            video_stride: take every so many frames, from the first one on.

        Raises:
            SampleError: if there is no video, a range is empty, begins before 0 or after the video, or does not decode.
        """
        size = video_out_frame_size
        if size is not None and (len(size) != 2 or any(int(side) != side or side < 1 for side in size)):
            raise ConfigError(f"video_out_frame_size={size!r}: expected (width, height) in pixels, each 1 or more")
        video = self._open_video()
        frames = frame_ranges(video, video_clip_ranges, video_unit, video_stride)
        return read_clips(video, frames, size), [video.span_s(clip) for clip in frames]

    def get_audio_clips(
        self, audio_clip_ranges: Sequence[Clip], audio_unit: Literal["samples", "seconds"] = "seconds"
    ) -> tuple[list[torch.Tensor], list[tuple[float, float]]]:
        """Clips of audio, (channels, samples) of the codec's own type, and the seconds at which each begins and ends.

        Args:
            audio_clip_ranges: (start, end), the end excluded; one beyond the audio, or `inf`, is the end of the audio.
            audio_unit: sample numbers, or seconds.

        Raises:
            SampleError: if there is no audio, a range is empty, begins before 0 or after the audio, or does not decode.
        """
        audio = self._open_audio()
        samples = sample_ranges(audio, audio_clip_ranges, audio_unit)
        return [torch.from_numpy(audio.read(clip)) for clip in samples], [audio.span_s(clip) for clip in samples]

    def get_video(self) -> AVData:
        """All of the video, as one clip."""
        return self.get_clips(video_clip_ranges=_WHOLE)

    def get_audio(self) -> AVData:
        """All of the audio, as one clip."""
        return self.get_clips(audio_clip_ranges=_WHOLE)

    def get_video_with_audio(self) -> AVData:
        """All of both, as one clip each."""
        return self.get_clips(video_clip_ranges=_WHOLE, audio_clip_ranges=_WHOLE)

    def get_frames(self, video_decode_audio: bool = False) -> AVData:
        """Everything: of a video its frames, with `video_decode_audio` its audio too if it has any; else the audio."""
        if not self.has_video_stream():
            return self.get_audio()
        return self.get_video_with_audio() if video_decode_audio and self.has_audio_stream() else self.get_video()

    @overload
    def get_single_frames_uniform(
        self,
        num_frames: int = 16,
        *,
        video_out_frame_size: tuple[int, int] | None = None,
        return_timestamps: Literal[False] = False,
    ) -> torch.Tensor: ...
    @overload
    def get_single_frames_uniform(
        self,
        num_frames: int = 16,
        *,
        video_out_frame_size: tuple[int, int] | None = None,
        return_timestamps: Literal[True],
    ) -> tuple[torch.Tensor, list[float]]: ...
    def get_single_frames_uniform(
        self,
        num_frames: int = 16,
        *,
        video_out_frame_size: tuple[int, int] | None = None,
        return_timestamps: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, list[float]]:
        """Frames at equal distances, from the first to the last, uint8 (num_frames, 3, height, width); with
        `return_timestamps` also the second at which each begins."""
        video = self._open_video()
        clips = uniform_clips(num_frames, 0, *_middles(video))
        frames = frame_ranges(video, clips, "seconds", 1)
        tensor = torch.cat(read_clips(video, frames, video_out_frame_size))
        return (tensor, [video.span_s(frame)[0] for frame in frames]) if return_timestamps else tensor

    def get_clips_uniform(
        self,
        clip_duration_seconds: float,
        num_clips: int,
        request_video: bool | None = None,
        request_audio: bool = False,
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> AVData:
        """`num_clips` clips of one duration at equal distances: the first begins with the medium, the last ends with it
        (with the shorter one of video and audio, if both are asked for).

        `request_video` None means: if there is video. A duration of 0 gives single frames.

        Raises:
            ConfigError: if neither is asked for. SampleError: if the medium is shorter than one clip.
        """
        with_video = self.has_video_stream() or not request_audio if request_video is None else request_video
        if not (with_video or request_audio):
            raise ConfigError("get_clips_uniform: ask for at least one of request_video and request_audio")
        ends = [self._open_video().duration_s] if with_video else []
        ends += [self._open_audio().duration_s] if request_audio else []
        begin = 0.0
        if with_video and clip_duration_seconds == 0:
            begin, ends[0] = _middles(self._open_video())
        clips = uniform_clips(num_clips, clip_duration_seconds, begin, min(ends))
        return self.get_clips(
            video_clip_ranges=clips if with_video else None,
            audio_clip_ranges=clips if request_audio else None,
            video_out_frame_size=video_out_frame_size,
        )

    # What it keeps open

    def close(self) -> None:
        """Release the container, its decoders and the index; not a file that was given. Using it opens it again."""
        if self._medium is not None:
            self._medium.close()
        self._medium = self._video = self._audio = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_medium", None) is not None:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"stream": self.stream, "suppress_warnings": self.suppress_warnings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"AVDecoder(stream={self.stream!r})"

    def _open(self) -> Medium:
        if self._medium is None:
            self._medium = Medium(self.stream)
        return self._medium

    def _open_video(self) -> Video:
        if self._video is None:
            medium = self._open()
            if "video" not in medium.tracks:
                raise SampleError(f"video was asked for, but the medium has {_list(medium)}")
            self._video = Video(medium, medium.tracks["video"])
            if not (self._video.is_timed or self.suppress_warnings):
                warnings.warn(
                    "the video has no usable timestamps: its frames are timed by the frame rate, and each reading "
                    "decodes it from the beginning (AVDecoder(suppress_warnings=True) leaves this warning out)",
                    RuntimeWarning,
                    stacklevel=4,
                )
        return self._video

    def _open_audio(self) -> Audio:
        if self._audio is None:
            medium = self._open()
            if "audio" not in medium.tracks:
                raise SampleError(f"audio was asked for, but the medium has {_list(medium)}")
            self._audio = Audio(medium, medium.tracks["audio"])
        return self._audio


def _middles(video: Video) -> tuple[float, float]:
    """The times in the middle of the first frame and of the last."""
    first, last = (sum(video.span_s(range(number, number + 1))) / 2 for number in (0, len(video) - 1))
    return first, last


def _list(medium: Medium) -> str:
    return f"only {' and '.join(medium.tracks)}" if medium.tracks else "neither video nor audio"
