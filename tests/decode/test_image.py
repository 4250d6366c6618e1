import contextlib
import gc
import io
import itertools
import pickle
import random
import struct
import warnings

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image, ImageOps, TiffImagePlugin

from bridge_data.counts import COUNTS
from bridge_data.decode.image import (
    IMAGE_FORMS,
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
from tests.decode.pictures import encoded, frames_of, half_overwritten, picture, with_orientation


@pytest.mark.parametrize("name", IMAGE_FORMS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_forms_are_webdatasets_and_may_be_written_to(name, kind):
    data = encoded(picture((31, 17)), kind)
    expected = webdataset.autodecode.imagehandler(name)("x.png", data)
    for handler in (image_handler(name), pickle.loads(pickle.dumps(image_handler(name)))):
        got = handler(data)
        assert type(got) is type(expected)
        if isinstance(expected, Image.Image):
            assert (got.mode, got.size, got.tobytes()) == (expected.mode, expected.size, expected.tobytes())
        else:
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            assert (got == expected).all()
            got[...] = 0


def test_uint8_in_colour_is_a_view_of_the_decoded_pixels_and_so_is_its_batch():
    data = [encoded(picture((31, 17), seed=seed), "JPEG") for seed in range(3)]
    images = [image_handler("torchrgb8")(content) for content in data]
    assert all(image.permute(1, 2, 0).is_contiguous() for image in images)
    batch = batch_pad_stack(images)
    assert batch.shape == (3, 3, 17, 31) and batch.permute(0, 2, 3, 1).is_contiguous()
    for image, content in zip(batch, data, strict=True):
        np.testing.assert_array_equal(image.permute(1, 2, 0), image_handler("rgb8")(content))


@pytest.mark.parametrize("name", IMAGE_FORMS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_every_form_can_be_resized(name, kind):
    form, data = IMAGE_FORMS[name], encoded(picture((90, 60)), kind)
    made, plain = image_handler(name, Resizing(size=(20, 30)))(data), image_handler(name)(data)
    assert type(made) is type(plain)
    if isinstance(made, Image.Image):
        assert (made.mode, made.size) == (plain.mode, (30, 20))
        return
    assert made.dtype == plain.dtype
    expected = by_pillow(data, form.mode, (20, 30))
    got = made.permute(1, 2, 0).numpy() if isinstance(made, torch.Tensor) and made.ndim == 3 else np.asarray(made)
    np.testing.assert_array_equal(got, expected / np.float32(255) if form.scaled else expected)


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
    exif = Image.Exif()
    exif[0x0112] = 6  # an orientation, which is left as it is
    for size, progressive, quality in itertools.product(SIZES, [False, True], [15, 75, 100]):
        options = {"subsampling": subsampling, "progressive": progressive, "quality": quality, "exif": exif}
        assert_as_with_pillow(encoded(picture(size, mode), "JPEG", **options))


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


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "MPO"])
def test_an_image_of_pillow_has_what_its_header_says(kind):
    options = {} if kind == "PNG" else {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0", "comment": b"hello"}
    data = encoded(picture(), kind, dpi=(72, 72), icc_profile=b"profile", **options)
    made, expected = pillow_image(data, "RGB"), Image.open(io.BytesIO(data)).convert("RGB")
    assert type(made) is type(expected)
    assert made.info == expected.info
    made.putpixel((0, 0), (1, 2, 3))
    assert made.getpixel((0, 0)) == (1, 2, 3)
    for resize in ("pillow", "torch"):
        image = image_in_size(data, "RGB", Resizing(size=(9, 8), resize=resize))
        assert (image.size, image.info["dpi"]) == ((8, 9), expected.info["dpi"])


def test_damaged_jpegs_fare_as_with_pillow():
    rng, num_refused = random.Random(0), 0
    for number in range(400):
        data = bytearray(encoded(picture((48, 40), seed=number % 7), "JPEG", progressive=number % 3 == 0))
        if number % 2:
            del data[rng.randrange(3, len(data)) :]
        for _ in range(0 if number % 2 else rng.choice([1, 3, 20])):
            data[rng.randrange(3, len(data))] = rng.randrange(256)
        mode = MODES[number % len(MODES)]
        try:
            expected = pillow(bytes(data), mode)
        except Exception as error:
            num_refused += 1
            with pytest.raises(type(error)):
                decoded_pixels(bytes(data), mode)
        else:
            np.testing.assert_array_equal(decoded_pixels(bytes(data), mode), expected)
    assert 50 < num_refused < 350


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("PNG", m) for m in ("RGB", "RGBA", "L", "LA", "P", "1")]
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
    assert_as_with_pillow(encoded(image.convert(mode), kind))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP"])
def test_the_size_is_read_from_the_header_and_postscript_is_never_run(kind):
    data = encoded(picture((200, 100)), kind)
    assert encoded_size(data) == encoded_size(data[:700]) == (100, 200)
    with pytest.raises(OSError, match="cannot identify"):
        encoded_size(data[:3])
    with pytest.raises(OSError, match="cannot identify"):
        decoded_pixels(encoded(picture(), "EPS"), "RGB")


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


@pytest.mark.parametrize("progressive", [False, True])
def test_a_profile_with_the_bytes_of_a_scan_is_none(progressive):
    plain, profiled = (
        encoded(picture(), "JPEG", progressive=progressive, icc_profile=profile)
        for profile in (None, b"\xff\xda" * 40_000)
    )
    assert np.array_equal(image_handler("rgb8")(profiled), image_handler("rgb8")(plain))


@pytest.mark.parametrize("before", [b"\xff", b"\xff\x01", b"\xff\xd0", b"\xff\xe1\x00\x01", b""])
def test_scans_are_counted_behind_what_is_no_segment(before):
    """What a decoder passes over in another way than by a length must not hide them."""
    data = encoded(picture(), "JPEG", progressive=True)
    first, last = data.index(b"\xff\xda"), data.rindex(b"\xff\xda")
    many = data[:first] + before + data[first:-2] + data[last:-2] * 40 + b"\xff\xd9"
    with pytest.raises(Image.DecompressionBombError, match="scans of a JPEG are more than the 32"):
        image_handler("rgb8")(many)


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
@pytest.mark.parametrize(
    ("mode", "resize", "most"),
    [("L", "pillow", 0), ("RGB", "pillow", 0), ("RGBA", "pillow", 0), ("L", "torch", 2), ("RGB", "torch", 2)],
)
def test_the_pixels_are_pillows_or_by_torch_within_2_of_them(kind, mode, resize, most):
    for size in NEW_SIZES:
        pixels = pixels_in_size(CONTENT[kind], mode, Resizing(size=size, resize=resize))
        assert difference(pixels, by_pillow(CONTENT[kind], mode, size)) <= most
        image = image_in_size(CONTENT[kind], mode, Resizing(size=size, resize=resize))
        np.testing.assert_array_equal(np.asarray(image), pixels)
        pixels[...] = 0


def test_black_and_white_noise_of_any_size_too_is_within_2():
    rng = np.random.default_rng(0)
    for _ in range(40):
        height, width, *size = (int(side) for side in rng.integers(1, 300, 4))
        noise = encoded(Image.fromarray(rng.integers(0, 2, (height, width, 3), dtype=np.uint8) * 255), "PNG")
        pixels = pixels_in_size(noise, "RGB", Resizing(size=tuple(size), resize="torch"))
        assert difference(pixels, by_pillow(noise, "RGB", size)) <= 2, (height, width)


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


def test_wrong_settings_are_refused():
    for size in (336, (336,), (0, 3), (3, -1), (3.0, 3), "ab", (True, 2), (1, 2, 3)):
        with pytest.raises(ConfigError, match=r"image_size=.*expected \(height, width\), two integers"):
            Resizing(size=size)
    assert Resizing(size=[3, 4]).least is None  # a list, as YAML has it
    for make, told in (
        (lambda: Resizing(size=(3, 3), resize="cubic"), r"resize='cubic': expected one of pillow, torch"),
        (lambda: image_handler("torchrgb16"), "image_decode='torchrgb16': expected one of l8, rgb8"),
        (
            lambda: image_handler("rgba8", Resizing(size=(3, 3), resize="torch")),
            r'"torch" mixes in the colours .* image_decode=\'rgba8\'; use resize="pi',
        ),
    ):
        with pytest.raises(ConfigError, match=told):
            make()


@pytest.mark.parametrize("side", [9_500, 14_000])
def test_an_image_beyond_both_limits_names_both(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow refuses one of twice its limit itself, in other words."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    large = encoded(Image.new("1", (side, side)), "PNG")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with pytest.raises(Image.DecompressionBombError, match=r"MAX_IMAGE_PIXELS; raise it, and Limits\(max_image_pi"):
            pillow_image(large, "RGB")
    for limits, num_pixels in ((Limits(), 89_478_485), (Limits(max_image_pixels=100_000_000), 100_000_000)):
        allow_pixels(limits)
        assert num_pixels == Image.MAX_IMAGE_PIXELS


RAMP = np.linspace(0, 65_535, 32 * 24).reshape(24, 32).astype(np.uint16)
IN_8_BITS = (RAMP >> 8).astype(np.uint8)


def tiff(values: np.ndarray, *, signed: bool = False, bits: int = 16, white_is_zero: bool = False) -> bytes:
    """A TIFF of one strip with these raw values, of kinds that Pillow does not write."""
    height, width = values.shape
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: 0 if white_is_zero else 1, 273: 0, 277: 1, 278: height}
    data = values.tobytes() if bits != 12 else packed_12(values)
    tags |= {279: len(data), 339: 2 if signed else 1}
    tags[273] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + data


def packed_12(values: np.ndarray) -> bytes:
    bits = np.unpackbits(values.astype(">u2").view(np.uint8).reshape(-1, 2), axis=1)[:, 4:]
    return np.packbits(bits.reshape(-1)).tobytes()


def pnm(kind: str, header: str, data: bytes) -> bytes:
    return f"{kind} 32 24 {header}\n".encode() + data


DEEP = {
    "PNG": encoded(Image.fromarray(RAMP), "PNG"),
    "TIFF": encoded(Image.fromarray(RAMP), "TIFF"),
    "TIFF, big-endian": encoded(Image.frombytes("I;16B", (32, 24), RAMP.astype(">u2").tobytes()), "TIFF"),
    "TIFF of 12 bits": tiff(RAMP >> 4, bits=12),
    "TIFF where 0 is white": tiff(65_535 - RAMP, white_is_zero=True),
    "JPEG 2000": encoded(Image.fromarray(RAMP), "JPEG2000"),
    "PGM": pnm("P5", "65535", RAMP.astype(">u2").tobytes()),
    "PGM of 12 bits": pnm("P5", "4095", (RAMP >> 4).astype(">u2").tobytes()),
    "PPM": pnm("P6", "65535", np.repeat(RAMP[..., None], 3, 2).astype(">u2").tobytes()),
    "floats in TIFF": encoded(Image.fromarray(IN_8_BITS / np.float32(255)), "TIFF"),
    "floats in PFM": pnm("Pf", "-1.0", (IN_8_BITS[::-1] / np.float32(255)).astype("<f4").tobytes()),
}
"""The same picture in more than 8 bits."""

UNSCALED = {
    "floats in 0..255": encoded(Image.fromarray(IN_8_BITS.astype(np.float32)), "TIFF"),
    "floats below 0": encoded(Image.fromarray(IN_8_BITS / np.float32(255) - 0.1), "TIFF"),
    "NaN": encoded(Image.fromarray(np.full((24, 32), np.nan, np.float32)), "TIFF"),
    "infinity": encoded(Image.fromarray(np.full((24, 32), np.inf, np.float32)), "TIFF"),
    "32 bits": encoded(Image.fromarray(RAMP.astype(np.int32) << 15), "TIFF"),
    "signed": tiff((RAMP >> 1).astype(np.int16), signed=True),
}


@pytest.mark.parametrize("name", DEEP)
def test_pixels_of_more_than_8_bits_are_scaled_by_their_range(name: str) -> None:
    for form in IMAGE_FORMS:
        made, plain = image_handler(form)(DEEP[name]), image_handler(form)(encoded(Image.fromarray(IN_8_BITS), "PNG"))
        values = [np.asarray(one, np.float32) * (255 if IMAGE_FORMS[form].scaled else 1) for one in (made, plain)]
        np.testing.assert_allclose(*values, atol=1.01)
    resized = image_handler("l8", Resizing(size=(12, 16)))(DEEP[name])
    assert np.abs(resized.astype(int) - image_handler("l8", Resizing(size=(12, 16)))(DEEP["PNG"])).max() <= 1


@pytest.mark.parametrize("name", UNSCALED)
def test_pixels_without_a_known_range_are_refused(name: str) -> None:
    for form in ("torchrgb8", "pil", "l"):
        with pytest.raises(ValueError, match=r"nothing says which value is white; .*handlers="):
            image_handler(form)(UNSCALED[name])
    assert encoded_size(UNSCALED[name]) == (24, 32)


TURNS = [
    None,
    Image.Transpose.FLIP_LEFT_RIGHT,
    Image.Transpose.ROTATE_180,
    Image.Transpose.FLIP_TOP_BOTTOM,
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "AVIF", "TIFF", "MPO"])
@pytest.mark.parametrize("orientation", range(1, 10))
def test_the_orientation_is_ignored_or_applied_in_sizes_as_in_pixels(kind: str, orientation: int) -> None:
    image, lossless = picture((40, 24)), {"lossless": True} if kind == "WEBP" else {}
    data, plain = with_orientation(image, kind, orientation, **lossless), encoded(image, kind, **lossless)
    stored = Image.open(io.BytesIO(plain)).convert("RGB")
    turn = TURNS[orientation - 1] if orientation < 9 else None
    turned = stored if turn is None else stored.transpose(turn)
    for setting, expected in (("ignore", turned if kind == "TIFF" else stored), ("apply", turned)):
        upright = setting == "apply"
        assert encoded_size(data, upright=upright) == (expected.height, expected.width)
        for form in IMAGE_FORMS:
            made = image_handler(form, None, setting)(data)
            pixels = np.asarray(expected.convert(IMAGE_FORMS[form].mode))
            if isinstance(made, torch.Tensor):
                made = made.permute(1, 2, 0) if made.ndim == 3 else made
            scale = np.float32(255) if IMAGE_FORMS[form].scaled else 1
            np.testing.assert_allclose(np.asarray(made), pixels / scale, atol=1e-6)
        image = image_handler("pil", Resizing(size=(12, 20), dct_scaling=True), setting)(data)
        assert (image.size, ImageOps.exif_transpose(image).size) == ((20, 12),) * 2 or not upright


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP", "AVIF", "MPO"])
def test_the_first_frame_is_taken_or_all_as_a_list(kind: str) -> None:
    data, alone = frames_of(kind, "red", "lime", "blue"), frames_of(kind, "red")
    before = COUNTS.first_frames
    for form in ("pilrgb", "torchrgb", "rgb8"):
        all_of = image_handler(form, Resizing(size=(3, 5)), frames="all")
        means = [np.asarray(image, np.float32).reshape(-1, 3).mean(0) for image in map(hwc, all_of(data))]
        np.testing.assert_array_equal(np.argmax(means, 1), [0, 1, 2])
        assert [hwc(one).shape for one in all_of(alone)] == [(3, 5, 3)]
    assert COUNTS.first_frames == before
    for form in ("pil", "torchrgb8", "l8"):
        image_handler(form)(alone)
        assert COUNTS.first_frames == before
        np.testing.assert_array_equal(hwc(image_handler(form)(data)), hwc(image_handler(form, frames="all")(data)[0]))
        before += 1
        assert COUNTS.first_frames == before
    with pytest.raises(ValueError, match=r"its 3 frames .* 5000 bytes allowed \(Limits\(max_video_bytes\)\)"):
        image_handler("pil", frames="all", max_bytes=5000)(data)


def hwc(image: object) -> np.ndarray:
    return np.asarray(image.permute(1, 2, 0) if isinstance(image, torch.Tensor) and image.ndim == 3 else image)


def test_smaller_copies_and_masks_are_no_pages() -> None:
    stream = io.BytesIO()
    with TiffImagePlugin.AppendingTiffWriter(stream, True) as writer:
        for kind in (0, 1, 4):
            Image.new("RGB", (32, 24)).save(writer, "TIFF", tiffinfo={254: kind})
            writer.newFrame()
    assert len(image_handler("pil", frames="all")(stream.getvalue())) == 1


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_damaged_jpeg_whose_rest_is_guessed_is_counted(mode: str) -> None:
    whole, before = encoded(picture((200, 160), mode), "JPEG"), COUNTS.damaged_images
    for form in ("pil", "torchrgb8", "l8"):
        image_handler(form)(whole)
        assert COUNTS.damaged_images == before
        image_handler(form)(half_overwritten(whole))
        before += 1
        assert COUNTS.damaged_images == before
