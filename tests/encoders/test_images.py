import io
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from bridge_data.encoders import MultiModalSampleConfig
from bridge_data.encoders.images import Images, as_rgb, image_size
from bridge_data.errors import ConfigError, SampleError
from tests.encoders.multimodal_parts import image_processor, png


def forms(data: bytes) -> dict[str, Any]:
    picture = Image.open(io.BytesIO(data))
    array = np.array(picture)
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    return {"bytes": data, "Pillow": picture, "array": array, "uint8": tensor, "float": tensor.to(torch.float32) / 255}


def test_every_form_of_an_image_gives_what_the_processor_makes_of_its_pixels() -> None:
    data = png()
    expected = image_processor()(images=[Image.open(io.BytesIO(data))], return_tensors="pt")["pixel_values"]
    for name, image in forms(data).items():
        assert torch.equal(Images(image_processor()).pixels([image], "k"), expected), name


def test_gray_and_transparent_images_and_single_pixels_become_rgb_of_the_one_size() -> None:
    pictures = [Image.new(mode, (9, 7)) for mode in ("L", "LA", "RGBA", "P", "1")] + [Image.new("RGB", (1, 1))]
    pixels = Images(image_processor()).pixels(pictures, "k")
    assert (pixels.shape, pixels.dtype) == ((6, 3, 16, 16), torch.float32)


def test_an_image_that_cannot_be_decoded_is_a_failure_of_its_sample() -> None:
    for broken in (b"no image", png()[:60]):
        with pytest.raises(SampleError, match="sample 'k': part 'image'"):
            Images(image_processor()).pixels([broken], "k")


def test_an_rgb_image_of_pillow_is_not_copied() -> None:
    image = Image.new("RGB", (9, 7))
    assert as_rgb(image, "k") is image
    assert as_rgb(image.convert("L"), "k").mode == as_rgb(Image.open(io.BytesIO(png())), "k").mode == "RGB"


def test_no_image_gives_no_pixels_of_the_right_shape() -> None:
    assert Images(image_processor()).pixels([], "k").shape == (0, 3, 16, 16)


def test_tokens_of_an_image_are_its_patches_or_as_many_as_the_settings_say() -> None:
    images = Images(image_processor())
    assert images.num_tokens(MultiModalSampleConfig(patch_size=8)) == 4
    assert images.num_tokens(MultiModalSampleConfig(patch_size=8, tokens_per_image=9)) == 9
    with pytest.raises(ConfigError, match=r"does not say how many tokens an image takes; set .*patch_size"):
        images.num_tokens(MultiModalSampleConfig())


def test_a_processor_that_knows_its_patch_size_needs_no_setting() -> None:
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    processor.patch_size = 4
    assert Images(processor).num_tokens(MultiModalSampleConfig()) == 16


@pytest.mark.parametrize("name", ["Qwen2VLImageProcessor", "LlavaNextImageProcessor", "PixtralImageProcessor"])
def test_processors_whose_tokens_depend_on_the_image_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="see FamilyTaskEncoder"):
        Images(getattr(transformers, name)())


def test_the_size_is_known_in_every_form_and_from_the_header_alone() -> None:
    data = png(size=(24, 20))
    for name, image in forms(data).items():
        assert image_size(image, "k") == (20, 24), name
    assert image_size(data[:60], "k") == (20, 24)
    with pytest.raises(SampleError, match="'k'"):
        image_size(b"no image", "k")
