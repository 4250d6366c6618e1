from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data.tools.view.contents import pictures_of

MEAN, DEVIATION = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]


def photo(width: int, height: int) -> Image.Image:
    """A picture in which every pixel differs from its neighbours."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encoder(**attributes: object) -> object:
    """A task encoder whose model family has an image processor."""
    return SimpleNamespace(family=SimpleNamespace(image_processor=SimpleNamespace(**attributes)))


def normalised(image: Image.Image) -> torch.Tensor:
    pixels = torch.tensor(np.asarray(image)).permute(2, 0, 1) / 255
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]


def test_normalised_pixels_are_turned_back_exactly() -> None:
    images = [photo(8, 6), photo(8, 6).rotate(180)]
    batch = {"media": {"pixel_values": torch.stack([normalised(image) for image in images])}}
    found = pictures_of(batch, encoder(image_mean=MEAN, image_std=DEVIATION))
    assert [np.array_equal(one.image, image) for one, image in zip(found, images, strict=True)] == [True, True]
    assert all(one.is_exact and one.field == "pixel_values" for one in found)


def test_without_mean_and_deviation_pixels_are_stretched_and_it_is_said() -> None:
    (found,) = pictures_of({"images": normalised(photo(8, 6))[None]}, None)
    assert not found.is_exact
    assert (np.asarray(found.image).min(), np.asarray(found.image).max()) == (0, 255)


def test_bytes_and_shares_are_shown_as_they_are() -> None:
    pixels = torch.tensor(np.asarray(photo(8, 6))).permute(2, 0, 1)
    for given in (pixels, pixels / 255):
        (found,) = pictures_of({"image": given[None]}, None)
        assert found.is_exact and np.array_equal(found.image, photo(8, 6))


def test_empty_tiles_are_left_out() -> None:
    tiles = torch.zeros(1, 4, 3, 6, 8)
    tiles[0, 1] = 0.5
    assert len(pictures_of({"pixel_values": tiles}, None)) == 1


def test_positions_of_three_axes_and_masks_are_no_pictures() -> None:
    batch = {"position_ids": torch.arange(3 * 2 * 8).reshape(3, 2, 8), "attention_mask": torch.ones(2, 1, 8, 8).bool()}
    assert pictures_of(batch, None) == []


@pytest.mark.slow  # imports transformers
def test_patches_are_put_together_by_their_grids() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, image_mean=MEAN, image_std=DEVIATION)
    images = [photo(32, 24), photo(16, 40)]
    made = processor(images=images, do_resize=False, return_tensors="pt")
    found = pictures_of({"media": dict(made)}, SimpleNamespace(image_processor=processor))
    assert [one.image.size for one in found] == [(32, 24), (16, 40)]
    for one, image in zip(found, images, strict=True):
        assert np.abs(np.asarray(one.image).astype(int) - np.asarray(image)).max() <= 1
