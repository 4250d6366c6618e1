"""Which files are media: by extension, by their first bytes, or by patterns.

Enters: the flags of a command, then the name of a file, and its first bytes. Leaves: image, clip (video, audio or both)
or none.

Source: the three strategies, under these names, are those of Energon's `media_filters` table.
"""

import dataclasses
import enum
import fnmatch
from collections.abc import Sequence
from typing import Literal

from bridge_data.errors import ConfigError
from bridge_data.shards.media_kinds import MediaKind, guess_kind, kind_of_name

_FLAGS = "--media-metadata-by-extension, --media-metadata-by-header or --media-metadata-by-glob PATTERNS"


class MediaFilterStrategy(enum.StrEnum):
    """How media are recognised."""

    EXTENSION = "EXTENSION"
    HEADER = "HEADER"
    GLOB = "GLOB"


@dataclasses.dataclass(frozen=True, slots=True)
class MediaRule:
    """A strategy and, for `GLOB`, patterns; one must match a file's name or its whole path."""

    strategy: MediaFilterStrategy | Literal["EXTENSION", "HEADER", "GLOB"]
    patterns: Sequence[str] = ()

    @classmethod
    def parse(cls, by_glob: str | None, by_header: bool, by_extension: bool) -> "MediaRule":
        """The rule that the flags ask for; patterns are separated by commas.

        Raises:
            ConfigError: if they ask for none, or for several.
        """
        if (by_glob is not None) + by_header + by_extension != 1:
            raise ConfigError(f"which files are media? Give exactly one of {_FLAGS}")
        if by_glob is None:
            return cls("HEADER" if by_header else "EXTENSION")
        patterns = tuple(pattern.strip() for pattern in by_glob.split(","))
        if not all(patterns):
            raise ConfigError(
                f"--media-metadata-by-glob {by_glob!r}: expected patterns such as '*.jpg,clips/*.mp4', and none empty"
            )
        return cls("GLOB", patterns)

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
        return ":".join((self.strategy, *self.patterns))
