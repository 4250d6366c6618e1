"""The files of a checkpoint: one a data-parallel rank, in Megatron's format and under its name, and a manifest.

Enters: a state, the step and the rank; the bytes of each rank's file. Leaves: the bytes of a file, or a state again;
the manifest, with size and checksum of each file. Guarantee: a file that we wrote says so, with its step and rank;
nothing in a file is executed; files that were not saved together are refused by name. The manifest makes files a
checkpoint: without it nothing was saved.

A save over an earlier one writes its files beside those of the other, under `new_file`; the new manifest then makes
them the checkpoint, and they are renamed. So the manifest says which of two files is meant: the one that it has the
checksum of.
"""

import dataclasses
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from bridge_data.errors import StateError
from bridge_data.order.state import LoaderState
from bridge_data.storage.atomic import write_file

FORMAT = "bridge_data.checkpoint"
"""The name of the format in files and manifests: part of the format, it does not follow this module's name."""
VERSION = 1
"""The version of the file and of the manifest."""

STATE_KEY = "dataloader_state_dict"
"""Where the state is in the file. Source: Megatron-LM and Megatron-Bridge, `maybe_save_dataloader_state`."""

MANIFEST = "train_dataloader_manifest.json"

_NEW = ".new"

_MAX_LINES = 12
"""Faults that an error lists."""

_NAME = re.compile(r"train_dataloader_dprank(\d{3,})\.pt")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StateFile:
    """A file's content. Step, rank and world size are None in a file that others wrote: they do not keep them."""

    state: LoaderState
    step: int | None = None
    rank: int | None = None
    world_size: int | None = None


def rank_file(folder: Path, rank: int) -> Path:
    return folder / f"train_dataloader_dprank{rank:03d}.pt"


def new_file(path: Path) -> Path:
    """Where the file that is to be at `path` is written."""
    return path.with_name(f".{path.name}{_NEW}")


def new_files(folder: Path) -> dict[Path, Path]:
    """The files in `folder` that are not renamed yet, by the path where they are to be."""
    return {path.with_name(path.name[1 : -len(_NEW)]): path for path in folder.glob(f".train_dataloader_*{_NEW}")}


def rank_files(folder: Path) -> dict[str, Path]:
    """All files of ranks in `folder` by name, in the order of the ranks."""
    found = ((match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)))
    return {path.name: path for match, path in sorted(found, key=lambda item: int(item[0][1]))}


def encoded(state: LoaderState, *, step: int, rank: int, world_size: int) -> bytes:
    content = {STATE_KEY: state.to_dict(), "format": FORMAT, "version": VERSION}
    buffer = io.BytesIO()
    torch.save(content | {"step": step, "rank": rank, "world_size": world_size}, buffer)
    return buffer.getvalue()


def decoded(data: bytes, path: Path) -> StateFile:
    """The content of a file: ours, Megatron's, or a bare state as `loader.save_state_rank()` and the like return it."""
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


def of_lightning(path: Path) -> StateFile:
    """The state of the DataModule in a checkpoint of Lightning. Weights are not read."""
    way_out = "load it in your own code, torch.save what it has under the name of the DataModule, and give that file"
    try:
        content: Any = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except Exception as error:  # what unpickling makes of damaged bytes may be anything
        why = str(error).partition("\n")[0]
        raise StateError(f"{path}: cannot be read as a checkpoint of plain data ({why}); {way_out}") from error
    parts = content.values() if isinstance(content, dict) else ()
    states = [part["train_dataloader"] for part in parts if isinstance(part, dict) and "train_dataloader" in part]
    if len(states) != 1:
        raise StateError(f"{path}: holds {len(states)} data states of a DataModule, expected one")
    try:
        return StateFile(state=LoaderState.from_dict(states[0]), step=content.get("global_step"))
    except StateError as error:
        raise StateError(f"{path}: {error}") from error


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StateError(f"{path}: cannot be read: {error.strerror}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and checksum of a file."""

    size_bytes: int
    blake2b: str

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The record of a file with this content."""
        return cls(len(data), hashlib.blake2b(data, digest_size=16).hexdigest())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a folder holds: a digest of the run's `fingerprint`, and the rank files by name. `replaced` are files of an
    earlier save by more ranks, which are no longer meant; they may not all have been deleted."""

    step: int
    world_size: int
    fingerprint: str
    files: Mapping[str, FileRecord]
    replaced: Sequence[str] = ()

    def write(self, folder: Path) -> None:
        """Write the manifest, which completes the checkpoint."""
        content = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        write_file(folder / MANIFEST, (json.dumps(content, indent=1) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The manifest of a folder, None if there is none."""
        path = folder / MANIFEST
        if not path.exists():
            return None
        try:
            content: dict[str, Any] = json.loads(read_bytes(path))
            if content.pop("format") != FORMAT:
                raise ValueError("it is of another format")
            if content["version"] != VERSION:
                raise StateError(
                    f"{path}: got version {content['version']} of the manifest, expected {VERSION}; "
                    "load the checkpoint with the release that wrote it"
                )
            del content["version"]
            files = {name: FileRecord(**record) for name, record in content.pop("files").items()}
            return cls(**content, files=files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(
                f"{path}: is no manifest of a checkpoint ({error}): damaged, or something else. "
                "Restore the file, or take another checkpoint."
            ) from error

    def is_of(self, path: Path, data: bytes) -> bool:
        """Whether `data` is what the file at `path` is to hold."""
        return FileRecord.of(data) == self.files.get(path.name)

    def _read_file(self, path: Path) -> bytes:
        """The file at `path`, or the one that was to be renamed to it, if that is what was saved."""
        data = read_bytes(path) if path.exists() else b""
        if self.is_of(path, data) or not new_file(path).exists():
            return data
        new = read_bytes(new_file(path))
        return new if self.is_of(path, new) or not path.exists() else data

    def read_files(self, folder: Path) -> dict[str, bytes]:
        """The content of every file. A `StateError` names each that is missing, altered, or of another checkpoint."""
        found = {name: path for name, path in rank_files(folder).items() if name not in self.replaced}
        contents = {name: self._read_file(folder / name) for name in self.files if _is_there(folder / name)}
        faults = [f"{name} is missing" for name in self.files if name not in contents]
        for name, data in contents.items():
            if (got := FileRecord.of(data)) != (saved := self.files[name]):
                faults.append(
                    f"{name} has other content: {got.size_bytes:,} bytes, blake2b {got.blake2b[:12]}…; "
                    f"saved were {saved.size_bytes:,} bytes, {saved.blake2b[:12]}…"
                )
        faults += [
            f"{name} is of another run: {self.world_size} ranks saved" for name in found if name not in self.files
        ]
        if faults:
            more = len(faults) - _MAX_LINES
            lines = faults[:_MAX_LINES] + ([f"and {more} more"] if more > 0 else [])
            raise StateError(
                f"{folder}: these are not the files that step {self.step} saved:\n  " + "\n  ".join(lines) + "\n"
                "Copy what is missing or altered from where it was saved, remove what is of another run, or take "
                "another checkpoint."
            )
        return contents

    def check(self, folder: Path, files: "Mapping[str, StateFile]") -> None:
        """Refuse files that say of themselves that they are of another save."""
        for name, file in files.items():
            saved = {"step": file.step, "world_size": file.world_size, "fingerprint": digest(file.state.fingerprint)}
            for what, got in saved.items():
                if got != (expected := getattr(self, what)):
                    raise StateError(
                        f"{folder}: {name} was saved with {what} {got}, {MANIFEST} has {expected}: "
                        "one of them is of another save. Copy the whole folder again, or take another checkpoint."
                    )


def check_foreign(folder: Path, files: Mapping[str, StateFile]) -> None:
    """Refuse our files without a manifest: nothing says that they belong together."""
    for name, file in files.items():
        if file.step is not None:
            raise StateError(
                f"{folder}: {MANIFEST} is missing, which says what belongs together: {name}, which {file.world_size} "
                f"ranks saved at step {file.step}, was copied without it, or before the save had ended. "
                "Copy the whole folder again, or take another checkpoint."
            )


def _is_there(path: Path) -> bool:
    return path.exists() or new_file(path).exists()


def digest(fingerprint: Mapping[str, Any]) -> str:
    """A short digest of the fingerprint of a run."""
    text = json.dumps(fingerprint, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
