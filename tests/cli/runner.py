"""Running the command line in this process, and files to run it on."""

import io
import json
from pathlib import Path

from click.testing import CliRunner, Result
from PIL import Image

from bridge_data.cli import main
from tests.data.tars import write_tar


def run_command(*arguments: object, typed: str | None = None) -> Result:
    """Run `bridge-data` with these arguments and what is typed."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=typed)


def write_pictures(folder: Path) -> Path:
    """Make a folder of twelve pictures, each with a caption as text and another one as JSON."""
    folder.mkdir()
    for number in range(1, 13):
        picture = io.BytesIO()
        Image.new("RGB", (40 + number, 30), (number * 9, 10, 10)).save(picture, "PNG")
        (folder / f"{number:06d}.png").write_bytes(picture.getvalue())
        (folder / f"{number:06d}.txt").write_text(f"picture number {number}")
        (folder / f"{number:06d}.json").write_text(json.dumps({"caption": f"caption {number}", "turns": [1, 2]}))
    return folder


def write_picture_tars(folder: Path, target: Path) -> Path:
    """Make these pictures, and write them into six shards, not prepared."""
    paths = sorted(write_pictures(folder).iterdir())
    for number in range(6):
        members = {path.name: path.read_bytes() for path in paths[6 * number : 6 * number + 6]}
        write_tar(target / f"data-{number:06d}.tar", members)
    return target
