import io
import itertools

import numpy as np
import pytest
from PIL import Image

from bridge_data.decode.resizing import Resizing, check_resizing, resized_image, resized_pixels
from bridge_data.errors import ConfigError
from tests.decode.pictures import encoded, picture

SIZES = [(1, 1), (31, 50), (48, 64), (100, 20), (150, 170)]
CONTENT = {kind: encoded(picture((64, 48), "RGBA" if kind == "PNG" else "RGB"), kind) for kind in ("JPEG", "PNG")}


def by_pillow(data, mode, size):
    image = Image.open(io.BytesIO(data)).convert(mode)
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BICUBIC))


def difference(ours, expected):
    assert (ours.dtype, ours.shape) == (np.uint8, expected.shape)
    return np.abs(ours.astype(int) - expected).max()


@pytest.mark.parametrize("kind", CONTENT)
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_by_default_the_pixels_are_pillows(kind, mode):
    data = CONTENT[kind]
    for size in SIZES:
        pixels = resized_pixels(data, mode, Resizing(size=size))
        np.testing.assert_array_equal(pixels, by_pillow(data, mode, size))
        np.testing.assert_array_equal(np.asarray(resized_image(data, mode, Resizing(size=size))), pixels)
        pixels[...] = 0


@pytest.mark.parametrize("kind", CONTENT)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_by_torch_they_are_within_2_of_them(kind, mode):
    data = CONTENT[kind]
    for size in SIZES:
        pixels = resized_pixels(data, mode, Resizing(size=size, resize="torch"))
        assert difference(pixels, by_pillow(data, mode, size)) <= 2
        image = resized_image(data, mode, Resizing(size=size, resize="torch"))
        np.testing.assert_array_equal(np.asarray(image), pixels)
        pixels[...] = 0


def test_black_and_white_noise_of_any_size_too_is_within_2():
    rng = np.random.default_rng(0)
    for _ in range(60):
        height, width = rng.integers(1, 300, 2)
        size = tuple(int(side) for side in rng.integers(1, 300, 2))
        noise = rng.integers(0, 2, (height, width, 3), dtype=np.uint8) * 255
        pixels = resized_pixels(encoded(Image.fromarray(noise), "PNG"), "RGB", Resizing(size=size, resize="torch"))
        assert difference(pixels, by_pillow(encoded(Image.fromarray(noise), "PNG"), "RGB", size)) <= 2, (height, width)


@pytest.mark.parametrize("resize", ["pillow", "torch"])
def test_with_dct_scaling_large_jpegs_differ_little_and_others_not_at_all(resize):
    large, size = encoded(picture((400, 300)), "JPEG", quality=90), (70, 90)
    exact = resized_pixels(large, "RGB", Resizing(size=size, resize=resize))
    scaled = resized_pixels(large, "RGB", Resizing(size=size, resize=resize, dct_scaling=True))
    assert 0 < np.abs(scaled.astype(int) - exact).mean() < 5
    for kind in CONTENT:
        exact, scaled = (
            resized_pixels(CONTENT[kind], "RGB", Resizing(size=(48, 64), resize=resize, dct_scaling=scaling))
            for scaling in (False, True)
        )
        np.testing.assert_array_equal(scaled, exact)


def test_an_image_of_pillow_keeps_what_its_header_says():
    data = encoded(picture(), "JPEG", dpi=(72, 72), comment=b"hello")
    for resize in ("pillow", "torch"):
        image = resized_image(data, "RGB", Resizing(size=(9, 8), resize=resize))
        assert (image.size, image.info["comment"], image.info["dpi"]) == ((8, 9), b"hello", (72, 72))


def test_wrong_settings_are_refused():
    for size in (336, (336,), (0, 3), (3, -1), (3.0, 3), "ab", (True, 2), (1, 2, 3)):
        with pytest.raises(ConfigError, match=r"image_size=.*expected \(height, width\), two integers"):
            Resizing(size=size)
    with pytest.raises(ConfigError, match=r"resize='cubic': expected one of pillow, torch"):
        Resizing(size=(3, 3), resize="cubic")
    assert Resizing(size=[3, 4]).least is None  # a list, as YAML has it


def test_torch_does_not_resize_transparent_images():
    for resize, mode in itertools.product(("pillow", "torch"), ("L", "RGB", "RGBA")):
        if (resize, mode) != ("torch", "RGBA"):
            check_resizing(Resizing(size=(3, 3), resize=resize), "form", mode)
    with pytest.raises(ConfigError, match=r'"torch" mixes in the colours .* image_decode=\'rgba8\'; use resize="pi'):
        check_resizing(Resizing(size=(3, 3), resize="torch"), "rgba8", "RGBA")
