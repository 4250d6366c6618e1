"""The audio-video decoder: a lazy handle on a medium, from which clips are decoded on request.

Reads bytes, or a seekable binary file. Returns clips as tensors, and metadata. Nothing is read before it is needed, and
only what is requested is decoded. Resources are freed by `close`, at the end of a `with` block, or with the decoder. A
pickled decoder has its bytes, but no open container.

Source: the names and signatures are those of Energon's `AVDecoder`.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import Any, BinaryIO, Literal, Self, overload

from bridge_data.decode.av.audio import Audio, Sound
from bridge_data.decode.av.clips import AVData, Clip, frame_ranges, sample_ranges, uniform_clips
from bridge_data.decode.av.container import Medium
from bridge_data.decode.av.video import Video, read_clips
from bridge_data.decode.av.waveform import Waveform, open_waveform
from bridge_data.decode.media_metadata import AVMetadata
from bridge_data.errors import ConfigError, SampleError
from bridge_data.later import torch
from bridge_data.limits import DEFAULT_LIMITS, Limits

_WHOLE: list[Clip] = [(0, math.inf)]


class AVDecoder:
    """Decodes clips of video and audio from `stream`: the bytes of a medium, or a seekable binary file.

    Times are relative to the start of the medium. `suppress_warnings` silences the warning about videos without usable
    timestamps. `limits` bound the clips of one call. A closed decoder reopens when it is used. Every method may raise:

    Raises:
        ConfigError: if PyAV is not installed.
        SampleError: if the medium is damaged, or FFmpeg does not know its format.
    """

    def __init__(
        self, stream: BinaryIO | bytes, suppress_warnings: bool = False, *, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        if hasattr(stream, "encoding"):
            raise ConfigError("AVDecoder: the file was opened as text; open it with mode 'rb'")
        self.stream: BinaryIO = io.BytesIO(stream) if isinstance(stream, (bytes, bytearray, memoryview)) else stream
        self.suppress_warnings = suppress_warnings
        self.limits = limits
        self._medium: Medium | None = None
        self._video: Video | None = None
        self._audio: Sound | None = None

    # Metadata

    def has_video_stream(self) -> bool:
        """Whether there is video; a cover picture does not count."""
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
        """Metadata of the medium.

        The header is enough for most fields. The frame count, and durations that the header lacks, need a pass over all
        packets; `get_audio_num_samples` also decodes the last packets.
        """
        medium, metadata = self._open(), AVMetadata()
        if get_video and "video" in medium.tracks:
            header = medium.tracks["video"].header
            metadata.video_fps = float(header.rate) if header.rate else None
            metadata.video_duration = header.duration_s
            if metadata.video_duration is None and get_video_duration:
                video = self._open_video()
                metadata.video_duration = video.duration_s - video.span_s(range(1))[0]
            if get_video_frame_count:
                metadata.video_num_frames = len(self._open_video())
            if get_video_frame_size:
                metadata.video_width, metadata.video_height = header.size
        if get_audio and "audio" in medium.tracks:
            header = medium.tracks["audio"].header
            metadata.audio_sample_rate, metadata.audio_channels = header.sample_rate, header.channels
            if get_audio_num_samples:
                metadata.audio_num_samples = self._open_audio().num_samples
            metadata.audio_duration = header.duration_s
            if metadata.audio_duration is None and get_audio_duration:
                audio = self._open_audio()
                metadata.audio_duration = audio.num_samples / audio.rate
        return metadata

    def get_video_fps(self) -> float:
        """Average frames per second."""
        fps = self.get_metadata(
            get_video_duration=False, get_video_frame_count=False, get_video_frame_size=False, get_audio=False
        ).video_fps
        if fps is None:
            raise SampleError("the medium has no video, or its video no frame rate")
        return fps

    def get_audio_samples_per_second(self) -> int:
        """The sample rate."""
        rate = self.get_metadata(get_video=False, get_audio_duration=False).audio_sample_rate
        if not rate:
            raise SampleError("the medium has no audio, or its audio no sample rate")
        return rate

    @overload
    def get_video_duration(self, get_frame_count: Literal[True]) -> tuple[float | None, int]: ...
    @overload
    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]: ...
    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]:
        """(duration of the video in seconds, number of frames if `get_frame_count`)."""
        metadata = self.get_metadata(get_video_frame_count=get_frame_count, get_video_frame_size=False, get_audio=False)
        return metadata.video_duration, metadata.video_num_frames

    def get_audio_duration(self) -> float | None:
        """Duration of the audio in seconds; None if there is no audio."""
        return self.get_metadata(get_video=False).audio_duration

    # Clips

    def get_clips(
        self,
        video_clip_ranges: Sequence[Clip] | None = None,
        audio_clip_ranges: Sequence[Clip] | None = None,
        video_unit: Literal["frames", "seconds"] = "seconds",
        audio_unit: Literal["samples", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
        video_stride: int = 1,
    ) -> AVData:
        """Clips of video and audio; see `get_video_clips` and `get_audio_clips`."""
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
        """(clips, times): clips of video, uint8 (frames, 3, height, width), and the (start, end) of each in seconds.

        Args:
            video_clip_ranges: (start, end), both inclusive; an end beyond the video, or `inf`, means its end.
            video_unit: frame numbers in display order; or seconds: the frames on screen at any time of the range.
            video_out_frame_size: (width, height) to scale to, bilinearly.
            video_stride: take every `video_stride`-th frame of a clip.

        Raises:
            SampleError: if there is no video, a range is empty or starts before 0 or after the end, or decoding fails.
        """
        size = video_out_frame_size
        if size is not None and (len(size) != 2 or any(int(side) != side or side < 1 for side in size)):
            raise ConfigError(f"video_out_frame_size={size!r}: expected (width, height) in pixels, each 1 or more")
        video = self._open_video()
        frames = frame_ranges(video, video_clip_ranges, video_unit, video_stride)
        return self._read(video, frames, size), [video.span_s(clip) for clip in frames]

    def get_audio_clips(
        self, audio_clip_ranges: Sequence[Clip], audio_unit: Literal["samples", "seconds"] = "seconds"
    ) -> tuple[list[torch.Tensor], list[tuple[float, float]]]:
        """(clips, times): clips of audio, (channels, samples) of the codec's dtype, and the (start, end) of each in s.

        Args:
            audio_clip_ranges: (start, end), end exclusive; an end beyond the audio, or `inf`, means its end.
            audio_unit: sample numbers, or seconds.

        Raises:
            SampleError: if there is no audio, a range is empty or starts before 0 or after the end, or decoding fails.
        """
        audio = self._open_audio(is_whole=list(audio_clip_ranges) == _WHOLE)
        samples = sample_ranges(audio, audio_clip_ranges, audio_unit)
        clips = audio.read_clips(samples, self.limits.max_audio_bytes)
        if isinstance(audio, Waveform):
            self._audio = None
        return list(map(torch.from_numpy, clips)), [audio.span_s(clip) for clip in samples]

    def get_video(self) -> AVData:
        """The whole video as one clip."""
        return self.get_clips(video_clip_ranges=_WHOLE)

    def get_audio(self) -> AVData:
        """The whole audio as one clip."""
        return self.get_clips(audio_clip_ranges=_WHOLE)

    def get_video_with_audio(self) -> AVData:
        """The whole video and the whole audio, as one clip each."""
        return self.get_clips(video_clip_ranges=_WHOLE, audio_clip_ranges=_WHOLE)

    def get_frames(self, video_decode_audio: bool = False) -> AVData:
        """The whole medium: the video, with `video_decode_audio` also its audio; without video, the audio."""
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
        """Evenly spaced frames from the first to the last, uint8 (num_frames, 3, height, width).

        With `return_timestamps`, also the start of each frame in seconds.
        """
        video = self._open_video()
        clips = uniform_clips(num_frames, 0, *_middles(video))
        frames = frame_ranges(video, clips, "seconds", 1)
        tensor = torch.cat(self._read(video, frames, video_out_frame_size))
        return (tensor, [video.span_s(frame)[0] for frame in frames]) if return_timestamps else tensor

    def get_clips_uniform(
        self,
        clip_duration_seconds: float,
        num_clips: int,
        request_video: bool | None = None,
        request_audio: bool = False,
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> AVData:
        """`num_clips` evenly spaced clips of equal duration; the first starts with the medium, the last ends with it.

        If both video and audio are requested, the end is that of the shorter one. `request_video=None`: if there is
        video. A duration of 0 gives single frames.

        Raises:
            ConfigError: if neither video nor audio is requested.
            SampleError: if the medium is shorter than one clip.
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

    # Resources

    def close(self) -> None:
        """Free the container, its decoders and the index; a file passed in stays open. Any use reopens the decoder."""
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
        return {"stream": self.stream, "suppress_warnings": self.suppress_warnings, "limits": self.limits}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"AVDecoder(stream={self.stream!r})"

    def _open(self) -> Medium:
        if self._medium is None:
            self._medium = Medium(self.stream, self.limits)
        return self._medium

    def _open_video(self) -> Video:
        if self._video is None:
            medium = self._open()
            if "video" not in medium.tracks:
                raise SampleError(f"video was asked for, but the medium has {_list(medium)}")
            self._video = Video(medium, medium.tracks["video"])
            if not (self._video.is_timed or self.suppress_warnings):
                warnings.warn(
                    "the video has no usable timestamps: its frames are timed by the frame rate, and each read "
                    "decodes it from the start (AVDecoder(suppress_warnings=True) silences this warning)",
                    RuntimeWarning,
                    stacklevel=4,
                )
        return self._video

    def _read(self, video: Video, frames: Sequence[range], size: tuple[int, int] | None) -> list[torch.Tensor]:
        return read_clips(video, frames, size, self.limits.max_video_bytes)

    def _open_audio(self, *, is_whole: bool = False) -> Sound:
        if self._audio is None:
            self._audio = open_waveform(self.stream, is_whole=is_whole, max_bytes=self.limits.max_audio_bytes)
        if self._audio is None:
            medium = self._open()
            if "audio" not in medium.tracks:
                raise SampleError(f"audio was asked for, but the medium has {_list(medium)}")
            self._audio = Audio(medium, medium.tracks["audio"], is_whole=is_whole)
        return self._audio


def _middles(video: Video) -> tuple[float, float]:
    """The times in the middle of the first and of the last frame."""
    first, last = (sum(video.span_s(range(number, number + 1))) / 2 for number in (0, len(video) - 1))
    return first, last


def _list(medium: Medium) -> str:
    return f"only {' and '.join(medium.tracks)}" if medium.tracks else "neither video nor audio"
