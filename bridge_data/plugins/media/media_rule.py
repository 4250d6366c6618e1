"""Which files are media, as `bridge-data prepare --media` says."""

import dataclasses
import enum
import fnmatch
import re
from collections.abc import Sequence
from typing import Literal

from bridge_data.decode.image import Orientation
from bridge_data.decode.media_kinds import MediaKind, guess_kind, kind_of_name
from bridge_data.errors import ConfigError


class MediaFilterStrategy(enum.StrEnum):
    """How media are recognised."""

    EXTENSION = "EXTENSION"
    HEADER = "HEADER"
    GLOB = "GLOB"


@dataclasses.dataclass(frozen=True, slots=True)
class MediaRule:
    """A strategy and, for `GLOB`, patterns; one must match a file's name or its whole path. Sizes of images are those
    after EXIF orientation if that is to be applied."""

    strategy: MediaFilterStrategy | Literal["EXTENSION", "HEADER", "GLOB"]
    patterns: Sequence[str] = ()
    orientation: Orientation = "ignore"

    @classmethod
    def parse(cls, text: str, orientation: Orientation = "ignore") -> "MediaRule":
        """The rule that a text stands for: `extension`, `header`, or patterns with commas between them.

        >>> MediaRule.parse("*.jpg, clips/*.mp4").patterns
        ('*.jpg', 'clips/*.mp4')

        Raises:
            ConfigError: if a pattern is empty, none, or has a set without its end.
        """
        if text in ("extension", "header"):
            return cls("HEADER" if text == "header" else "EXTENSION", orientation=orientation)
        patterns = tuple(pattern.strip() for pattern in text.split(","))
        if not all(any(sign in pattern for sign in "*?[.") for pattern in patterns):
            raise ConfigError(f"--media {text!r}: expected extension, header, or patterns such as '*.jpg,clips/*.mp4'")
        for pattern in patterns:
            if re.search(r"\[(?!.[^\]]*\])", pattern):
                raise ConfigError(
                    f"--media {text!r}: {pattern!r} has a [ without its ], which begins a set: '[ab].jpg'"
                )
        return cls("GLOB", patterns, orientation)

    def may_be_media(self, name: str) -> bool:
        """Whether the file must be opened, judged by its name. Case is ignored."""
        if self.strategy == "EXTENSION":
            return kind_of_name(name) is not None
        if self.strategy == "HEADER":
            return True
        whole, last = name.lower(), name.lower().rpartition("/")[2]
        return any(fnmatch.fnmatchcase(text, pattern.lower()) for pattern in self.patterns for text in (whole, last))

    def kind(self, name: str, head: bytes) -> MediaKind | None:
        """The kind of a file that may be media, judged by its first bytes."""
        if self.strategy == "EXTENSION":
            return kind_of_name(name)
        return guess_kind(head) or kind_of_name(name)

    def __str__(self) -> str:
        return ":".join((self.strategy, *self.patterns, *(("upright",) if self.orientation == "apply" else ())))
