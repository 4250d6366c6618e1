"""The files of a checkpoint: one a data-parallel rank, in Megatron's format and under its name, and a manifest.

Enters: a state, the step and the rank; the bytes of each rank's file. Leaves: the bytes of a file, or a state again;
the manifest, with size and checksum of each file. Guarantee: a file that we wrote says so, with its step and rank;
nothing in a file is executed; files that were not saved together are refused by name. The manifest makes files a
checkpoint: without it nothing was saved.

A save over an earlier one writes its files next to the old ones, under `new_file`; the new manifest then makes
them the checkpoint, and they are renamed. So the manifest decides between two files: the one whose checksum it
has is valid.
"""

import dataclasses
import hashlib
import io
import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from bridge_data.errors import DatasetError, StateError
from bridge_data.order.state import FORMAT as STATE_FORMAT
from bridge_data.order.state import LoaderState, merge_states
from bridge_data.storage.atomic import write_file
from bridge_data.storage.reading import read_if_there
from bridge_data.topology import WorkerConfig

FORMAT = "bridge_data.checkpoint"
"""The name of the format in files and manifests: part of the format, it does not follow this module's name."""
VERSION = 1
"""The version of the file and of the manifest."""

STATE_KEY = "dataloader_state_dict"
"""Where the state is in the file. Source: Megatron-LM and Megatron-Bridge, `maybe_save_dataloader_state`."""

MANIFEST = "train_dataloader_manifest.json"

_NEW = ".new"

_MAX_LINES = 12
"""Maximum number of faults that an error lists."""

_NAME = re.compile(r"train_dataloader_dprank(\d{3,})\.pt")
_NEW_NAME = re.compile(rf"\.(train_dataloader_.*){re.escape(_NEW)}")


class DamagedManifestError(StateError):
    """A manifest that was read and is invalid. (One that cannot be read at the moment may be valid.)"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StateFile:
    """A file's content. Step, rank and world size are None in a file that others wrote, without them."""

    state: LoaderState
    step: int | None = None
    rank: int | None = None
    world_size: int | None = None


def share_of(state: LoaderState, rank: int, world_size: int) -> LoaderState:
    """The lanes of a state that `rank` saves: every `world_size`-th one."""
    return state.of_rank(WorkerConfig(rank=rank, world_size=world_size, num_workers=0))


def rank_file(folder: Path, rank: int) -> Path:
    """The path of a rank's file, as Megatron-LM names it."""
    return folder / f"train_dataloader_dprank{rank:03d}.pt"


def new_file(path: Path) -> Path:
    """Where the new file for `path` is written first."""
    return path.with_name(f".{path.name}{_NEW}")


def new_files(folder: Path) -> dict[Path, Path]:
    """The files in `folder` that are not renamed yet, by their final path."""
    found = ((_NEW_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return {path.with_name(match[1]): path for match, path in found if match}


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
    """The content of a file: ours, Megatron's, or a bare state as `loader.save_state_rank()` and the like return it, or
    a list of these."""
    damaged = StateError(
        f"{path}: cannot be read as a data state, which is plain data written by torch.save: the file is damaged, "
        "or holds objects (as Energon's states do), which are not loaded. Copy it again from where it was saved, "
        "or take another checkpoint."
    )
    try:
        content = _content(data)
    except Exception as error:  # unpickling damaged bytes may raise anything
        raise damaged from error
    is_wrapped = isinstance(content, dict) and STATE_KEY in content
    is_ours = is_wrapped and content.get("format") == FORMAT
    if is_ours and content.get("version") != VERSION:
        raise StateError(
            f"{path}: got version {content.get('version')} of the file format, expected {VERSION}; "
            "read it with the release that wrote it"
        )
    if (key := _key_of_state(content)) is not None:
        raise StateError(
            f"{path}: has a data state in {key}, among other things; expected a state alone, a file as Megatron "
            f"writes it (the state under {STATE_KEY!r}), or a checkpoint of Lightning (*.ckpt). Rename it if it is the "
            f"last; else write the state to a file: torch.save(torch.load({str(path)!r}){key}, 'state.pt')"
        )
    try:
        bare = content[STATE_KEY] if is_wrapped else content
        state = LoaderState.from_dict(merge_states(bare) if isinstance(bare, list) else bare)
        if not is_ours:
            return StateFile(state=state)
        return StateFile(state=state, step=content["step"], rank=content["rank"], world_size=content["world_size"])
    except StateError as error:
        raise StateError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged from error


def with_state(data: bytes, state: LoaderState) -> bytes:
    """The content of a file that `decoded` has read, with another state and all else unchanged."""
    content = _content(data)
    buffer = io.BytesIO()
    torch.save({**content, STATE_KEY: state.to_dict()} if STATE_KEY in content else state.to_dict(), buffer)
    return buffer.getvalue()


def beside_state(data: bytes) -> list[str]:
    """What others keep with the state in a file that `decoded` has read."""
    content = _content(data)
    is_theirs = STATE_KEY in content and content.get("format") != FORMAT
    return sorted(map(str, content.keys() - {STATE_KEY})) if is_theirs else []


def _content(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _key_of_state(content: Any) -> str | None:
    """The expression for a state that a user saved among other things; None if there is none."""
    if not isinstance(content, dict) or STATE_KEY in content:
        return None
    for key, value in content.items():
        inner = {f"[{key!r}]": value}
        if isinstance(value, dict):
            inner |= {f"[{key!r}][{name!r}]": one for name, one in value.items()}
        for path, one in inner.items():
            if isinstance(one, dict) and one.get("format") == STATE_FORMAT:
                return path
    return None


def read_bytes(path: Path) -> bytes:
    """The content of a file."""
    data = read_if_saved(path)
    if data is None:
        raise StateError(f"{path}: cannot be read: there is no such file")
    return data


def read_if_saved(path: Path) -> bytes | None:
    """The content of a file, None if there is none. Transient faults of the file system are retried; a file that still
    cannot be read is a `StateError`, never taken for absent."""
    try:
        return read_if_there(path)
    except DatasetError as error:
        raise StateError(str(error)) from error


@dataclasses.dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and checksum of a file."""

    size_bytes: int
    blake2b: str

    def __post_init__(self) -> None:
        if type(self.size_bytes) is not int or type(self.blake2b) is not str:
            raise TypeError(f"a file has size {reprlib.repr(self.size_bytes)}, blake2b {reprlib.repr(self.blake2b)}")

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The record of a file with this content."""
        return cls(len(data), hashlib.blake2b(data, digest_size=16).hexdigest())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a folder holds: a digest of the run's `fingerprint`, and the rank files by name. `replaced` are files of an
    earlier save by more ranks, no longer valid; they may not all have been deleted."""

    step: int
    world_size: int
    fingerprint: str
    files: Mapping[str, FileRecord]
    replaced: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not (type(self.step) is type(self.world_size) is int and type(self.fingerprint) is str):
            raise TypeError("step and world_size are no integers, or fingerprint is no text")
        if not (isinstance(self.replaced, list | tuple) and all(isinstance(name, str) for name in self.replaced)):
            raise TypeError("replaced is no list of names")

    def write(self, folder: Path) -> None:
        """Write the manifest, which completes the checkpoint."""
        content = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        write_file(folder / MANIFEST, (json.dumps(content, indent=1) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The manifest of a folder, None if there is none.

        Raises:
            DamagedManifestError: if it is invalid, or truncated.
            StateError: if it cannot be read, or is of another version.
        """
        path = folder / MANIFEST
        if (data := read_if_saved(path)) is None:
            return None
        try:
            content: dict[str, Any] = json.loads(data)
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
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedManifestError(
                f"{path}: is no manifest of a checkpoint ({error}): damaged, or something else. "
                "Restore the file, or take another checkpoint."
            ) from error

    def is_of(self, path: Path, data: bytes) -> bool:
        """Whether `data` is the saved content of the file at `path`."""
        return FileRecord.of(data) == self.files.get(path.name)

    def _read_file(self, path: Path) -> bytes | None:
        """The file at `path`, or else the one not yet renamed to it, whichever was saved; None if neither
        exists."""
        data = read_if_saved(path)
        if data is not None and self.is_of(path, data):
            return data
        new = read_if_saved(new_file(path))
        return new if data is None or (new is not None and self.is_of(path, new)) else data

    def read_files(self, folder: Path) -> dict[str, bytes]:
        """The content of every file. A `StateError` names each that is missing, altered, or of another checkpoint."""
        found = {name: path for name, path in rank_files(folder).items() if name not in self.replaced}
        read = {name: self._read_file(folder / name) for name in self.files}
        contents = {name: data for name, data in read.items() if data is not None}
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
        """Refuse files that name another save in their content."""
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


def digest(fingerprint: Mapping[str, Any]) -> str:
    """A short digest of the fingerprint of a run."""
    text = json.dumps(fingerprint, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
