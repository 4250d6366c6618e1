"""The pages of GIMP's manual as documents: texts and images as they follow each other.

A document is the page between the links at its top and bottom, if it has several images. Icons of notes and tips are
none; they lie in `images/` itself, and the images of the manual in folders below it.
"""

import dataclasses
import html.parser
import re
from pathlib import Path

from tests.real_data.loading import bridge_data, write_shards

PACKAGE = "gimp-help-en"
PAGES = "usr/share/gimp/2.0/help/en"

_WITHOUT_END = ("area", "base", "br", "col", "hr", "img", "input", "link", "meta")
_LEFT_OUT = ("navheader", "navfooter")


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Texts, with white space as single spaces, and images as paths relative to the page's folder."""

    title: str
    sequence: list[str | Path]

    @property
    def images(self) -> list[Path]:
        """Its images, in their order."""
        return [item for item in self.sequence if isinstance(item, Path)]


def find_pages(package: Path) -> dict[str, Page]:
    """The pages with several images, by the names of their files without extension."""
    read = {file.stem: read_page(file.read_text(encoding="utf-8")) for file in sorted((package / PAGES).glob("*.html"))}
    return {name: page for name, page in read.items() if len(page.images) > 1}


def read_page(text: str) -> Page:
    """The page of this HTML."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    reader.end_text()
    return Page(" ".join(reader.title.split()), reader.sequence)


def prepare_pages(package: Path, folder: Path) -> Path:
    """A crude data set `pages` in `folder`: `json` with the title and a list of `{"text": ...}` and
    `{"image": "00.png"}`, and the images under these names."""
    samples = []
    for name, page in find_pages(package).items():
        sequence: list[dict[str, str]] = []
        images: dict[str, bytes] = {}
        for item in page.sequence:
            if isinstance(item, str):
                sequence.append({"text": item})
            else:
                part = f"{len(images):02d}{item.suffix}"
                images[part] = (package / PAGES / item).read_bytes()
                sequence.append({"image": part})
        samples.append({"__key__": name, "json": {"title": page.title, "sequence": sequence}, **images})
    pages = write_shards(folder / "pages", samples, per_shard=40)
    crude = ("--split-ratio", "8,2,0", "--sample-type", "CrudeWebdataset", "--no-progress")
    bridge_data("prepare", pages, "--non-interactive", *crude)
    return pages


class _Reader(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.sequence: list[str | Path] = []
        self._text = ""
        self._open: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        source = Path(given.get("src") or "")
        if tag == "img" and self._is_content() and len(source.parts) > 2:
            self.end_text()
            self.sequence.append(source)
        if tag not in _WITHOUT_END:
            self._open.append((tag, given.get("class") or ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _WITHOUT_END:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _WITHOUT_END:
            opened, _ = self._open.pop()
            assert opened == tag, f"line {self.getpos()[0]}: </{tag}> ends <{opened}>"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] == "title":
            self.title += data
        elif self._is_content():
            self._text += data

    def end_text(self) -> None:
        """What was read of a text is all of it."""
        text = re.sub(r"\s+", " ", self._text).strip()
        self._text = ""
        if text:
            self.sequence.append(text)

    def _is_content(self) -> bool:
        tags = [tag for tag, _ in self._open]
        return "body" in tags and not any(kind in _LEFT_OUT for _, kind in self._open)
