import io

import pytest
from PIL import Image, ImageDraw

from bridge_data.tools.duplicates.picture_hash import NO_HASH, picture_hash
from tests.tools.duplicates.pictures import encoded, jpeg, photo

ALLOWED = 10**8


def bits_apart(one: bytes, other: bytes) -> int:
    return (picture_hash(one, ALLOWED) ^ picture_hash(other, ALLOWED)).bit_count()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("astronaut", 0xC2924C5532BDDFC8),
        ("camera", 0xBFF1C1C0434E8CBC),
        ("coffee", 0xBB8320376C0F3637),
        ("rocket", 0xC0371BEC1BE51267),
    ],
)
def test_the_bits_are_those_of_imagehash(name: str, expected: int) -> None:
    """The values were printed by imagehash 4.3.2, `phash(Image.open(...))`, for the same PNGs."""
    file = io.BytesIO()
    photo(name).save(file, "PNG")
    assert picture_hash(file.getvalue(), ALLOWED) == expected


@pytest.mark.parametrize("name", ["astronaut", "coffee", "rocket", "chelsea"])
def test_a_picture_encoded_again_or_resized_is_close_and_a_mirrored_one_is_not(name: str) -> None:
    assert bits_apart(jpeg(name), jpeg(name, 40)) <= 4
    assert bits_apart(jpeg(name), jpeg(name, side=150)) <= 4
    assert bits_apart(jpeg(name), jpeg(name, mirrored=True)) > 20


def test_other_pictures_are_far() -> None:
    names = ["astronaut", "coffee", "rocket", "chelsea", "camera"]
    assert min(bits_apart(jpeg(a), jpeg(b)) for a in names for b in names if a < b) > 10


def test_a_picture_without_detail_has_no_hash() -> None:
    page = Image.new("L", (600, 800), 250)
    assert picture_hash(encoded(page), ALLOWED) == NO_HASH
    ImageDraw.Draw(page).rectangle((100, 100, 500, 300), fill=20)
    assert picture_hash(encoded(page), ALLOWED) != NO_HASH


def test_what_is_no_picture_or_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed"):
        picture_hash(jpeg("coffee"), 1000)
    with pytest.raises(OSError, match="cannot identify"):
        picture_hash(b"no picture", ALLOWED)
    with pytest.raises(OSError, match="truncated"):
        picture_hash(jpeg("coffee")[:3000], ALLOWED)
