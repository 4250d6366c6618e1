"""Media as parts of a sample: which extensions they have, and what their bytes become.

Source: the class and its arguments are those of Energon's `AVWebdatasetDecoder`; the extensions are its own and more.
"""

import io
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from bridge_data.decode.av.av_decoder import AVDecoder
from bridge_data.decode.av.container import open_container
from bridge_data.decode.av.data import AVData
from bridge_data.errors import ConfigError

if TYPE_CHECKING:
    from av.container import InputContainer

AVDecoderType: TypeAlias = Literal["torch", "AVDecoder", "pyav"]

_EXTENSIONS = "aac avi flac flv m4a m4v mkv mov mp3 mp4 mpeg mpg oga ogg ogv opus wav webm"
AV_EXTENSIONS = frozenset(_EXTENSIONS.split())


class AVWebdatasetDecoder:
    """Decodes a part by its extension: to an `AVDecoder`, which decodes when it is asked; with `torch` to the `AVData`
    of the whole medium, with its audio if `video_decode_audio`; with `pyav` to a container of PyAV.

    Raises:
        ConfigError: for an unknown `av_decode`.
    """

    def __init__(self, video_decode_audio: bool, av_decode: AVDecoderType = "AVDecoder") -> None:
        if av_decode not in get_args(AVDecoderType):
            raise ConfigError(f"av_decode={av_decode!r}: expected one of {', '.join(get_args(AVDecoderType))}")
        self.video_decode_audio = video_decode_audio
        self.av_decode = av_decode

    def decode(self, content: bytes) -> "AVDecoder | AVData | InputContainer":
        """The medium in `content`.

        Raises:
            ConfigError: if PyAV is needed now and not installed. SampleError: if the medium is read now and damaged.
        """
        if self.av_decode == "AVDecoder":
            return AVDecoder(content)
        if self.av_decode == "pyav":
            return open_container(io.BytesIO(content))
        with AVDecoder(content) as decoder:
            return decoder.get_frames(video_decode_audio=self.video_decode_audio)

    def __call__(self, key: str, data: bytes) -> Any:
        """The medium in a part called `key`; None if that has none of `AV_EXTENSIONS`."""
        return self.decode(data) if key.lower().rpartition(".")[2] in AV_EXTENSIONS else None
