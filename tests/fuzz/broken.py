"""Readers with the faults that fuzzing must find, for the tests of the harness."""

import os
import time
from pathlib import Path

from bridge_data.errors import ConfigError
from tests.fuzz.target import Target, parts

GOOD = b"good content"
_kept: list[bytearray] = []


def _when_damaged(act: object) -> Target:
    def read(file: Path) -> None:
        if file.read_bytes() != GOOD:
            act()  # type: ignore[operator]

    return Target(act.__name__, parts(a_txt=GOOD), read)  # type: ignore[attr-defined]


def refuses() -> None:
    raise ConfigError("damaged")


def raises() -> None:
    raise KeyError("a")


def dies() -> None:
    os.abort()


def hangs() -> None:
    time.sleep(1000)


def grows() -> None:
    _kept[:] = [bytearray(b"x") * (9 << 27)]


def talks() -> None:
    raise ConfigError("x" * 100_000)


def _refuse_all(file: Path) -> None:
    raise ConfigError(f"{file}: refused")


BY_NAME = {target.name: target for target in map(_when_damaged, (refuses, raises, dies, hangs, grows, talks))}
BY_NAME["refuses good files"] = Target("refuses good files", parts(a_txt=GOOD), _refuse_all)
