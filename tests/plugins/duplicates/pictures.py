"""Data sets of real pictures, with copies among them."""

import functools
import io
from collections.abc import Mapping
from pathlib import Path

import skimage.data
import webdataset as wds
from PIL import Image

from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare

Contents = Mapping[str, Mapping[str, bytes]]
"""Parts by key."""


@functools.cache
def photo(name: str) -> Image.Image:
    """A photo that comes with scikit-image, such as `coffee`."""
    return Image.fromarray(getattr(skimage.data, name)())


@functools.cache
def jpeg(name: str, quality: int = 90, mirrored: bool = False, side: int | None = None) -> bytes:
    """The photo as a JPEG, perhaps mirrored, or shrunk to a square."""
    image = photo(name)
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return encoded(image if side is None else image.resize((side, side)), quality)


def encoded(image: Image.Image, quality: int = 90) -> bytes:
    """The image as a JPEG."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def write_shards(folder: Path, *shards: Contents, ratio: str = "1,0,0") -> Path:
    """A prepared data set with the samples of `data-0.tar`, `data-1.tar` and so on."""
    folder.mkdir(parents=True)
    for number, samples in enumerate(shards):
        with wds.TarWriter(str(folder / f"data-{number}.tar")) as tar:
            for key, parts in samples.items():
                tar.write({"__key__": key, **parts})
    prepare(folder, functools.partial(split_by_ratio, ratio=parse_ratio(ratio)))
    return folder


def with_copies(folder: Path) -> Path:
    """Train, val and test of one shard each. `b` in train is `a` of val byte by byte, `again` is it at another quality,
    `small` at another size, `mirrored` is another picture; `u` and `v` of test have the same picture, but other
    captions."""
    return write_shards(
        folder,
        {
            "b": {"jpg": jpeg("coffee"), "txt": b"a cup"},
            "again": {"jpg": jpeg("coffee", 40), "txt": b"the same cup"},
            "small": {"jpg": jpeg("coffee", side=200), "txt": b"a smaller one"},
            "mirrored": {"jpg": jpeg("coffee", mirrored=True), "txt": b"a mirrored cup"},
            "other": {"jpg": jpeg("rocket"), "txt": b"a rocket"},
        },
        {"a": {"jpg": jpeg("coffee"), "txt": b"a cup"}, "cat": {"jpg": jpeg("chelsea"), "txt": b"a cat"}},
        {"u": {"jpg": jpeg("astronaut"), "txt": b"one"}, "v": {"jpg": jpeg("astronaut"), "txt": b"two"}},
        ratio="1,1,1",
    )
