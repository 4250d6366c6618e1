import io
import itertools
import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from bridge_data.decode.image import IMAGE_FORMS, _jpeg_pixels, image_handler
from bridge_data.errors import ConfigError

SIZES = [(1, 1), (2, 3), (7, 5), (16, 16), (33, 31), (129, 57)]


def picture(size=(64, 48), mode="RGB", seed=0):
    """Noise over a gradient with a few shapes: edges and smooth parts, which chroma upsampling treats apart."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 200, size[0] * size[1] * 3).reshape(size[1], size[0], 3)
    image = Image.fromarray((ramp + rng.integers(0, 55, ramp.shape)).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.ellipse([0, 0, size[0] // 2, size[1] // 2], fill=(250, 20, 40))
    draw.line([0, size[1], size[0], 0], fill=(10, 240, 200), width=2)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(rng.integers(0, 256, (size[1], size[0]), dtype=np.uint8)))
    return image.convert(mode)


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pillow(data, mode):
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_jpeg_pixels_are_pillows(mode, subsampling):
    for size, progressive, quality in itertools.product(SIZES, [False, True], [15, 75, 100]):
        image = picture(size, mode)
        data = encoded(image, "JPEG", subsampling=subsampling, progressive=progressive, quality=quality)
        for name in ("l8", "rgb8", "rgba8"):
            np.testing.assert_array_equal(image_handler(name)(data), pillow(data, IMAGE_FORMS[name].mode))


def test_usual_jpegs_do_not_need_pillow():
    for mode, target in (("RGB", "RGB"), ("RGB", "RGBA"), ("L", "L"), ("L", "RGB")):
        assert _jpeg_pixels(encoded(picture(mode=mode), "JPEG"), target) is not None
    assert _jpeg_pixels(encoded(picture(mode="CMYK"), "JPEG"), "RGB") is None


def test_orientation_is_left_as_it_is():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture((40, 20)), "JPEG", exif=exif)
    np.testing.assert_array_equal(image_handler("rgb8")(data), pillow(data, "RGB"))
    assert image_handler("torchrgb8")(data).shape == (3, 20, 40)


def test_damaged_jpegs_fare_as_with_pillow():
    rng = random.Random(0)
    decode = image_handler("rgb8")
    outcomes = {True: 0, False: 0}
    for number in range(400):
        data = bytearray(encoded(picture((48, 40), seed=number % 7), "JPEG", progressive=number % 3 == 0))
        if number % 2:
            data = data[: rng.randrange(3, len(data))]
        else:
            for _ in range(rng.choice([1, 3, 20])):
                data[rng.randrange(3, len(data))] = rng.randrange(256)
        try:
            expected = pillow(bytes(data), "RGB")
        except Exception as error:
            outcomes[False] += 1
            with pytest.raises(type(error)):
                decode(bytes(data))
        else:
            outcomes[True] += 1
            np.testing.assert_array_equal(decode(bytes(data)), expected)
    assert min(outcomes.values()) > 50


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("PNG", m) for m in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16")]
    + [
        ("WEBP", "RGB"),
        ("WEBP", "RGBA"),
        ("GIF", "P"),
        ("BMP", "RGB"),
        ("TIFF", "RGB"),
        ("TIFF", "CMYK"),
        ("PPM", "RGB"),
    ],
)
def test_other_formats_are_pillows(kind, mode):
    image = picture(mode="RGBA" if mode == "RGBA" else "RGB")
    image = image.convert("I").convert("I;16") if mode == "I;16" else image.convert(mode)
    data = encoded(image, kind)
    for name in ("l8", "rgb8", "rgba8"):
        np.testing.assert_array_equal(image_handler(name)(data), pillow(data, IMAGE_FORMS[name].mode))


@pytest.mark.parametrize("name", IMAGE_FORMS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_forms_are_webdatasets(name, kind):
    webdataset = pytest.importorskip("webdataset")
    data = encoded(picture((31, 17)), kind)
    got, expected = image_handler(name)(data), webdataset.autodecode.imagehandler(name)("x.png", data)
    assert type(got) is type(expected)
    if isinstance(expected, Image.Image):
        assert (got.mode, got.size, got.tobytes()) == (expected.mode, expected.size, expected.tobytes())
    else:
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert (got == expected).all()


def test_default_form_is_contiguous_float_in_0_to_1():
    tensor = image_handler("torchrgb")(encoded(picture((31, 17)), "JPEG"))
    assert (tensor.dtype, tensor.shape, tensor.is_contiguous()) == (torch.float32, (3, 17, 31), True)
    assert tensor.min() >= 0 and 0.5 < tensor.max() <= 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_arrays_may_be_written_to(kind):
    data = encoded(picture(), kind)
    for name in ("rgb8", "l8", "torchrgb8", "torchl8", "rgb"):
        image_handler(name)(data)[...] = 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_bombs_are_refused_before_they_are_decoded(kind, monkeypatch):
    data = encoded(picture((64, 64)), kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 64)
    image_handler("rgb8")(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 64 - 1)
    monkeypatch.setattr(Image.Image, "convert", None)
    with pytest.warns() if kind != "JPEG" else _nothing(), pytest.raises(Image.DecompressionBombError, match="64 x 64"):
        image_handler("rgb8")(data)


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None


def test_postscript_is_never_run():
    eps = encoded(picture((8, 8)), "EPS")
    with pytest.raises(OSError, match="cannot identify"):
        image_handler("rgb8")(eps)


def test_unknown_forms_are_refused():
    with pytest.raises(ConfigError, match="image_decode='torchrgb16': expected one of l8, rgb8"):
        image_handler("torchrgb16")


def test_handlers_travel_to_workers():
    data = encoded(picture(), "JPEG")
    for name in IMAGE_FORMS:
        assert type(pickle.loads(pickle.dumps(image_handler(name)))(data)) is type(image_handler(name)(data))
