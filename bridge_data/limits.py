"""Limits: how large a sample, or a file that describes data, may be before it is refused.

Data come from others: a part of a few kilobytes can unpack to a terabyte, a line of YAML can stand for a billion
shards. Each limit is checked before the memory is taken or the time is spent. A sample beyond one is a `SampleError`,
counted like any other; a file beyond one is a `ConfigError` that names file and line. Both name the limit. Limits apply
to the sizes that the data declare; at its peak a process needs a few times as much memory.
"""

import dataclasses

from bridge_data.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is accepted; all are numbers of at least 1. Raise one that your own data exceed.

    >>> Limits(max_json_bytes=1 << 20).max_json_bytes
    1048576

    Raises:
        ConfigError: if one is not an integer of at least 1.
    """

    max_unpacked_bytes: int = 256 << 20
    """Of a compressed part (`gz`, `npz`, `pth`), after decompression."""
    max_json_bytes: int = 32 << 20
    """Of a JSON text: a line of a JSONL file, or a `json` part. Small objects take some twenty times that in memory."""
    max_json_depth: int = 128
    """Levels of lists and objects in a JSON text."""
    max_image_pixels: int = 89_478_485
    """Of an image. `PIL.Image.MAX_IMAGE_PIXELS`, which has the same default, is a limit as well: raise both."""
    max_video_bytes: int = 4 << 30
    """Of the decoded clips of one call, and of the frames of an image that is decoded to all of them."""
    max_audio_bytes: int = 1 << 30
    """Of a decoded clip of sound: 46 minutes of stereo at 48 kHz in float32."""

    max_document_bytes: int = 64 << 20
    """Of a YAML or JSON file: a metadataset, `dataset.yaml`, `split.yaml`, `.info.json`."""
    max_yaml_nodes: int = 500_000
    """Scalars, lists and mappings in a YAML file, with those that its aliases repeat; they take 0.2 GB."""
    max_yaml_depth: int = 64
    """Levels of lists and mappings in a YAML file, aliases followed."""
    max_shards: int = 1 << 20
    """Names that the brace patterns of a split stand for."""
    max_metadataset_depth: int = 16
    """Metadatasets on the way to a data set, each named by the one before."""
    max_references: int = 1 << 16
    """Data sets and metadatasets that a metadataset names, with those that it names by others."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"Limits({field.name}={value!r}): expected an integer of at least 1")


DEFAULT_LIMITS = Limits()
"""The default limits."""


def allow_pixels(limits: Limits) -> None:
    """Raise Pillow's limit of this process to that of `limits`, if it is above the default: commands do, as they own
    their process."""
    import PIL.Image as pillow  # the module itself, which is changed

    if limits.max_image_pixels > DEFAULT_LIMITS.max_image_pixels and pillow.MAX_IMAGE_PIXELS is not None:
        pillow.MAX_IMAGE_PIXELS = max(pillow.MAX_IMAGE_PIXELS, limits.max_image_pixels)
