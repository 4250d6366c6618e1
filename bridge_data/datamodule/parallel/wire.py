"""Any batch as one tensor of bytes for a process group, and back.

Enters: a value. Leaves: its parts (a table of contents, its pickle, the memory of each tensor), to be copied into one
uint8 tensor; from such a tensor, the value. Guarantee: tensors of any dtype and shape, empty ones too, arrive
unchanged, and are aligned in the received memory.
"""

import pickle
from typing import Any

import torch

from bridge_data.loader.memory.batches import decode, encode_by_reference

_ALIGNMENT = 64


def encoded(value: Any) -> list[memoryview]:
    """The parts of `value`, none of them copied; each is padded so that the next one is aligned."""
    parts = [part.raw() for part in encode_by_reference(value)]
    table = pickle.dumps([part.nbytes for part in parts])
    head = len(table).to_bytes(8, "little") + table
    padded = [memoryview(head), _padding(len(head))]
    for part in parts:
        padded += [part, _padding(part.nbytes)]
    return padded


def num_bytes(parts: list[memoryview]) -> int:
    """The length of the tensor for these parts."""
    return sum(part.nbytes for part in parts)


def fill(content: torch.Tensor, parts: list[memoryview]) -> None:
    """Copy the parts into a uint8 tensor of their length."""
    target, offset = content.numpy().data, 0
    for part in parts:
        target[offset : offset + part.nbytes] = part
        offset += part.nbytes


def decoded(content: torch.Tensor) -> Any:
    """The value in a filled tensor, which shares its memory."""
    memory = content.numpy().data
    offset = 8 + int.from_bytes(memory[:8], "little")
    sizes = pickle.loads(memory[8:offset])
    parts = []
    for size in sizes:
        offset += -offset % _ALIGNMENT
        parts.append(memory[offset : offset + size])
        offset += size
    return decode(parts)


def _padding(num_bytes: int) -> memoryview:
    return memoryview(bytes(-num_bytes % _ALIGNMENT))
