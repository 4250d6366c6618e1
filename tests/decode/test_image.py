import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data.decode.image import IMAGE_FORMS, image_handler
from bridge_data.decode.pixels import Resizing
from bridge_data.errors import ConfigError
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
