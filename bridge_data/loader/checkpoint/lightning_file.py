"""The state of the data in a checkpoint of Lightning, with model and optimizer.

Reads a `.ckpt` that a trainer with our DataModule saved. Returns the state of the whole job, and the step; or the file
with another state and everything else unchanged. Nothing in the file is executed, and a reader reads none of its
tensors.
"""

from pathlib import Path
from typing import Any

import torch

from bridge_data.errors import StateError
from bridge_data.order.state import LoaderState
from bridge_data.storage.atomic import replacing

LIGHTNING_SUFFIX = ".ckpt"
"""The suffix of these files."""

LIGHTNING_KEY = "train_dataloader"
"""The key of the state in the DataModule's state, which Lightning keeps under the name of its class."""


def read_lightning(path: Path) -> tuple[LoaderState, int]:
    """(state, steps taken) of a checkpoint of Lightning.

    Raises:
        StateError: if it cannot be read, or has no state of the data.
    """
    content = _content(path)
    try:
        return LoaderState.from_dict(_of_data_module(content, path)[LIGHTNING_KEY]), int(content["global_step"])
    except (StateError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path}: {error}") from error


def write_lightning(path: Path, state: LoaderState, target: Path) -> None:
    """Write the checkpoint of Lightning at `path` with another state to `target`, atomically; both may be one path.
    All else in it is unchanged; tensors are written as CPU tensors, as Lightning loads them.

    Raises:
        StateError: if it cannot be read or written, or has no state of the data.
    """
    content = _content(path)
    _of_data_module(content, path)[LIGHTNING_KEY] = state.to_dict()
    try:
        with replacing(target) as temporary, temporary.open("wb") as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:  # torch raises the latter, and has the former as context
        why = error if isinstance(error, OSError) else error.__context__ or error
        raise StateError(f"{target}: was not written, and is unchanged: {why}") from error


def _content(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (FileNotFoundError, PermissionError) as error:
        raise StateError(f"{path}: cannot be read: {error.strerror}") from error
    except Exception as error:  # unpickling damaged bytes may raise anything
        raise StateError(
            f"{path}: cannot be read as a checkpoint of Lightning with plain data: the file is damaged, or holds "
            "objects (such as hyperparameters of classes of your own), which are not loaded. Take another checkpoint, "
            "or save the data state alone: torch.save(data_module.state_dict()['train_dataloader'], 'state.pt')"
        ) from error


def _of_data_module(content: Any, path: Path) -> dict[str, Any]:
    """The part of a checkpoint's content that is of our DataModule."""
    of_modules = content.values() if isinstance(content, dict) else ()
    found = [value for value in of_modules if isinstance(value, dict) and LIGHTNING_KEY in value]
    if not found:
        raise StateError(f"{path}: has no state of the data: it was saved without the DataModule of bridge_data")
    if len(found) > 1:
        raise StateError(f"{path}: has the states of {len(found)} DataModules, expected one: save each to its own file")
    return found[0]
