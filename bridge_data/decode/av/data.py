"""What comes out of a medium: clips with their times.

Source: the fields are those of Energon's `AVData`.
"""

from __future__ import annotations

from bridge_data.later import torch
from bridge_data.samples import edataclass


@edataclass
class AVData:
    """Clips cut out of a medium. Times are (start, end) in seconds from the start of the medium."""

    #: Each clip uint8 RGB, (frames, 3, height, width)
    video_clips: list[torch.Tensor] | None
    #: When each clip's first frame begins, and when its last one ends
    video_timestamps: list[tuple[float, float]] | None
    #: Each clip (channels, samples), of the type that its codec decodes to: float32, int16, ...
    audio_clips: list[torch.Tensor] | None
    #: When each clip's first sample begins, and when its last one ends
    audio_timestamps: list[tuple[float, float]] | None
