"""Video and audio: clips out of a medium, decoded when they are asked for. PyAV does it: `bridge-data[av]`."""

from bridge_data.decode.av.av_decoder import AVDecoder
from bridge_data.decode.av.data import AVData
from bridge_data.decode.av.handler import AV_EXTENSIONS, AVDecoderType, AVWebdatasetDecoder
from bridge_data.decode.av.uniform import get_clips_uniform, get_single_frames_uniform

__all__ = [
    "AV_EXTENSIONS",
    "AVData",
    "AVDecoder",
    "AVDecoderType",
    "AVWebdatasetDecoder",
    "get_clips_uniform",
    "get_single_frames_uniform",
]
