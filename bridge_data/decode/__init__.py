"""Bytes to objects: the decoder of parts, and the loader that makes samples of a source with it."""

from bridge_data.decode.decoder import SampleDecoder
from bridge_data.decode.image import IMAGE_FORMS
from bridge_data.decode.joined import Loader, open_loader
from bridge_data.decode.loading import SampleLoader

__all__ = ["IMAGE_FORMS", "Loader", "SampleDecoder", "SampleLoader", "open_loader"]
