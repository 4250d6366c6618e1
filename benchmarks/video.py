"""Video clips per second, compared with a bare PyAV loop that seeks, on the same videos and ranges.

Each clip reopens its video from memory, as a data loader does, and becomes one uint8 tensor. Two kinds of ranges:

- 16 consecutive frames from a random position;
- 16 evenly spaced single frames, for which the bare loop seeks one by one, or decodes everything (the faster one
  counts).

The bare loop knows the frame rate and trusts the timestamps; it decodes with PyAV's own threads, and with none, as ours
does (the faster one counts). Both loops run in turn, so that noise of the machine affects both.

    python benchmarks/video.py [FILE ...] [--json FILE]      (without files: a video that it makes, 640 x 360, 20 s)
"""

import argparse
import io
import json
import random
import statistics
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

from bridge_data.decode.av import AVDecoder

FRAMES, CLIPS, ROUNDS = 16, 8, 5


def make_video(num_frames: int = 500, size: tuple[int, int] = (640, 360)) -> bytes:
    """A moving picture, in H.264 with B-frames and a key frame every two seconds."""
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (size[1] // 8, size[0] // 8 + num_frames, 3), dtype=np.uint8)
    wide = noise.repeat(8, 0).repeat(8, 1)
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.options = {"g": "50", "preset": "veryfast"}
        for number in range(num_frames):
            picture = np.ascontiguousarray(wide[:, 3 * number : 3 * number + size[0]])
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode(None))
    return file.getvalue()


def bare_clips(data: bytes, clips: list[tuple[int, int]], threads: str) -> list[torch.Tensor]:
    """The obvious code: seek, decode, convert, stack."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        stream.thread_type = threads
        ticks = 1 / (stream.average_rate * stream.time_base)
        result = []
        for first, last in clips:
            begin, end = (round(number * ticks + (stream.start_time or 0)) for number in (first, last))
            container.seek(begin, stream=stream)
            frames = []
            for frame in container.decode(stream):
                if frame.pts >= begin:
                    frames.append(frame.to_ndarray(format="rgb24"))
                if frame.pts >= end:
                    break
            result.append(torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2))
        return result


def bare_pass(data: bytes, clips: list[tuple[int, int]], threads: str) -> list[torch.Tensor]:
    """Decode everything, and keep the single frames that are wanted."""
    wanted, kept = {first for first, _ in clips}, []
    with av.open(io.BytesIO(data)) as container:
        container.streams.video[0].thread_type = threads
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                kept.append(torch.from_numpy(frame.to_ndarray(format="rgb24"))[None].permute(0, 3, 1, 2))
    return kept


def our_clips(data: bytes, clips: list[tuple[int, int]]) -> list[torch.Tensor]:
    """The same by `AVDecoder`."""
    with AVDecoder(data) as decoder:
        return decoder.get_video_clips(clips, "frames")[0]


def measure(name: str, data: bytes) -> list[dict[str, Any]]:
    """A row for each kind of range."""
    with AVDecoder(data) as decoder:
        metadata = decoder.get_metadata()
    count = metadata.video_num_frames or 0
    rng = random.Random(0)
    starts = [rng.randrange(count - FRAMES) for _ in range(CLIPS)]
    uniform = [int(Fraction(2 * n + 1, 2 * FRAMES) * count) for n in range(FRAMES)]
    kinds: dict[str, list[list[tuple[int, int]]]] = {
        "in a row": [[(start, start + FRAMES - 1)] for start in starts],
        "apart": [[(number, number) for number in uniform]],
    }
    rows = []
    for kind, calls in kinds.items():
        bare: dict[str, Callable[..., list[torch.Tensor]]] = {"seek": bare_clips}
        if kind == "apart":
            bare["pass"] = bare_pass
        loops = {f"{how}, {threads}": (fn, threads) for how, fn in bare.items() for threads in ("SLICE", "NONE")}
        seconds: dict[str, list[float]] = {name: [] for name in ("ours", *loops)}
        for _ in range(ROUNDS):
            for call in calls:
                expected = _timed(seconds["ours"], our_clips, data, call)
                for loop, (fn, threads) in loops.items():
                    got = _timed(seconds[loop], fn, data, call, threads)
                    assert all(torch.equal(*pair) for pair in zip(got, expected, strict=True)), f"{loop} differs"
        medians = {loop: statistics.median(times) for loop, times in seconds.items()}
        fastest = min(loops, key=medians.__getitem__)
        rows.append(
            {
                "video": name,
                "size": f"{metadata.video_width}x{metadata.video_height}",
                "frames": kind,
                "ours, clips/s": 1 / medians["ours"],
                "bare, clips/s": 1 / medians[fastest],
                "fastest bare": fastest,
                "ours / bare": medians[fastest] / medians["ours"],
            }
        )
    return rows


def _timed(seconds: list[float], fn: Callable[..., list[torch.Tensor]], *arguments: Any) -> list[torch.Tensor]:
    begin = time.perf_counter()
    result = fn(*arguments)
    seconds.append(time.perf_counter() - begin)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="videos with a constant frame rate")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    videos = {file.name: file.read_bytes() for file in arguments.files} or {"made here": make_video()}
    rows = [row for name, data in videos.items() for row in measure(name, data)]
    widths = {label: max(len(label), *(len(_shown(row[label])) for row in rows)) for label in rows[0]}
    print("  ".join(label.rjust(width) for label, width in widths.items()))
    for row in rows:
        print("  ".join(_shown(row[label]).rjust(width) for label, width in widths.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
