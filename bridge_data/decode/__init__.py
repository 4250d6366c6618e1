"""Decoding: the bytes of parts become objects; and readers of sources, which read and decode their samples.

image            images to an array, a tensor or a Pillow image, in their own size or resized
av               video and audio, decoded on request
sample_decoder   chooses the handler of a part by its extension; decodes text, numbers, arrays and plain data
source_reader    reads and decodes sample i of a source; checks values against the types that its class declares
media_kinds      which files are media; `named_media`, how rows name them; `media_metadata`, sizes and durations,
                 which `media_headers` reads
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.decode.image import IMAGE_FORMS as IMAGE_FORMS
    from bridge_data.decode.sample_decoder import SampleDecoder as SampleDecoder
    from bridge_data.decode.source_reader import SingleSourceReader as SingleSourceReader
    from bridge_data.decode.source_reader import SourceReader as SourceReader
    from bridge_data.decode.source_reader import open_source_reader as open_source_reader

_find, __all__ = names_of(__name__)
if not TYPE_CHECKING:
    __getattr__ = _find
