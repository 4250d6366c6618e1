"""Captions in the form of COCO: a JSON file of images and annotations, and a folder of pictures.

Enters: the file, an object with the lists `images` and `annotations`. Leaves: a record for each image that has
captions, in the order of `images`: `image` (its file name), `caption` (the first), `captions` (all, in the order of
the file), `image_id`, and all other fields of the image. The file is read once; an annotation takes 32 bytes of memory,
its text none.

Source: the format, https://cocodataset.org/#format-data
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bridge_data.errors import DatasetError
from bridge_data.later import numpy
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.prepare.converters.source_records import BrokenRecord, SourceRecord, digest_of_files, even_blocks
from bridge_data.prepare.converters.text_tables import BLOCK_RECORDS, JsonStream
from bridge_data.shards.plain_data import parse_json


class CocoCaptions:
    """Images with their captions."""

    title = "COCO captions"
    has_parts = False
    definition = None
    is_scattered = True

    def __init__(self, path: Path, limits: Limits = DEFAULT_LIMITS) -> None:
        self._path, self._limits = path, limits
        images: list[tuple[int, int, int]] = []
        annotations: list[tuple[int, int, int]] = []
        try:
            with JsonStream(path, limits) as stream:
                for name in stream.names():
                    if name in ("images", "annotations"):
                        into, field = (images, "id") if name == "images" else (annotations, "image_id")
                        into += self._listed(stream, field)
                    else:
                        stream.value()
                stream.expect_end()
        except ValueError as error:
            raise DatasetError(f"{path}: {error}") from None
        except OSError as error:
            raise DatasetError(f"{path}: cannot be read: {error.strerror}") from None
        if not images or not annotations:
            raise DatasetError(
                f"{path}: has {len(images)} images and {len(annotations)} annotations; expected both, as in COCO. "
                "Other records are a list of objects, or lines in a file that is called .jsonl"
            )
        spans = numpy.array(annotations, dtype=numpy.int64)
        self._annotations = spans[numpy.argsort(spans[:, 0], kind="stable")]
        known = numpy.array(images, dtype=numpy.int64)
        if len(numpy.unique(known[:, 0])) < len(known):
            raise DatasetError(f"{path}: two images have the same id")
        unknown = spans[~numpy.isin(spans[:, 0], known[:, 0])]
        if len(unknown):
            raise DatasetError(f"{path}: {len(unknown)} annotations are of images that it does not list")
        self._images = known[numpy.isin(known[:, 0], spans[:, 0])]
        num_without = len(known) - len(self._images)
        self.notes = [f"left out: {num_without:,} images without captions"] * bool(num_without)

    def _listed(self, stream: JsonStream, field: str) -> Iterator[tuple[int, int, int]]:
        for start, end, value in stream.list_values():
            number = value.get(field) if isinstance(value, dict) else None
            if type(number) is not int or abs(number) >= 2**63:
                raise ValueError(f"the entry at byte {start} has no whole number at {field!r}")
            yield number, start, end

    def __len__(self) -> int:
        return len(self._images)

    def blocks(self) -> Iterator[range]:
        return even_blocks(len(self), BLOCK_RECORDS)

    def read(self, numbers: Sequence[int]) -> Iterator[SourceRecord | BrokenRecord]:
        with open(self._path, "rb") as file:

            def entry(start: int, end: int) -> dict[str, Any]:
                file.seek(start)
                value: dict[str, Any] = parse_json(file.read(end - start), self._limits)
                return value

            for number in numbers:
                image_id, start, end = map(int, self._images[number])
                where = f"{self._path.name}, image {image_id}"
                first, last = numpy.searchsorted(self._annotations[:, 0], [image_id, image_id + 1])
                try:
                    image = entry(start, end)
                    captions = [entry(*map(int, span[1:])).get("caption") for span in self._annotations[first:last]]
                except (ValueError, AttributeError) as error:
                    yield BrokenRecord(number, where, str(error))
                    continue
                name = image.pop("file_name", None)
                if not isinstance(name, str) or not all(isinstance(caption, str) for caption in captions):
                    yield BrokenRecord(
                        number, where, "expected a text at 'file_name', and at 'caption' of each annotation"
                    )
                    continue
                image.pop("id")
                values = {"image": name, "caption": captions[0], "captions": captions, "image_id": image_id}
                values |= {other: value for other, value in image.items() if other not in values}
                yield SourceRecord(number, where, values, f"{image_id:012d}" if image_id >= 0 else str(image_id))

    def fingerprint(self) -> str:
        return digest_of_files([self._path])
