"""A folder seen through a file system that makes faults: python -m tests.faults.faulty_mount SOURCE MOUNT_POINT

Read-only, by FUSE, past the page cache, so that every read of a program gets here. The file `faults.json` beside
SOURCE tells which reads fail: with {"error": "EIO", "every": 7, "name": "data-0000.tar"} each seventh read of files
of that name does (without a name: of any file). With "sleep_s", the answer takes so long.
"""

import ctypes
import errno
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import mfusepy


class FaultyFolder(mfusepy.Operations):
    """What is below `source`."""

    use_ns = True

    def __init__(self, source: Path) -> None:
        self.source = source
        self.control = source.parent / "faults.json"
        self.numbers = itertools.count(1)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        try:
            found = os.lstat(self.at(path))
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno) from error
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")
        return {name: getattr(found, name) for name in names} | {"st_mtime": found.st_mtime_ns}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self.at(path))]

    def open(self, path: str, flags: int) -> int:
        return os.open(self.at(path), os.O_RDONLY)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        fault = json.loads(self.control.read_text()) if self.control.exists() else {}
        if fault and fault.get("name") in (None, Path(path).name) and next(self.numbers) % fault["every"] == 0:
            time.sleep(fault.get("sleep_s", 0))
            if "error" in fault:
                raise mfusepy.FuseOSError(getattr(errno, fault["error"]))
        return os.pread(fh, size, offset)

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def at(self, path: str) -> Path:
        """The file that `path` shows."""
        return self.source / path.lstrip("/")


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: it ends with the test
    folder, mount_point = map(Path, sys.argv[1:])
    mfusepy.FUSE(FaultyFolder(folder), str(mount_point), foreground=True, ro=True, direct_io=True)
