import io

import pytest
from PIL import Image, ImageDraw

from bridge_data.plugins.duplicates.picture_hash import NO_HASH, picture_hash
from tests.plugins.duplicates.pictures import encoded, jpeg, photo

ALLOWED = 10**8

HASHES = {
    "astronaut": 0xC2924C5532BDDFC8,
    "camera": 0xBFF1C1C0434E8CBC,
    "coffee": 0xBB8320376C0F3637,
    "rocket": 0xC0371BEC1BE51267,
}
"""The values were printed by imagehash 4.3.2, `phash(Image.open(...))`, for PNGs of the photos."""


def bits_apart(one: bytes, other: bytes) -> int:
    return (picture_hash(one, ALLOWED) ^ picture_hash(other, ALLOWED)).bit_count()


@pytest.mark.parametrize("name", HASHES)
def test_the_bits_are_those_of_imagehash_and_close_for_copies_and_far_for_other_pictures(name: str) -> None:
    photo(name).save(file := io.BytesIO(), "PNG")
    assert picture_hash(file.getvalue(), ALLOWED) == HASHES[name]
    assert bits_apart(jpeg(name), jpeg(name, 40)) <= 4
    assert bits_apart(jpeg(name), jpeg(name, side=150)) <= 4
    assert bits_apart(jpeg(name), jpeg(name, mirrored=True)) > 20
    assert min(bits_apart(jpeg(name), jpeg(other)) for other in ("chelsea", *HASHES) if other != name) > 10


def test_a_picture_without_detail_has_no_hash() -> None:
    page = Image.new("L", (600, 800), 250)
    assert picture_hash(encoded(page), ALLOWED) == NO_HASH
    ImageDraw.Draw(page).rectangle((100, 100, 500, 300), fill=20)
    assert picture_hash(encoded(page), ALLOWED) != NO_HASH


def test_what_is_no_picture_or_too_large_is_refused() -> None:
    for data, allowed, error, told in (
        (jpeg("coffee"), 1000, ValueError, "allowed"),
        (b"no picture", ALLOWED, OSError, "cannot identify"),
        (jpeg("coffee")[:3000], ALLOWED, OSError, "truncated"),
    ):
        with pytest.raises(error, match=told):
            picture_hash(data, allowed)
