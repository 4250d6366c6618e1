"""Images decoded per second and core, compared with the bare codec and with Pillow alone.

- JPEG of 500 x 400 to uint8: `simplejpeg.decode_jpeg` alone, Pillow alone, and the decoder's forms;
- the same, 32 of them to one batch;
- JPEG of 1600 x 1200 to float32 of 336 x 336: Pillow alone, and the decoder's ways of resizing, with how far their
  pixels are from Pillow's.

All run in turn; the figure is CPU time in the best round. With `--tuned-malloc` the allocator keeps freed memory, as in
the loader's workers; Pillow gains most from it.

    python -m benchmarks.decoding [--tuned-malloc] [--json FILE]
"""

import argparse
import io
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import simplejpeg
import sklearn.datasets
import torch
from PIL import Image

from benchmarks.peers import work
from bridge_data import SampleDecoder
from bridge_data.samples.collation import batch_pad_stack

ROUNDS, BATCH_SIZE, SIZE = 15, 32, work.IMAGE_SIZE
TUNED = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(512 << 20)}


def photo(size: tuple[int, int]) -> bytes:
    """A photo that scikit-learn ships, as a JPEG of (width, height) `size`."""
    image = Image.fromarray(sklearn.datasets.load_sample_image("china.jpg")).resize(size, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()


def decoder(**settings: Any) -> Callable[[bytes], Any]:
    """The function with which `SampleDecoder` decodes a JPEG."""
    handler = SampleDecoder(**settings).handler("jpg")
    assert handler is not None
    return handler


def per_second(ways: Mapping[str, Callable[[], Any]], images: int) -> dict[str, float]:
    """Images per second of CPU time, in the best round of each function; one call makes `images` images."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            calls = 0
            start = time.process_time()
            while (taken := time.process_time() - start) < 0.1 or calls == 0:
                way()
                calls += 1
            best[name] = min(best[name], taken / calls)
    return {name: images / seconds for name, seconds in best.items()}


def show(title: str, rates: Mapping[str, float]) -> None:
    """Print a table; the first row is the baseline."""
    first = next(iter(rates.values()))
    print(f"\n{title}")
    for name, rate in rates.items():
        print(f"  {name:<44} {rate:8.0f} /s {rate / first:7.2f} x")


def measure() -> dict[str, dict[str, float]]:
    """Measure and print everything."""
    torch.set_num_threads(1)
    small, large = photo((500, 400)), photo((1600, 1200))
    forms = {name: decoder(image_decode=name) for name in ("torchrgb8", "rgb8", "torchrgb", "torchl8", "pilrgb")}
    bare = {"simplejpeg.decode_jpeg": simplejpeg.decode_jpeg, "Pillow": work.image_uint8}
    title = f"JPEG, 500 x 400, {len(small) / 1000:.0f} KB"
    ways = {name: (lambda way=way: way(small)) for name, way in (bare | forms).items()}
    plain = per_second(ways, 1)
    show(title, plain)
    ways = {
        "simplejpeg.decode_jpeg, not batched": lambda: [simplejpeg.decode_jpeg(small) for _ in range(BATCH_SIZE)],
        "Pillow": lambda: batch_pad_stack([work.image_uint8(small) for _ in range(BATCH_SIZE)]),
        "torchrgb8": lambda: batch_pad_stack([forms["torchrgb8"](small) for _ in range(BATCH_SIZE)]),
    }
    batched = per_second(ways, BATCH_SIZE)
    show(f"the same, {BATCH_SIZE} to a batch", batched)
    resizers = {
        "Pillow": work.photo_resized,
        "image_size": decoder(image_size=SIZE),
        'resize="torch"': decoder(image_size=SIZE, resize="torch"),
        "dct_scaling": decoder(image_size=SIZE, dct_scaling=True),
        'resize="torch", dct_scaling': decoder(image_size=SIZE, resize="torch", dct_scaling=True),
    }
    resized = per_second({name: (lambda way=way: way(large)) for name, way in resizers.items()}, 1)
    show(f"JPEG, 1600 x 1200, {len(large) / 1000:.0f} KB, to float32 of {SIZE[0]} x {SIZE[1]}", resized)
    expected = work.photo_resized(large)
    for name, way in resizers.items():
        difference = (way(large) - expected).abs() * 255
        print(f"  {name:<44} differs by {difference.max():.0f} of 255 at most, by {difference.mean():.3f} in the mean")
    return {"decoded": plain, "batched": batched, "resized": resized}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tuned-malloc", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.tuned_malloc and not TUNED.items() <= os.environ.items():  # the allocator reads them as it starts
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.decoding", *sys.argv[1:]], os.environ | TUNED)
    found = measure()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
