"""Arguments that name data: `PLACE` takes a path or a URL, `ON_DISK` a path only, and says so of a URL."""

import os
from pathlib import Path
from typing import Any

import click

from bridge_data.errors import ConfigError
from bridge_data.storage import Location, is_remote, location


class _Place(click.ParamType):
    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Location:
        return location(value)


class _OnDisk(click.ParamType):
    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if is_remote(value):
            command = "bridge-data" if ctx is None else ctx.command_path
            raise ConfigError(
                f"{os.fspath(value)}: `{command}` takes data on a disk. Run it there, then copy the folder to the "
                "store, with its .nv-meta."
            )
        return Path(value)


PLACE = _Place()
ON_DISK = _OnDisk()
