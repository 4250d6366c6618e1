"""Bytes to objects: the decoder of parts, and the loaders that read and decode the samples of a source.

image            images to an array, tensor or Pillow image, in their own size or resized
av               video and audio, decoded on request
sample_decoder   chooses the handler of a part by its extension; decodes text, numbers, arrays and plain data
sample_loader    reads and decodes sample i of a source, or of a join of sources
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.decode.image import IMAGE_FORMS
    from bridge_data.decode.sample_decoder import SampleDecoder
    from bridge_data.decode.sample_loader import Loader, SampleLoader, open_loader

_NAMES_BY_MODULE = {
    "bridge_data.decode.image": "IMAGE_FORMS",
    "bridge_data.decode.sample_decoder": "SampleDecoder",
    "bridge_data.decode.sample_loader": "Loader SampleLoader open_loader",
}
"""The module of each public name, for lazy imports; the imports above are the same, for type checkers."""

__all__ = ["IMAGE_FORMS", "Loader", "SampleDecoder", "SampleLoader", "open_loader"]

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, _NAMES_BY_MODULE)
