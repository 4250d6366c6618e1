"""The upper bound: a loop in one process that does the work of a recipe once, and nothing else.

Offsets are known. A JPEG is decoded by simplejpeg into the memory of a Pillow image and resized by Pillow, as the image
processor does; its bytes are cut into patches or tiles, and looked up in a table straight into the tensor of the batch.
A chat is rendered by the tokenizer's template and tokenized once; answers are found by the tokens around them, or
by the text. Checks, settings, shuffling, provenance and states are left out.
"""

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import recipe_work as work
import torch
from PIL import Image

from bridge_data.child_process import keep_freed_memory
from bridge_data.decode.image import pillow_image
from bridge_data.encoders.pixel_table import table_of
from bridge_data.encoders.visuals import smart_resize

BICUBIC = Image.Resampling.BICUBIC


class Loader(work.Loader):
    """Batches of the chats in their order, again and again."""

    def __init__(self, recipe: str, data: Path, workers: int) -> None:
        if workers:
            raise ValueError("the bare loop is one process")
        chosen = {"version": version("simplejpeg"), "format": "tars, mapped, offsets known", "shuffle": "none"}
        super().__init__(recipe, data, workers, chosen | {"decoder": "simplejpeg, Pillow", "prefetch": "none"})
        self.name, self.chats = recipe, work.indexed(data)
        self.tokenizer = work.tokenizer(data, self.recipe.template)
        self.image_id = self.tokenizer.convert_tokens_to_ids("<|image_pad|>" if self.recipe.is_packed else "<image>")
        self.begin = self.tokenizer("<|im_start|>assistant\n").input_ids
        self.end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        if self.recipe.has_images:
            self.table = table_of(work.image_processor(recipe))

    def __iter__(self) -> Iterator[Any]:
        size = self.recipe.batch_size
        while True:
            for first in range(0, len(self.chats) - size + 1, size):
                chats = self.chats[first : first + size]
                yield [chat.key for chat in chats], self._batch(chats)

    def _batch(self, chats: Sequence[work.Chat]) -> dict[str, torch.Tensor]:
        photos = [[pillow_image(photo, "RGB") for photo in chat.photos()] for chat in chats]
        made, counts = self._images([photo for its in photos for photo in its])
        numbers = iter(counts)
        rows = [self._tokens(chat, [next(numbers) for _ in its]) for chat, its in zip(chats, photos, strict=True)]
        return made | (self._packed(rows) if self.recipe.is_packed else self._padded(rows))

    # Texts

    def _tokens(self, chat: work.Chat, counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of a chat, and which of them are learnt."""
        turns = [{**turn, "content": work.parts_of(turn["content"])} for turn in chat.messages()]
        text = self.tokenizer.apply_chat_template(turns, tokenize=False)
        found = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        has_loss = np.zeros(len(found.ids), bool)
        if self.recipe.is_packed:
            at, width, ids = 0, len(self.begin), found.ids
            while (at := _index(ids, self.begin, at)) >= 0:
                end = ids.index(self.end, at + width) + 2
                has_loss[at + width : end] = True
                at = end
        else:
            at = 0
            for turn in turns[1::2]:
                start = text.index("ASSISTANT: ", at) + len("ASSISTANT: ")
                at = start + len(turn["content"][0]["text"]) + 1
                first, last = found.char_to_token(start), found.char_to_token(at - 1)
                has_loss[first : last + 1] = True
        ids = np.array(found.ids)
        repeats = np.ones(len(ids), np.int64)
        repeats[ids == self.image_id] = counts
        return np.repeat(ids, repeats), np.repeat(has_loss, repeats)

    def _packed(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, torch.Tensor]:
        lengths = [len(ids) for ids, _ in rows]
        found = [_learnt(*row) for row in rows]
        fields = {
            "input_ids": np.concatenate([ids for ids, _ in rows]),
            "labels": np.concatenate([labels for labels, _ in found]),
            "loss_mask": np.concatenate([mask for _, mask in found]),
            "position_ids": np.concatenate([np.arange(length) for length in lengths]),
        }
        bounds = np.cumsum([0, *lengths], dtype=np.int32)
        return {name: torch.from_numpy(value)[None] for name, value in fields.items()} | {
            "cu_seqlens": torch.from_numpy(bounds)
        }

    def _padded(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, torch.Tensor]:
        shape = len(rows), max(len(ids) for ids, _ in rows)
        fields = {
            "input_ids": np.full(shape, self.tokenizer.pad_token_id),
            "labels": np.full(shape, work.IGNORED),
            "loss_mask": np.zeros(shape, np.float32),
        }
        for number, (ids, has_loss) in enumerate(rows):
            for name, value in zip(fields, (ids, *_learnt(ids, has_loss)), strict=True):
                fields[name][number, : len(ids)] = value
        return {name: torch.from_numpy(value) for name, value in fields.items()}

    # Images

    def _images(self, photos: Sequence[Image.Image]) -> tuple[dict[str, torch.Tensor], list[int]]:
        """The media of a batch, and the tokens of each image."""
        if not photos:
            return {}, []
        return {"qwen": self._patches, "llava": self._crops, "tiles": self._tiles}[self.name](photos)

    def _patches(self, photos: Sequence[Image.Image]) -> tuple[dict[str, torch.Tensor], list[int]]:
        patch, factor = work.PATCH, 2 * work.PATCH
        limits = factor, work.MIN_PIXELS, work.MAX_PIXELS
        sizes = [smart_resize((photo.height, photo.width), *limits) for photo in photos]
        grids = [(1, height // patch, width // patch) for height, width in sizes]
        counts = [rows * columns for _, rows, columns in grids]
        pixels = np.empty((sum(counts), 3, 1, patch * patch), np.uint8)
        at = 0
        for photo, (height, width), count in zip(photos, sizes, counts, strict=True):
            resized = np.asarray(photo.resize((width, height), BICUBIC))
            parts = resized.reshape(height // factor, 2, patch, width // factor, 2, patch, 3)
            target = pixels[at : at + count].reshape(height // factor, width // factor, 2, 2, 3, patch, patch)
            target[:] = parts.transpose(0, 3, 1, 4, 6, 2, 5)
            at += count
        values = self.table.look_up(torch.from_numpy(pixels), 2)
        media = {"pixel_values": values.flatten(1), "image_grid_thw": torch.tensor(grids)}
        return media, [count // 4 for count in counts]

    def _crops(self, photos: Sequence[Image.Image]) -> tuple[dict[str, torch.Tensor], list[int]]:
        edge = work.EDGE
        pixels = np.empty((len(photos), 3, edge, edge), np.uint8)
        for target, photo in zip(pixels, photos, strict=True):
            short = min(photo.size)
            width, height = (int(edge * side / short) for side in photo.size)
            resized = np.asarray(photo.resize((width, height), BICUBIC))
            top, left = (height - edge) // 2, (width - edge) // 2
            target[:] = resized[top : top + edge, left : left + edge].transpose(2, 0, 1)
        values = self.table.look_up(torch.from_numpy(pixels), 1)[:, :, 0]
        return {"pixel_values": values}, [(edge // work.PATCH) ** 2] * len(photos)

    def _tiles(self, photos: Sequence[Image.Image]) -> tuple[dict[str, torch.Tensor], list[int]]:
        from transformers.image_processing_utils import select_best_resolution

        edge, sizes = work.EDGE, [(photo.height, photo.width) for photo in photos]
        grids = [select_best_resolution(size, work.GRIDS) for size in sizes]
        num_tiles = [1 + (high // edge) * (wide // edge) for high, wide in grids]
        pixels = np.zeros((len(photos), max(num_tiles), 3, edge, edge), np.uint8)
        counts = []
        for target, photo, (high, wide) in zip(pixels, photos, grids, strict=True):
            target[0] = np.asarray(photo.resize((edge, edge), BICUBIC)).transpose(2, 0, 1)
            scale = min(wide / photo.width, high / photo.height)
            if wide / photo.width < high / photo.height:
                width, height = wide, min(int(np.ceil(photo.height * scale)), high)
            else:
                width, height = min(int(np.ceil(photo.width * scale)), wide), high
            whole = np.zeros((high, wide, 3), np.uint8)
            top, left = (high - height) // 2, (wide - width) // 2
            whole[top : top + height, left : left + width] = np.asarray(photo.resize((width, height), BICUBIC))
            cut = whole.reshape(high // edge, edge, wide // edge, edge, 3).transpose(0, 2, 4, 1, 3)
            target[1 : 1 + cut.shape[0] * cut.shape[1]] = cut.reshape(-1, 3, edge, edge)
            counts.append(_tokens_of(photo, high, wide))
        values = self.table.look_up(torch.from_numpy(pixels).flatten(0, 1), 1).view(pixels.shape)
        for row, count in zip(values, num_tiles, strict=True):
            row[count:] = 0
        return {"pixel_values": values, "image_sizes": torch.tensor(sizes)}, counts

    def fields(self, batch: Any) -> tuple[list[str], dict[str, torch.Tensor]]:
        return batch


def _tokens_of(photo: Image.Image, high: int, wide: int) -> int:
    """The tokens of an image in a grid of so many pixels, without its padding."""
    rows, columns = high // work.PATCH, wide // work.PATCH
    if photo.width / photo.height > columns / rows:
        rows -= (rows - int(round(photo.height * (columns / photo.width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(photo.width * (rows / photo.height), 7))) // 2 * 2
    return rows * columns + rows + (work.EDGE // work.PATCH) ** 2


def _index(ids: Sequence[int], wanted: Sequence[int], start: int) -> int:
    """Where `wanted` is next; -1: nowhere."""
    try:
        while True:
            start = ids.index(wanted[0], start)
            if ids[start : start + len(wanted)] == wanted:
                return start
            start += 1
    except ValueError:
        return -1


def _learnt(ids: np.ndarray, has_loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels, shifted, and loss mask."""
    labels = np.full(len(ids), work.IGNORED)
    labels[:-1][has_loss[1:]] = ids[1:][has_loss[1:]]
    return labels, (labels != work.IGNORED).astype(np.float32)


if __name__ == "__main__":
    keep_freed_memory()
    work.main(Loader)
