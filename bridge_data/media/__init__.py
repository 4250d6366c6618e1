"""Finding out what images, videos and sounds are without decoding them, and writing it down beside the data."""

from bridge_data.media.prepare import MediaPreparation, prepare_media
from bridge_data.media.rules import MediaRule

__all__ = ["MediaPreparation", "MediaRule", "prepare_media"]
