"""The manifest of a checkpoint folder: which files belong to it. It is written last; without it nothing was saved.

Enters: the bytes of each rank's file. Leaves: JSON, and from it and a folder, the files' bytes. Guarantee: they are the
ones that were written together; any other is refused by name.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from bridge_data.errors import StateError
from bridge_data.loader.checkpoint.state_file import FORMAT, VERSION, rank_files, read_bytes, write_whole

MANIFEST = "train_dataloader_manifest.json"

_MOST_LINES = 12


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
    """What a folder holds: `fingerprint` stands for that of the run, `files` are those of the ranks by name."""

    step: int
    world_size: int
    fingerprint: str
    files: Mapping[str, FileRecord]

    def write(self, folder: Path) -> None:
        """Write it; from now on the checkpoint is complete."""
        content = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        write_whole(folder / MANIFEST, (json.dumps(content, indent=1) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The manifest of a folder, None if there is none.

        Raises:
            StateError: if it is of another format, or damaged.
        """
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

    def read_files(self, folder: Path) -> dict[str, bytes]:
        """The content of every file.

        Raises:
            StateError: naming each file that is missing, altered, or of another checkpoint.
        """
        found = rank_files(folder)
        contents = {name: read_bytes(found[name]) for name in self.files if name in found}
        faults = [f"{name} is missing" for name in self.files if name not in found]
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
            more = len(faults) - _MOST_LINES
            lines = faults[:_MOST_LINES] + ([f"and {more} more"] if more > 0 else [])
            raise StateError(
                f"{folder}: these are not the files that step {self.step} saved:\n  " + "\n  ".join(lines) + "\n"
                "Copy what is missing or altered from where it was saved, remove what is of another run, or take "
                "another checkpoint."
            )
        return contents


def digest(fingerprint: Mapping[str, Any]) -> str:
    """A few hex digits for the fingerprint of a run."""
    text = json.dumps(fingerprint, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
