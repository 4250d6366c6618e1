"""`bridge-data mount`: a prepared data set as a folder of files."""

from pathlib import Path

import click

from bridge_data.cli.terminal import (
    ON_DISK,
    OUTPUT_ON_DISK,
)
from bridge_data.errors import ConfigError
from bridge_data.plugins.mount.mount import Layout, View
from bridge_data.plugins.mount.mount import mount as mount_view


@click.command()
@click.argument("path", type=ON_DISK)
@click.argument("mountpoint", type=OUTPUT_ON_DISK)
@click.option("--sample-folders", "-s", is_flag=True, help="A folder for each sample, with a file for each part.")
@click.option("--shard-folders", is_flag=True, help="A folder for each shard.")
@click.option("--detach", "-d", is_flag=True, help="Run in the background.")
def mount(path: Path, mountpoint: Path, sample_folders: bool, shard_folders: bool, detach: bool) -> None:
    """Show the parts of the data set in the folder PATH as files below the folder MOUNTPOINT, read-only.

    Nothing is unpacked or copied; any program can open the files. End it with `umount MOUNTPOINT` or Ctrl-C.
    """
    if sample_folders and shard_folders:
        raise ConfigError("--sample-folders and --shard-folders: give one of them")
    layout: Layout = "samples" if sample_folders else "shards" if shard_folders else "members"
    view = View(path, layout)
    told = f"{path} is shown at {mountpoint}; unmount it with: umount {mountpoint}"
    mount_view(view, mountpoint, detach=detach, on_start=lambda: click.echo(told))
