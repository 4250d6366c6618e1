"""`bridge-data preview --html FILE`: a contact sheet of samples as one file, to send around.

Enters: samples. Leaves: a page that needs no other file, no network and no script: pictures are small copies in it, and
short clips are in it as they are. Guarantee: captions and keys are text, whatever they hold.
"""

import base64
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bridge_data.errors import ConfigError
from bridge_data.storage.atomic import write_file
from bridge_data.tools.view.catalog import SampleAddress, SplitCatalog
from bridge_data.tools.view.sample_cards import SampleCard, ShownPart, card, content

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_CLIP_BYTES = 2 << 20
"""Larger clips are named, not held."""

MAX_SAMPLES = 1000
"""Samples of a sheet."""

_FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True, slots=True)
class SheetCard:
    """A card with its media as data URIs; an empty one for what is left out."""

    shown: SampleCard
    media: tuple[tuple[ShownPart, str], ...]


def write_sheet(file: Path, title: str, part: SplitCatalog, start: int, count: int) -> int:
    """Write the samples `start` to `start + count - 1` of each source to `file`; how many they are.

    Raises:
        ConfigError: if they are too many, or the file cannot be written. DatasetError: if they cannot be read.
    """
    chosen = [
        SampleAddress(source.number, index)
        for source in part.sources
        for index in range(start, min(start + count, source.num_samples))
    ]
    if len(chosen) > MAX_SAMPLES:
        raise ConfigError(f"--html: {len(chosen):,} samples are too many for one file, at most {MAX_SAMPLES:,}")
    page = _environment().get_template("sheet.html")
    style = (_FOLDER / "static" / "view.css").read_text()
    made = page.render(title=title, part=part, style=style, cards=_cards(part, chosen))
    try:
        write_file(file, made.encode("utf-8", "backslashreplace"))  # keys may hold surrogates
    except OSError as error:
        raise ConfigError(f"--html {file}: cannot be written: {error.strerror}") from error
    return len(chosen)


def _environment() -> "Environment":
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise ConfigError(f'--html needs a package ({error}): pip install "bridge-data[view]"') from error
    loader = FileSystemLoader(_FOLDER / "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def _cards(part: SplitCatalog, chosen: Sequence[SampleAddress]) -> list[SheetCard]:
    found = []
    for address in chosen:
        shown = card(part, address)
        media = tuple((one, _data_uri(part, address, one)) for one in shown.media[:4])
        found.append(SheetCard(shown, media))
    return found


def _data_uri(part: SplitCatalog, address: SampleAddress, shown: ShownPart) -> str:
    found = content(part.read(address), shown.member, shown.number, small=True)
    if not found.inline or (shown.kind != "picture" and len(found.data) > MAX_CLIP_BYTES):
        return ""
    return f"data:{found.content_type};base64,{base64.b64encode(found.data).decode()}"
