"""Small media for tests, encoded by PyAV: frames that carry their number as pixels, and tones."""

import functools
import io
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridge_data.decode.av import AVDecoder
from tests.later import av

WIDTH, HEIGHT = 64, 48
RATE = 25

_BITS = 1 << np.arange(16).reshape(4, 4)


def picture(number: int) -> NDArray[np.uint8]:
    """A frame that says its number: 16 blocks, white where a bit is set."""
    blocks = ((number & _BITS) > 0) * np.uint8(255)
    return blocks.repeat(HEIGHT // 4, 0).repeat(WIDTH // 4, 1)[:, :, None].repeat(3, 2)


def numbers(clip: NDArray[np.uint8]) -> list[int]:
    """What the frames of a clip (frames, 3, height, width), of any size, say."""
    frames, _, height, width = clip.shape
    means = np.asarray(clip, np.float32).reshape(frames, 3, 4, height // 4, 4, width // 4).mean((1, 3, 5))
    return ((means > 127) * _BITS).sum((1, 2)).tolist()


def tone(num_samples: int, rate: int) -> NDArray[np.float32]:
    """Two channels, (2, num_samples), in which every moment sounds different."""
    time = np.arange(num_samples) / rate
    return np.stack([np.sin(2000 * time**1.5), np.sin(900 * time + 30 * np.sin(7 * time))]).astype(np.float32) / 2


def write(
    container: str,
    *,
    video: str | None = None,
    audio: str | None = None,
    times: Iterable[int] = range(50),
    options: dict[str, str] | None = None,
    num_samples: int = 88_200,
    rate: int = 44_100,
) -> bytes:
    """A medium with frames at `times` (in 25ths of a second), frame n saying n, and with a tone."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        streams = []
        if video:
            stream = output.add_stream(video, rate=RATE)
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            stream.options = {"g": "12", "bf": "2", **(options or {})}
            streams.append((stream, _frames(times)))
        if audio:
            stream = output.add_stream(audio, rate=rate, layout="stereo")
            if audio == "aac":
                stream.options = {"aac_pns": "0"}  # noise that the decoder makes up is another one after seeking
            if audio == "vorbis":
                stream.options = {"strict": "experimental"}
            streams.append((stream, sounds(stream, num_samples, rate)))
        for stream, frames in streams:
            for frame in [*frames, None]:
                for packet in stream.encode(frame):
                    output.mux(packet)
    return file.getvalue()


def _frames(times: Iterable[int]) -> Iterable["av.VideoFrame"]:
    for number, time in enumerate(times):
        frame = av.VideoFrame.from_ndarray(picture(number), format="rgb24")
        frame.pts, frame.time_base = time, Fraction(1, RATE)
        yield frame


def sounds(stream: "av.AudioStream", num_samples: int, rate: int) -> Iterable["av.AudioFrame"]:
    frame = av.AudioFrame.from_ndarray(tone(num_samples, rate), format="fltp", layout="stereo")
    frame.sample_rate, frame.pts = rate, 0
    size = stream.codec_context.frame_size or 1024
    resampler = av.AudioResampler(format=stream.format, layout="stereo", rate=rate, frame_size=size)
    return [*resampler.resample(frame), *resampler.resample(None)]


def decode_all(data: bytes) -> NDArray[np.uint8]:
    """Every frame of the video by a bare loop, (frames, 3, height, width)."""
    with av.open(io.BytesIO(data)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.stack(frames).transpose(0, 3, 1, 2)


def hear_all(data: bytes) -> NDArray[np.generic]:
    """Every sample of the audio by a bare loop, (channels, samples)."""
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(audio=0))
    arrays = [f.to_ndarray() if f.format.is_planar else f.to_ndarray().reshape(f.samples, -1).T for f in frames]
    return np.concatenate(arrays, axis=1)


IRREGULAR = [0, 1, 2, 5, 9, 10, 11, 30, 31, 32, 33, 34, 60, 61, 62, 63, 64, 65, 66, 90, 91, 92, 93, 94, 95, 96, 97, 120]

VIDEOS: dict[str, dict[str, Any]] = {
    "mp4 with B-frames": {"container": "mp4", "video": "libx264"},
    "mp4, open groups": {"container": "mp4", "video": "libx264", "options": {"x264-params": "open-gop=1", "bf": "3"}},
    "mp4, no key frames": {"container": "mp4", "video": "libx264", "options": {"x264-params": "intra-refresh=1"}},
    "mp4, variable rate": {"container": "mp4", "video": "libx264", "times": IRREGULAR},
    "mp4 with audio, late": {"container": "mp4", "video": "libx264", "audio": "aac", "times": range(10, 60)},
    "mkv with audio": {"container": "matroska", "video": "libx264", "audio": "aac"},
    "mkv, variable rate": {"container": "matroska", "video": "libx264", "times": IRREGULAR},
    "webm, VP9": {"container": "webm", "video": "libvpx-vp9", "audio": "libopus", "rate": 48_000},
    "webm, VP8": {"container": "webm", "video": "libvpx", "options": {"auto-alt-ref": "1", "lag-in-frames": "10"}},
    "avi with B-frames": {"container": "avi", "video": "mpeg4", "audio": "libmp3lame"},
    "mov, MPEG-4": {"container": "mov", "video": "mpeg4"},
    "flv": {"container": "flv", "video": "libx264", "audio": "aac"},
    "mpeg transport stream": {"container": "mpegts", "video": "libx264", "audio": "aac"},
    "mpeg program stream": {"container": "mpeg", "video": "mpeg2video", "audio": "mp2"},
    "bare h264, no times": {"container": "h264", "video": "libx264"},
}

SOUNDS: dict[str, dict[str, Any]] = {
    "wav": {"container": "wav", "audio": "pcm_s16le"},
    "flac": {"container": "flac", "audio": "flac"},
    "mp3": {"container": "mp3", "audio": "libmp3lame"},
    "m4a": {"container": "mp4", "audio": "aac"},
    "aac": {"container": "adts", "audio": "aac"},
    "ogg, Opus": {"container": "ogg", "audio": "libopus", "rate": 48_000},
    "ogg, Vorbis": {"container": "ogg", "audio": "vorbis"},
    "webm, Opus": {"container": "webm", "audio": "libopus", "rate": 48_000},
    "mka, AAC": {"container": "matroska", "audio": "aac"},
    "transport stream, AAC": {"container": "mpegts", "audio": "aac"},
    "flv with video": {"container": "flv", "video": "libx264", "audio": "aac"},
}


@functools.cache
def video(name: str) -> tuple[bytes, np.ndarray]:
    """A video, and all its frames."""
    data = write(**VIDEOS[name], num_samples=60_000)
    return data, decode_all(data)


@functools.cache
def sound(name: str) -> tuple[bytes, np.ndarray]:
    """A sound, and all its samples."""
    data = write(**SOUNDS[name], num_samples=200_000)
    return data, hear_all(data)


def decoder_of(name: str) -> AVDecoder:
    """A decoder of a video."""
    return AVDecoder(video(name)[0], suppress_warnings=True)
