import contextlib
import gc
import io
import itertools
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data.decode.image import (
    IMAGE_FORMS,
    _jpeg_image,
    _jpeg_pixels,
    decoded_pixels,
    encoded_size,
    image_handler,
    image_in_size,
    pillow_image,
    pixels_in_size,
)
from bridge_data.decode.resizing import Resizing
from bridge_data.errors import ConfigError
from bridge_data.limits import Limits, allow_pixels
from bridge_data.samples.collation import batch_pad_stack
from tests.decode.pictures import encoded, picture


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


def test_uint8_in_colour_is_a_view_of_the_decoded_pixels_and_so_is_its_batch():
    data = [encoded(picture((31, 17), seed=seed), "JPEG") for seed in range(3)]
    images = [image_handler("torchrgb8")(content) for content in data]
    assert all(image.permute(1, 2, 0).is_contiguous() for image in images)
    batch = batch_pad_stack(images)
    assert batch.shape == (3, 3, 17, 31) and batch.permute(0, 2, 3, 1).is_contiguous()
    for image, content in zip(batch, data, strict=True):
        np.testing.assert_array_equal(image.permute(1, 2, 0), image_handler("rgb8")(content))


@pytest.mark.parametrize("name", IMAGE_FORMS)
def test_every_form_can_be_resized(name):
    form, size = IMAGE_FORMS[name], (20, 30)
    for kind in ("JPEG", "PNG"):
        data = encoded(picture((90, 60)), kind)
        made, plain = image_handler(name, Resizing(size=size))(data), image_handler(name)(data)
        assert type(made) is type(plain)
        if isinstance(made, Image.Image):
            assert (made.mode, made.size) == (plain.mode, (30, 20))
            continue
        assert made.dtype == plain.dtype
        expected = np.asarray(Image.fromarray(pixels_of(data, form.mode)).resize((30, 20), Image.Resampling.BICUBIC))
        got = made.permute(1, 2, 0).numpy() if isinstance(made, torch.Tensor) and made.ndim == 3 else np.asarray(made)
        np.testing.assert_array_equal(got, expected / np.float32(255) if form.scaled else expected)


def pixels_of(data, mode):
    return image_handler({"L": "l8", "RGB": "rgb8", "RGBA": "rgba8"}[mode])(data)


def test_transparent_images_are_not_resized_by_torch():
    with pytest.raises(ConfigError, match="image_decode='torchrgba'"):
        image_handler("torchrgba", Resizing(size=(3, 3), resize="torch"))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_arrays_may_be_written_to(kind):
    data = encoded(picture(), kind)
    for name in ("rgb8", "l8", "torchrgb8", "torchl8", "rgb"):
        image_handler(name)(data)[...] = 0


def test_unknown_forms_are_refused():
    with pytest.raises(ConfigError, match="image_decode='torchrgb16': expected one of l8, rgb8"):
        image_handler("torchrgb16")


def test_handlers_travel_to_workers():
    data = encoded(picture(), "JPEG")
    for name in IMAGE_FORMS:
        assert type(pickle.loads(pickle.dumps(image_handler(name)))(data)) is type(image_handler(name)(data))


MODES = ("L", "RGB", "RGBA")
SIZES = [(1, 1), (2, 3), (7, 5), (16, 16), (33, 31), (129, 57)]


def pillow(data, mode):
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


def assert_as_with_pillow(data):
    for mode in MODES:
        expected = pillow(data, mode)
        np.testing.assert_array_equal(decoded_pixels(data, mode), expected)
        np.testing.assert_array_equal(np.asarray(pillow_image(data, mode)), expected)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_jpeg_pixels_are_pillows(mode, subsampling):
    for size, progressive, quality in itertools.product(SIZES, [False, True], [15, 75, 100]):
        image = picture(size, mode)
        assert_as_with_pillow(encoded(image, "JPEG", subsampling=subsampling, progressive=progressive, quality=quality))


def test_usual_jpegs_do_not_need_pillow():
    for mode, target in itertools.product(("RGB", "L"), MODES):
        data = encoded(picture(mode=mode), "JPEG")
        assert _jpeg_image(data, target, None) is not None
        assert target == "L" or _jpeg_pixels(data, target, target, None) is not None
    assert _jpeg_pixels(encoded(picture(mode="CMYK"), "JPEG"), "RGB", "RGB", None) is None


@pytest.mark.processes
@pytest.mark.parametrize("target", MODES)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_an_image_around_decoded_memory_is_one_like_others(mode, target):
    data = encoded(picture((61, 43), mode=mode), "JPEG")
    image, expected = pillow_image(data, target), Image.open(io.BytesIO(data)).convert(target)
    gc.collect()
    again = pickle.loads(pickle.dumps(image))
    for made in (image, image.copy(), again):
        assert made.tobytes() == expected.tobytes()
        assert made.resize((7, 9), Image.Resampling.BICUBIC) == expected.resize((7, 9), Image.Resampling.BICUBIC)
    image.putpixel((3, 5), 7)
    expected.putpixel((3, 5), 7)
    assert image == expected != again


def test_orientation_is_left_as_it_is():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture((40, 20)), "JPEG", exif=exif)
    assert_as_with_pillow(data)
    assert decoded_pixels(data, "RGB").shape == (20, 40, 3)
    assert pillow_image(data, "RGB").getexif()[0x0112] == 6


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "MPO"])
def test_an_image_of_pillow_has_what_its_header_says(kind):
    options = {} if kind == "PNG" else {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0", "comment": b"hello"}
    data = encoded(picture(), kind, dpi=(72, 72), icc_profile=b"profile", **options)
    made, expected = pillow_image(data, "RGB"), Image.open(io.BytesIO(data)).convert("RGB")
    assert type(made) is type(expected)
    assert made.info == expected.info
    made.putpixel((0, 0), (1, 2, 3))
    assert made.getpixel((0, 0)) == (1, 2, 3)


def test_damaged_jpegs_fare_as_with_pillow():
    rng = random.Random(0)
    outcomes = {True: 0, False: 0}
    for number in range(400):
        data = bytearray(encoded(picture((48, 40), seed=number % 7), "JPEG", progressive=number % 3 == 0))
        if number % 2:
            data = data[: rng.randrange(3, len(data))]
        else:
            for _ in range(rng.choice([1, 3, 20])):
                data[rng.randrange(3, len(data))] = rng.randrange(256)
        mode = MODES[number % len(MODES)]
        try:
            expected = pillow(bytes(data), mode)
        except Exception as error:
            outcomes[False] += 1
            with pytest.raises(type(error)):
                decoded_pixels(bytes(data), mode)
        else:
            outcomes[True] += 1
            np.testing.assert_array_equal(decoded_pixels(bytes(data), mode), expected)
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
    assert_as_with_pillow(encoded(image, kind))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_pixels_may_be_written_to(kind):
    for mode in MODES:
        decoded_pixels(encoded(picture(), kind), mode)[...] = 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP"])
def test_the_size_is_read_from_the_header(kind):
    data = encoded(picture((200, 100)), kind)
    assert encoded_size(data) == encoded_size(data[:700]) == (100, 200)
    with pytest.raises(OSError, match="cannot identify"):
        encoded_size(data[:3])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_bombs_are_refused_before_they_are_decoded(kind, monkeypatch):
    data = encoded(picture((64, 64)), kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 64)
    decoded_pixels(data, "RGB")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 64 - 1)
    monkeypatch.setattr(Image.Image, "convert", None)
    for refuse in (lambda: decoded_pixels(data, "RGB"), lambda: encoded_size(data)):
        warns = contextlib.nullcontext() if kind == "JPEG" else pytest.warns(Image.DecompressionBombWarning)
        with warns, pytest.raises(Image.DecompressionBombError, match="64 x 64"):
            refuse()


def jpeg(**settings):
    file = io.BytesIO()
    picture().save(file, "JPEG", **settings)
    return file.getvalue()


@pytest.mark.parametrize("progressive", [False, True])
def test_a_profile_with_the_bytes_of_a_scan_is_none(progressive):
    data = jpeg(progressive=progressive, icc_profile=b"\xff\xda" * 40_000)
    assert np.array_equal(image_handler("rgb8")(data), image_handler("rgb8")(jpeg(progressive=progressive)))


@pytest.mark.parametrize("before", [b"\xff", b"\xff\x01", b"\xff\xd0", b"\xff\xe1\x00\x01", b""])
def test_scans_are_counted_behind_what_is_no_segment(before):
    """What a decoder passes over in another way than by a length must not hide them."""
    data = jpeg(progressive=True)
    first, last = data.index(b"\xff\xda"), data.rindex(b"\xff\xda")
    many = data[:first] + before + data[first:-2] + data[last:-2] * 40 + b"\xff\xd9"
    with pytest.raises(Image.DecompressionBombError, match="scans of a JPEG are more than the 32"):
        image_handler("rgb8")(many)


def test_postscript_is_never_run():
    eps = encoded(picture((8, 8)), "EPS")
    with pytest.raises(OSError, match="cannot identify"):
        decoded_pixels(eps, "RGB")


@pytest.mark.parametrize(
    ("least", "size"),
    [
        ((1, 1), (13, 9)),
        ((13, 9), (13, 9)),
        ((14, 9), (26, 18)),
        ((26, 18), (26, 18)),
        ((27, 3), (51, 35)),
        ((51, 35), (51, 35)),
        ((52, 3), (101, 70)),
        ((5, 36), (101, 70)),
        ((102, 71), (101, 70)),
    ],
)
def test_a_jpeg_may_be_decoded_smaller_but_not_smaller_than_needed(least, size):
    data = encoded(picture((70, 101)), "JPEG")
    assert decoded_pixels(data, "RGB", least).shape == (*size, 3)
    assert decoded_pixels(data, "L", least).shape == size
    assert pillow_image(data, "RGB", least).size == (size[1], size[0])
    assert decoded_pixels(encoded(picture((70, 101)), "PNG"), "RGB", least).shape == (101, 70, 3)


def test_a_jpeg_decoded_smaller_looks_the_same():
    image = picture((160, 120))
    smaller = decoded_pixels(encoded(image, "JPEG", quality=95), "RGB", (60, 80))
    expected = np.asarray(image.resize((80, 60), Image.Resampling.BOX))
    assert np.abs(smaller.astype(int) - expected).mean() < 5


NEW_SIZES = [(1, 1), (31, 50), (48, 64), (100, 20), (150, 170)]
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
    for size in NEW_SIZES:
        pixels = pixels_in_size(data, mode, Resizing(size=size))
        np.testing.assert_array_equal(pixels, by_pillow(data, mode, size))
        np.testing.assert_array_equal(np.asarray(image_in_size(data, mode, Resizing(size=size))), pixels)
        pixels[...] = 0


@pytest.mark.parametrize("kind", CONTENT)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_by_torch_they_are_within_2_of_them(kind, mode):
    data = CONTENT[kind]
    for size in NEW_SIZES:
        pixels = pixels_in_size(data, mode, Resizing(size=size, resize="torch"))
        assert difference(pixels, by_pillow(data, mode, size)) <= 2
        image = image_in_size(data, mode, Resizing(size=size, resize="torch"))
        np.testing.assert_array_equal(np.asarray(image), pixels)
        pixels[...] = 0


@pytest.mark.processes
def test_black_and_white_noise_of_any_size_too_is_within_2():
    rng = np.random.default_rng(0)
    for _ in range(60):
        height, width = rng.integers(1, 300, 2)
        size = tuple(int(side) for side in rng.integers(1, 300, 2))
        noise = rng.integers(0, 2, (height, width, 3), dtype=np.uint8) * 255
        pixels = pixels_in_size(encoded(Image.fromarray(noise), "PNG"), "RGB", Resizing(size=size, resize="torch"))
        assert difference(pixels, by_pillow(encoded(Image.fromarray(noise), "PNG"), "RGB", size)) <= 2, (height, width)


@pytest.mark.parametrize("resize", ["pillow", "torch"])
def test_with_dct_scaling_large_jpegs_differ_little_and_others_not_at_all(resize):
    large, size = encoded(picture((400, 300)), "JPEG", quality=90), (70, 90)
    exact = pixels_in_size(large, "RGB", Resizing(size=size, resize=resize))
    scaled = pixels_in_size(large, "RGB", Resizing(size=size, resize=resize, dct_scaling=True))
    assert 0 < np.abs(scaled.astype(int) - exact).mean() < 5
    for kind in CONTENT:
        exact, scaled = (
            pixels_in_size(CONTENT[kind], "RGB", Resizing(size=(48, 64), resize=resize, dct_scaling=scaling))
            for scaling in (False, True)
        )
        np.testing.assert_array_equal(scaled, exact)


def test_an_image_of_pillow_keeps_what_its_header_says():
    data = encoded(picture(), "JPEG", dpi=(72, 72), comment=b"hello")
    for resize in ("pillow", "torch"):
        image = image_in_size(data, "RGB", Resizing(size=(9, 8), resize=resize))
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
            image_handler(mode.lower(), Resizing(size=(3, 3), resize=resize))
    with pytest.raises(ConfigError, match=r'"torch" mixes in the colours .* image_decode=\'rgba8\'; use resize="pi'):
        image_handler("rgba8", Resizing(size=(3, 3), resize="torch"))


@pytest.mark.parametrize("side", [9_500, 14_000])
def test_an_image_beyond_both_limits_names_both(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow refuses one of twice its limit itself, in other words."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    file = io.BytesIO()
    Image.new("1", (side, side)).save(file, "PNG")
    with warnings.catch_warnings(), pytest.raises(Image.DecompressionBombError) as refusal:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        pillow_image(file.getvalue(), "RGB")
    assert "MAX_IMAGE_PIXELS; raise it, and Limits(max_image_pixels)" in str(refusal.value)
    allow_pixels(Limits())
    assert Image.MAX_IMAGE_PIXELS == 89_478_485
    allow_pixels(Limits(max_image_pixels=100_000_000))
    assert Image.MAX_IMAGE_PIXELS == 100_000_000
