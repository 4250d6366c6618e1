"""Media by their content: one table, for decoders, tables and `convert`."""

import pytest

from bridge_data.prepare.converters.media_files import check_part, ending_of, kind_of_ending
from bridge_data.shards.media_kinds import known_by_content


@pytest.mark.parametrize(
    ("content", "ending", "kind"),
    [
        (b"qoif\0\0\0\1", "qoi", "image"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "jp2", "image"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "heic", "image"),
        (b"\xff\xf1\x50\x80", "aac", "av"),
        (b"FLV\x01\x05", "flv", "av"),
        (b"\0\0\x01\xba", "mpg", "av"),
    ],
)
def test_convert_and_decoders_agree(content: bytes, ending: str, kind: str) -> None:
    assert known_by_content(content) == (ending, kind) and ending_of(content) == ending
    assert kind_of_ending(ending) == ("image" if kind == "image" else "clip")
    assert check_part(ending, content) is not None  # which is no more than the beginning of one
