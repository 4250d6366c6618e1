"""Video and audio: clips of a medium, decoded on request by PyAV (`pip install "bridge-data[av]"`)."""

from bridge_data.decode.av.av_decoder import AVDecoder
from bridge_data.decode.av.clips import AVData
from bridge_data.decode.av.energon_av import (
    AV_EXTENSIONS,
    AVDecoderType,
    AVWebdatasetDecoder,
    get_clips_uniform,
    get_single_frames_uniform,
)

__all__ = [
    "AV_EXTENSIONS",
    "AVData",
    "AVDecoder",
    "AVDecoderType",
    "AVWebdatasetDecoder",
    "get_clips_uniform",
    "get_single_frames_uniform",
]
