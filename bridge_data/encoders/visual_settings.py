"""What a sample says of one image or video: its size in pixels, and which frames are sampled.

Reads the settings of a row or a part of a turn, by the names of `qwen_vl_utils`. Returns `VisualSettings`, which give
sizes, limits on pixels and numbers of frames. A setting has the effect that it has there; it replaces that of the run.
As there, a range is in whole frames, the number of frames is even, and they are evenly spaced from the first of the
range to the last. Raises a `SampleError` that names a setting which cannot be followed.

Source: `qwen_vl_utils` 0.0.14 for names, rounding and bounds.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bridge_data.decode.named_media import VisualKind
from bridge_data.errors import SampleError

FRAME_FACTOR = 2
"""The number of frames is a multiple of this."""

PICTURES_PER_SECOND = 2.0
"""The rate of a video that is a list of pictures, if nothing says it."""

SIZES = ("min_pixels", "max_pixels", "resized_height", "resized_width")
"""Settings of images, and of videos."""

_COUNTS = (*SIZES, "total_pixels", "nframes", "min_frames", "max_frames")
_NUMBERS = (*_COUNTS, "fps", "sample_fps", "video_start", "video_end")
TIMES = ("times", "timestamps", "frame_times", "frame_timestamps")
"""Where the seconds of each frame are."""

VISUAL_KEYS = frozenset({*_NUMBERS, *TIMES})
"""The keys of a row, of a part of a turn, or of an item of `images` or `videos`, that are settings."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VisualSettings:
    """Settings of one image or video; None: that of the run.

    An image, or a frame, has `min_pixels` to `max_pixels`, or the size `resized_height` by `resized_width`, rounded to
    tokens; the frames of a video share `total_pixels`. Of a video, the seconds `video_start` to `video_end` are used,
    and of these `nframes` frames, or `fps` a second, at least `min_frames` and at most `max_frames`. Of frames,
    `sample_fps` is the rate, or `times` are the seconds of each.

    Raises:
        SampleError: if a value is out of range, or two contradict each other.
    """

    min_pixels: int | None = None
    max_pixels: int | None = None
    total_pixels: int | None = None
    resized_height: int | None = None
    resized_width: int | None = None
    fps: float | None = None
    nframes: int | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    video_start: float | None = None
    video_end: float | None = None
    sample_fps: float | None = None
    times: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and value <= 0 and not name.startswith("video_"):
                raise SampleError(f"{name}={value}: expected more than 0")
        if self.fps is not None and self.nframes is not None:
            raise SampleError(f"fps={self.fps} and nframes={self.nframes}: only one of them can say which frames")
        if (self.resized_height is None) != (self.resized_width is None):
            raise SampleError("resized_height and resized_width: expected both or none")
        for low, high in (("min_pixels", "max_pixels"), ("min_frames", "max_frames"), ("video_start", "video_end")):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and least > most:
                raise SampleError(f"{low}={least}: more than {high}={most}")
        if self.times is not None and any(
            late < early for early, late in zip(self.times, self.times[1:], strict=False)
        ):
            raise SampleError("times: expected one after the other")

    @property
    def given(self) -> dict[str, Any]:
        """Those that are set."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def exact_size(self) -> tuple[int, int] | None:
        """(height, width), if a size is set."""
        if self.resized_height is None or self.resized_width is None:
            return None
        return self.resized_height, self.resized_width

    @property
    def has_size(self) -> bool:
        """Whether pixels are limited, or a size is set."""
        return any(getattr(self, name) is not None for name in (*SIZES, "total_pixels"))

    def image_limits(self, limits: tuple[int, int]) -> tuple[int, int]:
        """The smallest and the largest number of pixels of an image, where `limits` are those of the run."""
        least, most = self.min_pixels or limits[0], self.max_pixels or limits[1]
        return (min(least, most), most) if self.max_pixels else (least, max(least, most))

    def frame_limits(self, limits: tuple[float, float], num_frames: int, counted: int = 1) -> tuple[float, float]:
        """The same of a frame of `num_frames`, or of `counted` frames together. The largest number is at most that of
        the run, and that of `total_pixels`, in which two frames count as one; but larger than the smallest one."""
        least, most = limits
        if self.min_pixels is not None:
            least = self.min_pixels * counted
        if self.total_pixels is not None:
            most = min(most, self.total_pixels / num_frames * FRAME_FACTOR * counted)
        if self.min_pixels is not None or self.total_pixels is not None:
            most = max(most, int(least * 1.05))
        if self.max_pixels is not None:
            most = min(most, self.max_pixels * counted)
        return min(least, most), most

    def frame_range(self, num_frames: int, fps: float) -> tuple[int, int]:
        """The first and the last frame that are used of `num_frames`.

        Raises:
            SampleError: if the seconds hold fewer than two frames.
        """
        start, end = self.video_start, self.video_end
        if start is None and end is None:
            return 0, num_frames - 1
        if self.times is not None:
            inside = [
                n for n, time in enumerate(self.times) if (start or 0) <= time <= (math.inf if end is None else end)
            ]
            first, last = (inside[0], inside[-1]) if inside else (0, 0)
        else:
            duration = num_frames / fps
            first = 0 if start is None else math.ceil(max(0.0, min(start, duration)) * fps)
            last = num_frames - 1
            last = last if end is None else min(math.floor(max(0.0, min(end, duration)) * fps), last)
        if first >= last:
            raise SampleError(
                f"video_start={start}, video_end={end}: expected two frames at least between them, of a video of "
                f"{num_frames} frames at {fps:g} a second"
            )
        return first, last

    def num_frames(self, available: int, seconds: float, fps: float | None, bounds: tuple[int, int]) -> int:
        """How many frames are taken of `available` in so many `seconds`; the others are those of the run: frames a
        second (None: all), and the smallest and the largest number.

        Raises:
            SampleError: if `nframes` are more than there are.
        """
        if self.nframes is not None:
            wanted = round(self.nframes / FRAME_FACTOR) * FRAME_FACTOR
            if not FRAME_FACTOR <= wanted <= available:
                raise SampleError(
                    f"nframes={self.nframes}: expected {FRAME_FACTOR} to {available}, the frames that there are"
                )
            return wanted
        rate = self.fps or fps
        least = math.ceil((self.min_frames or bounds[0]) / FRAME_FACTOR) * FRAME_FACTOR
        most = min(self.max_frames or bounds[1], available) // FRAME_FACTOR * FRAME_FACTOR
        taken = available if rate is None else seconds * rate
        taken = math.floor(min(max(taken, least), most) / FRAME_FACTOR) * FRAME_FACTOR
        return int(taken) or min(available, FRAME_FACTOR)


NO_SETTINGS = VisualSettings()


@contextlib.contextmanager
def naming_sample(key: str) -> Iterator[None]:
    """Let a SampleError in the block name sample `key`."""
    try:
        yield
    except SampleError as error:
        start = f"sample {key!r}: "
        raise type(error)(f"{'' if str(error).startswith(start) else start}{error}") from error


def spaced(first: int, last: int, number: int) -> list[int]:
    """`number` frames, evenly spaced from the first to the last."""
    frames: list[int] = np.linspace(first, last, number).round().astype(int).tolist()
    return frames


@dataclasses.dataclass(frozen=True, slots=True)
class Visual:
    """An image or a video with settings of its own. `source` is what stands in a sample without them; the frames of a
    video may be a list of pictures.

    >>> Visual("clip.mp4", VisualSettings(fps=1.0, video_end=10.0)).settings.given
    {'fps': 1.0, 'video_end': 10.0}
    """

    source: Any
    settings: VisualSettings = NO_SETTINGS


def with_settings(source: Any, settings: VisualSettings) -> Any:
    """`source`, with its settings if it has any."""
    return source if settings == NO_SETTINGS else Visual(source, settings)


def with_own(visual: Any) -> tuple[Any, VisualSettings]:
    """An image or a video without its settings; and these."""
    return (visual.source, visual.settings) if isinstance(visual, Visual) else (visual, NO_SETTINGS)


def settings_in(said: Mapping[str, Any], kind: VisualKind) -> VisualSettings:
    """The settings in what is `said` of an image or a video. Other keys are ignored, as are those that are None.

    Raises:
        SampleError: if one is no number, or an image has one of videos.
    """
    given = {name: said[name] for name in (*_NUMBERS, *TIMES) if said.get(name) is not None}
    if len(named := [name for name in TIMES if name in given]) > 1:
        raise SampleError(f"{' and '.join(named)}: expected the times of frames once")
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in TIMES:
            values["times"] = _times(name, value)
        else:
            values[name] = _number(name, value)
    settings = VisualSettings(**values)
    if kind == "image":
        check_of_image(settings)
    return settings


def check_of_image(settings: VisualSettings) -> None:
    """Raise a SampleError if an image has settings of videos."""
    of_videos = [f"{name}={value}" for name, value in settings.given.items() if name not in SIZES]
    if of_videos:
        raise SampleError(f"an image says {', '.join(of_videos)[:200]}, of which only videos have any")


def settings_of_row(row: Mapping[str, Any], kind: VisualKind, number: int, others: int = 0) -> list[dict[str, Any]]:
    """What a row says of each of its `number` images or videos, beside their names: a value for all, or a list. It has
    so many `others` of the other kind, for which a list of sizes may be.

    Raises:
        SampleError: if a list has another length.
    """
    names = SIZES if kind == "image" else (*_NUMBERS, *TIMES)
    said: list[dict[str, Any]] = [{} for _ in range(number)]
    for name in names:
        value = row.get(name)
        if value is None or not number:
            continue
        of_all = not isinstance(value, Sequence) or isinstance(value, str)
        if name in TIMES and not of_all and not any(isinstance(one, Sequence) for one in value):
            of_all = number == 1
        if not of_all and len(value) != number:
            if name in SIZES and len(value) == others:
                continue
            raise SampleError(
                f"has {len(value)} values at {name!r} for {number} {kind}s; expected one for each, or one for all"
            )
        for one, own in zip(said, [value] * number if of_all else value, strict=True):
            one[name] = own
    return said


def _times(name: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise SampleError(f"{name}={repr(value)[:80]}: expected the seconds of each frame")
    return tuple(float(_number(name, one)) for one in value)


def _number(name: str, value: Any) -> float:
    """A number, or a text that is one."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (name in _COUNTS and number != int(number)):
        raise SampleError(f"{name}={repr(value)[:80]}: expected a {'whole ' if name in _COUNTS else ''}number")
    return int(number) if name in _COUNTS else number
