"""State files: what one data-parallel rank leaves in a checkpoint, under the name and in the form that Megatron uses.

Enters: a state, the step and the ranks. Leaves: the bytes of a file, and a state again. Guarantee: a file that we wrote
says so, with its step and rank; nothing in a file is executed.
"""

import dataclasses
import io
import os
import re
from pathlib import Path
from typing import Any

import torch

from bridge_data.errors import StateError
from bridge_data.order.state import LoaderState

FORMAT = "bridge_data.loader.checkpoint"
VERSION = 1
"""The version of the file and of the manifest."""

STATE_KEY = "dataloader_state_dict"
"""Where the state is in the file. Source: Megatron-LM and Megatron-Bridge, `maybe_save_dataloader_state`."""

_NAME = re.compile(r"train_dataloader_dprank(\d{3,})\.pt")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StateFile:
    """A file's content. Step, rank and world size are None in a file that others wrote: they do not keep them."""

    state: LoaderState
    step: int | None = None
    rank: int | None = None
    world_size: int | None = None


def rank_file(folder: Path, rank: int) -> Path:
    """The file of a data-parallel rank."""
    return folder / f"train_dataloader_dprank{rank:03d}.pt"


def rank_files(folder: Path) -> dict[str, Path]:
    """All files of ranks in `folder` by name, in the order of the ranks."""
    found = ((match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)))
    return {path.name: path for match, path in sorted(found, key=lambda item: int(item[0][1]))}


def encoded(state: LoaderState, *, step: int, rank: int, world_size: int) -> bytes:
    """The bytes of a rank's file."""
    content = {STATE_KEY: state.to_dict(), "format": FORMAT, "version": VERSION}
    buffer = io.BytesIO()
    torch.save(content | {"step": step, "rank": rank, "world_size": world_size}, buffer)
    return buffer.getvalue()


def decoded(data: bytes, path: Path) -> StateFile:
    """The content of a file: ours, Megatron's, or a bare state as `loader.save_state_rank()` and the like return it.

    Raises:
        StateError: naming `path`, if it is none of these.
    """
    damaged = StateError(
        f"{path}: cannot be read as a data state, which is plain data written by torch.save: the file is damaged, "
        "or holds objects (as Energon's states do), which are not loaded. Copy it again from where it was saved, "
        "or take another checkpoint."
    )
    try:
        content: Any = torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # what unpickling makes of damaged bytes may be anything
        raise damaged from error
    is_wrapped = isinstance(content, dict) and STATE_KEY in content
    is_ours = is_wrapped and content.get("format") == FORMAT
    if is_ours and content.get("version") != VERSION:
        raise StateError(
            f"{path}: got version {content.get('version')} of the file format, expected {VERSION}; "
            "read it with the release that wrote it"
        )
    try:
        state = LoaderState.from_dict(content[STATE_KEY] if is_wrapped else content)
        if not is_ours:
            return StateFile(state=state)
        return StateFile(state=state, step=content["step"], rank=content["rank"], world_size=content["world_size"])
    except StateError as error:
        raise StateError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged from error


def read_bytes(path: Path) -> bytes:
    """The bytes of a file of a checkpoint.

    Raises:
        StateError: if it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise StateError(f"{path}: cannot be read: {error.strerror}") from error


def write_whole(path: Path, data: bytes) -> None:
    """Put a file in place at once: a reader, or a crash at any moment, finds all of it or what was there before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_names(path.parent)


def sync_names(folder: Path) -> None:
    """Have the names in `folder` on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
