"""Bytes to objects: the decoder of parts, and the loader that makes samples of a source with it."""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.decode.image import IMAGE_FORMS
    from bridge_data.decode.joined_loader import Loader, open_loader
    from bridge_data.decode.sample_decoder import SampleDecoder
    from bridge_data.decode.sample_loader import SampleLoader

_PLACES = {
    "bridge_data.decode.image": "IMAGE_FORMS",
    "bridge_data.decode.joined_loader": "Loader open_loader",
    "bridge_data.decode.sample_decoder": "SampleDecoder",
    "bridge_data.decode.sample_loader": "SampleLoader",
}
"""The module of each public name: the same as above, for Python, as that is for those who read and check types."""

__all__ = ["IMAGE_FORMS", "Loader", "SampleDecoder", "SampleLoader", "open_loader"]

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, _PLACES)
