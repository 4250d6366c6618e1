"""Video and audio under the name that Energon has for them, `megatron.energon.av`; see `bridge_data.decode.av`."""

from bridge_data.decode.av import (
    AVData,
    AVDecoder,
    AVWebdatasetDecoder,
    get_clips_uniform,
    get_single_frames_uniform,
)

__all__ = ["AVData", "AVDecoder", "AVWebdatasetDecoder", "get_clips_uniform", "get_single_frames_uniform"]
