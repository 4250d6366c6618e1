"""The recipes by transformers' processor, with a collator, under torch's DataLoader; as a user writes it.

The collator renders the chats of a batch, calls the processor once, marks the answers, and packs or pads. It is also
what `check` computes: the batches that another program has shown, anew from their keys, field by field.

    python recipe_transformers.py check --workload qwen --data FOLDER --of FILE      # prints what differs first
"""

import argparse
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import recipe_work as work
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

NEVER_LEARNT = ("<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
Row = tuple[str, list[dict[str, Any]], list[Image.Image]]


class Chats(Dataset[Row]):
    """Turns as parts, and decoded photos."""

    def __init__(self, folder: Path) -> None:
        self.chats = work.indexed(folder)

    def __len__(self) -> int:
        return len(self.chats)

    def __getitem__(self, number: int) -> Row:
        chat = self.chats[number]
        turns = [{**turn, "content": work.parts_of(turn["content"])} for turn in chat.messages()]
        return chat.key, turns, [Image.open(io.BytesIO(photo)).convert("RGB") for photo in chat.photos()]


class Collator:
    """Rows to a batch."""

    def __init__(self, recipe: str, folder: Path) -> None:
        self.recipe, self.processor = work.RECIPES[recipe], work.processor(recipe, folder)
        tokenizer = self.processor.tokenizer
        tokenizer.padding_side = "right"
        self.begin = tokenizer("<|im_start|>assistant\n").input_ids
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.never = torch.tensor(tokenizer.convert_tokens_to_ids(list(NEVER_LEARNT)))

    def __call__(self, rows: Sequence[Row]) -> tuple[list[str], dict[str, torch.Tensor]]:
        keys, turns, photos = zip(*rows, strict=True)
        batch = self._packed(turns, photos) if self.recipe.is_packed else self._padded(turns, photos)
        return list(keys), batch

    def _packed(self, turns: Sequence[Any], photos: Sequence[list[Image.Image]]) -> dict[str, torch.Tensor]:
        """One row; answers are found by the tokens around them, as the template marks none."""
        texts = self.processor.apply_chat_template(list(turns), tokenize=False)
        images = [photo for its_photos in photos for photo in its_photos]
        made = self.processor(text=texts, images=images or None, padding=False)
        ids = [torch.tensor(row) for row in made["input_ids"]]
        labels, masks = zip(*map(self._learnt, ids), strict=True)
        lengths = torch.tensor([len(row) for row in ids])
        bounds = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        media = {name: torch.as_tensor(made[name]) for name in ("pixel_values", "image_grid_thw") if name in made}
        return media | {
            "input_ids": torch.cat(ids)[None],
            "labels": torch.cat(labels)[None],
            "loss_mask": torch.cat(masks)[None],
            "position_ids": torch.cat([torch.arange(len(row)) for row in ids])[None],
            "cu_seqlens": bounds,
        }

    def _learnt(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Labels and loss mask of a row: what is after the beginning of an answer, through its end and the
        line break after it, as Bridge has it."""
        has_loss = torch.zeros(len(ids), dtype=torch.bool)
        row, width = ids.tolist(), len(self.begin)
        at = 0
        while True:
            try:
                at = row.index(self.begin[0], at)
            except ValueError:
                break
            if row[at : at + width] == self.begin:
                end = row.index(self.end, at + width) + 2
                has_loss[at + width : end] = True
                at = end
            else:
                at += 1
        return self._shifted(ids, has_loss & ~torch.isin(ids, self.never))

    def _padded(self, turns: Sequence[Any], photos: Sequence[list[Image.Image]]) -> dict[str, torch.Tensor]:
        """Padded rows; answers are found by their characters. (The mask of answers of transformers 5.12 counts an image
        as one token, and so marks others.)"""
        texts = self.processor.apply_chat_template(list(turns), tokenize=False)
        images = [photo for its_photos in photos for photo in its_photos]
        options = {"padding": True, "return_tensors": "pt", "return_offsets_mapping": True}
        made = self.processor(text=texts, images=images, **options)
        marks = torch.zeros(made["input_ids"].shape, dtype=torch.bool)
        for row, text in enumerate(texts):
            starts, ends = made["offset_mapping"][row].unbind(-1)
            num_images = (made["input_ids"][row] == self.processor.image_token_id).sum()
            longer = (num_images - text.count("<image>")) * len("<image>")  # than the text, in which an image is one
            at = 0
            for turn in turns[row][1::2]:
                start = text.index("ASSISTANT: ", at) + len("ASSISTANT: ")
                at = start + len(turn["content"][0]["text"]) + 1
                marks[row] |= (starts < ends) & (ends > start + longer) & (starts < at + longer)
        labels, mask = self._shifted(made["input_ids"], marks)
        names = ("input_ids", "pixel_values", "image_sizes")
        return {name: made[name] for name in names if name in made} | {"labels": labels, "loss_mask": mask}

    @staticmethod
    def _shifted(ids: torch.Tensor, has_loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.full_like(ids, work.IGNORED)
        labels[..., :-1] = torch.where(has_loss, ids, work.IGNORED)[..., 1:]
        return labels, (labels != work.IGNORED).float()


class Loader(work.Loader):
    """Epoch after epoch of the DataLoader."""

    def __init__(self, recipe: str, data: Path, workers: int) -> None:
        import transformers

        chosen = {"version": transformers.__version__, "format": "tars, mapped, offsets known", "shuffle": "all"}
        super().__init__(
            recipe, data, workers, chosen | {"decoder": "Pillow", "prefetch": "2 batches a worker (default)"}
        )
        options: dict[str, Any] = {"multiprocessing_context": "fork", "persistent_workers": True} if workers else {}
        self.loader: Any = DataLoader(
            Chats(data),
            batch_size=self.recipe.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            collate_fn=Collator(recipe, data),
            worker_init_fn=_one_thread,
            **options,
        )

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def fields(self, batch: Any) -> tuple[list[str], dict[str, torch.Tensor]]:
        return batch


def _one_thread(worker: int) -> None:
    torch.set_num_threads(1)


# The check of other programs


def check(recipe: str, data: Path, shown: Sequence[tuple[list[str], dict[str, torch.Tensor]]]) -> str:
    """`equal`, or what differs first between the batches shown and those of the collator for the same keys."""
    chats, collate = Chats(data), Collator(recipe, data)
    numbers = {chat.key: number for number, chat in enumerate(chats.chats)}
    for keys, found in shown:
        rows = [chats[numbers[key.rpartition("/")[2]]] for key in keys]
        _, expected = collate(rows)
        if found.keys() != expected.keys():
            return f"fields {sorted(found)}; expected {sorted(expected)}"
        for name, value in expected.items():
            if difference := _differs(found[name], value):
                return f"{name} of {keys[0]}: {difference}"
    return "equal"


def _differs(found: torch.Tensor, expected: torch.Tensor) -> str:
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype} {tuple(found.shape)}; expected {expected.dtype} {tuple(expected.shape)}"
    if torch.equal(found, expected):
        return ""
    return f"{int((found != expected).sum())} of {found.numel()} values differ"


def main() -> None:
    """The command line."""
    if sys.argv[1:2] != ["check"]:
        work.main(Loader)
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["check"])
    parser.add_argument("--workload", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--of", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({"check": check(arguments.workload, arguments.data, torch.load(arguments.of))}))


if __name__ == "__main__":
    main()
