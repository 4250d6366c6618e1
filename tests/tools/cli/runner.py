"""Running the command line in this process, and files to run it on."""

import io
import json
from pathlib import Path

from click.testing import CliRunner, Result
from PIL import Image

from bridge_data.tools.cli import main


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


def pack_pictures(folder: Path, target: Path) -> Path:
    """Make these pictures, and pack them into six shards."""
    result = run_command("pack", write_pictures(folder), target, "--max-count", 2, "--no-progress")
    assert result.exit_code == 0, result.output
    return target
