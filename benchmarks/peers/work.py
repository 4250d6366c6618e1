"""The work of the workloads that every library does with the same code: decode, resize, pack, collate.

Reads the bytes of parts. Returns the tensors that all loaders must hand out alike. Pillow decodes images, as it does in
most of these libraries; libraries without a decoder of their own use torchcodec for video and soundfile for audio.
"""

import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

BATCH_SIZES = {"text": 32, "jpeg": 32, "photos": 16, "video": 4, "audio": 16, "chat": 4, "aux": 16, "blend": 32}
BATCH_SIZES |= {"s3": 32, "sources": 32, "cold": 32, "million": 32, "ten_thousand": 32}
CAPACITY, PACKING_BUFFER = 2048, 64
SHUFFLE_BUFFER, RUN_LENGTH = 100, 100
IMAGE_SIZE, NUM_FRAMES = (336, 336), 8


def read_tars(folder: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Key and parts of every sample of a folder's tars, in order."""
    for file in sorted(folder.glob("*.tar")):
        key, parts = "", dict[str, bytes]()
        with tarfile.open(file) as tar:
            for member in tar:
                name, _, part = member.name.partition(".")
                if name != key and parts:
                    yield key, parts
                    parts = {}
                key = name
                content = tar.extractfile(member)
                assert content is not None
                parts[part] = content.read()
        if parts:
            yield key, parts


def image_tensor(image: Image.Image) -> torch.Tensor:
    """A picture as uint8 (3, height, width)."""
    pixels = np.asarray(image.convert("RGB"))
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def image_uint8(content: bytes) -> torch.Tensor:
    """A JPEG as `image_tensor`."""
    return image_tensor(Image.open(io.BytesIO(content)))


def image_resized(image: Image.Image) -> torch.Tensor:
    """A picture as float32 (3, 336, 336) in 0..1, resized by Pillow's bicubic filter."""
    pixels = np.asarray(image.convert("RGB").resize(IMAGE_SIZE, Image.Resampling.BICUBIC))
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float().div_(255)


def photo_resized(content: bytes) -> torch.Tensor:
    """A JPEG as `image_resized`."""
    return image_resized(Image.open(io.BytesIO(content)))


def frames_of(count: int) -> list[int]:
    """The numbers of evenly spaced frames, from the first to the last of `count`."""
    return [(2 * at * (count - 1) + NUM_FRAMES - 1) // (2 * NUM_FRAMES - 2) for at in range(NUM_FRAMES)]


def video_frames(content: bytes) -> torch.Tensor:
    """Evenly spaced frames of a video as uint8 (frames, 3, height, width), by torchcodec."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(content, num_ffmpeg_threads=1)
    return decoder.get_frames_at(frames_of(len(decoder))).data


def waveform(samples: torch.Tensor) -> torch.Tensor:
    """16-bit audio as float32 in -1..1."""
    return samples.float().div_(32_768)


def audio_samples(content: bytes) -> torch.Tensor:
    """The samples of a medium as float32 (1, samples), by soundfile."""
    import soundfile

    return torch.from_numpy(soundfile.read(io.BytesIO(content), dtype="float32")[0])[None]


def chat_tokens(content: bytes | memoryview | dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels of a chat; what was asked is masked in the labels."""
    chat = content if isinstance(content, dict) else json.loads(bytes(content))
    tokens = torch.tensor(chat["tokens"], dtype=torch.int64)
    labels = tokens.clone()
    labels[: chat["prompt"]] = -100
    return tokens, labels


def chosen_packs(samples: Iterable[Any], length: Any) -> list[list[Any]]:
    """Samples in the order in which they come; a pack is closed when the next one does not fit."""
    packs: list[list[Any]] = []
    free = 0
    for sample in samples:
        size = length(sample)
        if not packs or size > free:
            packs.append([])
            free = CAPACITY
        packs[-1].append(sample)
        free -= size
    return packs


def packed(tokens: list[torch.Tensor], labels: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """One sequence of CAPACITY tokens: tokens, labels, and positions that restart from 0 with each sample."""
    positions = torch.cat([torch.arange(len(one)) for one in tokens])
    fill = CAPACITY - len(positions)
    pad = torch.nn.functional.pad
    return pad(torch.cat(tokens), (0, fill)), pad(torch.cat(labels), (0, fill), value=-100), pad(positions, (0, fill))


def packed_stream(samples: Iterable[tuple[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Packs of a stream of keys with (tokens, labels), for libraries without packing: greedy, buffer by buffer."""
    buffer = []
    for sample in samples:
        buffer.append(sample)
        if len(buffer) == PACKING_BUFFER:
            yield from packed_buffer(buffer)
            buffer = []


def packed_buffer(samples: list[tuple[str, Any]]) -> list[tuple[Any, ...]]:
    """The packs (keys, tokens, labels, positions) of one buffer; a `collate_fn` too."""
    packs = []
    for pack in chosen_packs(samples, lambda sample: len(sample[1][0])):
        keys, chats = zip(*pack, strict=True)
        tokens, labels = zip(*chats, strict=True)
        packs.append((",".join(keys), *packed(list(tokens), list(labels))))
    return packs


def stacked_packs(packs: list[tuple[Any, ...]]) -> dict[str, Any]:
    """A batch of packs."""
    keys, *columns = zip(*packs, strict=True)
    tokens, labels, positions = (torch.stack(column) for column in columns)
    return {"key": list(keys), "tokens": tokens, "labels": labels, "positions": positions}


def batches_of(packs: Iterable[tuple[Any, ...]], size: int) -> Iterator[dict[str, Any]]:
    """Packs in batches of `size`."""
    waiting: list[tuple[Any, ...]] = []
    for pack in packs:
        waiting.append(pack)
        if len(waiting) == size:
            yield stacked_packs(waiting)
            waiting = []


def stacked(samples: list[tuple[str, Any]]) -> dict[str, Any]:
    """A batch of keys with texts or with tensors of equal shapes."""
    keys, values = zip(*samples, strict=True)
    return {"key": list(keys), "value": torch.stack(values) if torch.is_tensor(values[0]) else list(values)}


DECODERS: dict[str, tuple[str, Any]] = {
    "jpeg": ("jpg", image_uint8),
    "photos": ("jpg", photo_resized),
    "video": ("mp4", video_frames),
    "audio": ("flac", audio_samples),
    "chat": ("json", chat_tokens),
}
"""The part of a workload's samples and what becomes of it; workloads that are not here are texts."""


def sets_of(data: Path) -> list[Path]:
    """The data sets of a workload: its folder, or the folders of a blend."""
    return [data] if (data / "tars").exists() else sorted(data.glob("[0-9][0-9]"))


def part_of(workload: str) -> str:
    """The name of the one part of this workload's samples."""
    return DECODERS.get(workload, ("txt", None))[0]


def decoded(workload: str, content: bytes) -> Any:
    """What a sample of this workload becomes."""
    decode = DECODERS[workload][1] if workload in DECODERS else bytes.decode
    return decode(content)
