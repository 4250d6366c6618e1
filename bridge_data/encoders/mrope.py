"""Multimodal rotary positions (M-RoPE): three numbers a token, which are time, row and column within an image or video.

Enters: for each token whether it is text, of an image or of a video, and the grids of these. Leaves: positions, int64
(3, S). Text counts all three on together; what follows an image or video counts on from its longer side.

Source: P. Wang et al., Qwen2-VL (2024); S. Bai et al., Qwen2.5-VL (2025) for time in seconds; the rounding, and that
the time of a video does not move the text behind it, are those of transformers 5.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

TEXT, IMAGE, VIDEO = 0, 1, 2
"""Types of tokens, as `mm_token_type_ids` of transformers has them."""

Grid = tuple[int, int, int]
"""Steps of time, rows and columns of an image or a stretch of video, in tokens."""


def mrope_positions(
    types: Tensor, images: Sequence[Grid], videos: Sequence[Grid], intervals: Sequence[Tensor | float] | None = None
) -> Tensor:
    """Positions of a sequence whose tokens are of `types`, int64 (S,); `intervals` are how far apart the steps of time
    of each video are (None: one apart)."""
    grids = {IMAGE: iter(images), VIDEO: iter(videos)}
    steps = iter(intervals if intervals is not None else itertools.repeat(1))
    pieces = []
    start = 0
    for kind, run in itertools.groupby(types.tolist()):
        length = len(list(run))
        if kind == TEXT:
            pieces.append(torch.arange(start, start + length).expand(3, -1))
            start += length
            continue
        num_times, rows, columns = next(grids[kind])
        interval = next(steps) if kind == VIDEO else 1
        times = (torch.arange(num_times) * interval).long()
        cells = torch.meshgrid(times, torch.arange(rows), torch.arange(columns), indexing="ij")
        pieces.append(torch.stack(cells).reshape(3, -1) + start)
        start += max(rows, columns)
    return torch.cat(pieces, dim=1)
