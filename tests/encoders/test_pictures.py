import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data import SampleError, SkipSample
from bridge_data.encoders import ImageLimits
from bridge_data.encoders.pictures import limited_size, picture_sizes, pictures
from tests.encoders.parts import picture, png

sides = st.integers(1, 3000)
limits = st.one_of(st.none(), st.integers(1, 10**6))


@given(sides, sides, limits, limits)
def test_sizes_keep_to_the_limits_and_nearly_to_their_aspect(
    height: int, width: int, one: int | None, other: int | None
) -> None:
    least, most = (one, other) if one is None or other is None else sorted((one, other))
    made = limited_size((height, width), ImageLimits(min_pixels=least, max_pixels=most))
    assert min(made) >= 1
    assert most is None or made[0] * made[1] <= most
    if most is None:
        assert least is None or made[0] * made[1] >= least
    assert (made[0] >= made[1]) == (height >= width) or made[0] == made[1]
    if least is None and most is None:
        assert made == (height, width)
    if min(made) > 20:
        assert made[0] / made[1] == pytest.approx(height / width, rel=0.12)


def test_sizes_are_those_of_the_images_that_are_made() -> None:
    images = [png(picture((40, 30))), picture((7, 50)), png(picture((200, 100)))]
    settings = ImageLimits(min_pixels=600, max_pixels=5000)
    sizes = picture_sizes(images, settings, "k")
    made = pictures(images, settings, "k")
    assert sizes == [(image.height, image.width) for image in made] == [(30, 40), (66, 10), (50, 100)]


@pytest.mark.parametrize(
    ("size", "settings", "message"),
    [
        ((20_000, 20), ImageLimits(extreme_image="error"), r"image 2 is 20000 x 20 pixels; .* 200 times the other"),
        ((20, 20_000), ImageLimits(extreme_image="error"), r"image 2 is 20 x 20000 pixels"),
        ((1, 1), ImageLimits(extreme_image="error", min_side=2), r"image 2 is 1 x 1 pixels; expected 2 a side"),
    ],
)
def test_extreme_images_are_refused_by_their_headers(
    size: tuple[int, int], settings: ImageLimits, message: str
) -> None:
    images = [png(picture((8, 8))), png(picture(size))]
    with pytest.raises(SampleError, match=message):
        picture_sizes(images, settings, "k")
    with pytest.raises(SkipSample):
        picture_sizes(images, ImageLimits(min_side=settings.min_side), "k")
    assert len(picture_sizes(images, ImageLimits(max_aspect=10_000), "k")) == 2


def test_what_is_no_image_is_a_failure_of_the_sample() -> None:
    with pytest.raises(SampleError, match="'k'"):
        picture_sizes([b"no image"], ImageLimits(), "k")
