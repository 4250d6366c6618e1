"""Which files are media, as the flags of `bridge-data prepare-media` say."""

import dataclasses
import enum
import fnmatch
from collections.abc import Sequence
from typing import Literal

from bridge_data.decode.image import Orientation
from bridge_data.decode.media_kinds import MediaKind, guess_kind, kind_of_name
from bridge_data.errors import ConfigError

_FLAGS = "--media-metadata-by-extension, --media-metadata-by-header or --media-metadata-by-glob PATTERNS"


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
    def parse(
        cls, by_glob: str | None, by_header: bool, by_extension: bool, orientation: Orientation = "ignore"
    ) -> "MediaRule":
        """The rule that the flags ask for; patterns are separated by commas.

        Raises:
            ConfigError: if they ask for none, or for several.
        """
        if (by_glob is not None) + by_header + by_extension != 1:
            raise ConfigError(f"which files are media? Give exactly one of {_FLAGS}")
        if by_glob is None:
            return cls("HEADER" if by_header else "EXTENSION", orientation=orientation)
        patterns = tuple(pattern.strip() for pattern in by_glob.split(","))
        if not all(patterns):
            raise ConfigError(
                f"--media-metadata-by-glob {by_glob!r}: expected patterns such as '*.jpg,clips/*.mp4', and none empty"
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
