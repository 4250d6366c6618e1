"""The state of the data in a checkpoint of Lightning.

Enters: a `.ckpt` that a trainer with our DataModule saved. Leaves: the state of the whole job, and the step. Guarantee:
nothing in the file is executed, and of its tensors none is read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bridge_data.errors import StateError
from bridge_data.order.state import LoaderState

LIGHTNING_KEY = "train_dataloader"
"""Where the state is in what the DataModule gives to Lightning, which keeps that under the name of its class."""


def read_lightning(path: Path) -> tuple[LoaderState, int]:
    """(state, steps that were taken) of a checkpoint of Lightning.

    Raises:
        StateError: if it cannot be read, or has no state of the data.
    """
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (FileNotFoundError, PermissionError) as error:
        raise StateError(f"{path}: cannot be read: {error.strerror}") from error
    except Exception as error:  # what unpickling makes of damaged bytes may be anything
        raise StateError(
            f"{path}: cannot be read as a checkpoint of Lightning with plain data: the file is damaged, or holds "
            "objects (such as hyperparameters of classes of your own), which are not loaded. Take another checkpoint, "
            "or save the state of the data apart: torch.save(data_module.state_dict()['train_dataloader'], 'state.pt')"
        ) from error
    of_modules = content.values() if isinstance(content, dict) else ()
    found = [value[LIGHTNING_KEY] for value in of_modules if isinstance(value, Mapping) and LIGHTNING_KEY in value]
    if not found:
        raise StateError(f"{path}: has no state of the data: it was saved without the DataModule of bridge_data")
    if len(found) > 1:
        raise StateError(f"{path}: has the states of {len(found)} DataModules, expected one: save each to its own file")
    try:
        return LoaderState.from_dict(found[0]), int(content["global_step"])
    except (StateError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path}: {error}") from error
