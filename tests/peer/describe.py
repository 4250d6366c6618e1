"""Values as text that can be compared across packages: their types, dtypes and shapes, and their contents to the bit.

It runs under both Pythons, ours and the peer's, and imports neither package.
"""

import dataclasses
import hashlib
import re
from typing import Any

import numpy as np
import torch
from PIL import Image

LEFT_OUT = ("__restore_key__",)
"""Fields that are each package's own business."""


def describe(value: Any) -> Any:
    """`value` as JSON can hold it, so that equal descriptions mean equal values of equal types."""
    if isinstance(value, torch.Tensor):
        shape = "×".join(map(str, value.shape))
        return f"torch {value.dtype} {shape} {_digest(value.contiguous().numpy())}"
    if isinstance(value, np.ndarray):
        return f"numpy {value.dtype} {'×'.join(map(str, value.shape))} {_digest(np.ascontiguousarray(value))}"
    if isinstance(value, Image.Image):
        return f"Pillow {value.mode} {value.size} {_digest(np.asarray(value))}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes {_digest(np.frombuffer(value, np.uint8))}"
    if isinstance(value, dict):
        return {"type": "dict"} | {describe(key): describe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(describe, value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | describe_fields(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return f"{type(value).__name__} {value!r}"
    raise TypeError(f"{type(value).__name__} is not described yet")


def describe_fields(value: Any) -> dict[str, Any]:
    """The fields of a sample, batch or other dataclass. Of each source, what both packages define alike.

    Keys are given without their shard: they are `shard/key` here, as Energon's documentation has them and its code
    before version 7, and `key` in 7.4.1.
    """
    found = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.name == "__key__":
            found[field.name] = [_bare(key) for key in item] if isinstance(item, list) else _bare(item)
        elif field.name == "__sources__":
            found[field.name] = [[str(s.dataset_path), s.shard_name, list(s.file_names)] for s in _flat(item or ())]
        elif field.name == "__subflavors__":
            # For JSONL without any, 7.4.1 has None, and for tars {}, as ours has for both.
            found[field.name] = describe(item or {})
        elif field.name not in LEFT_OUT:
            found[field.name] = describe(item)
    return found


def _flat(sources: Any) -> list[Any]:
    """The sources. In 7.4.1 a batch has one tuple of them, as here, if its class is a `Batch`, else one a sample."""
    return [s for source in sources for s in (source if isinstance(source, tuple) else (source,))]


def _bare(key: str) -> str:
    return re.sub(r"^\S*\.(tar|tgz|tar\.gz)/", "", key)


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]
