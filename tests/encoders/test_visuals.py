"""Images and videos in all their forms give the pixels that were announced."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bridge_data.decode.av import AVDecoder
from bridge_data.encoders import ImageLimits, MultiModalSampleConfig, VideoSampling
from bridge_data.encoders.visuals import Images, as_rgb, image_size, limited_size, open_video, picture_sizes, pictures
from bridge_data.errors import ConfigError, SampleError, SkipSample
from tests.decode.av.media import decode_all, numbers, write
from tests.decode.pictures import with_orientation
from tests.encoders.multimodal_parts import image_processor, png
from tests.encoders.parts import picture
from tests.encoders.parts import png as encoded
from tests.encoders.qwen_parts import make_family
from tests.later import hf


def forms(data: bytes) -> dict[str, Any]:
    picture = Image.open(io.BytesIO(data))
    array = np.array(picture)
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    return {"bytes": data, "Pillow": picture, "array": array, "uint8": tensor, "float": tensor.to(torch.float32) / 255}


def test_every_form_of_an_image_gives_what_the_processor_makes_of_its_pixels() -> None:
    data = png(size=(24, 20))
    images = Images(image_processor(), "Mine")
    expected = image_processor()(images=[Image.open(io.BytesIO(data))], return_tensors="pt")["pixel_values"]
    for name, image in forms(data).items():
        assert torch.equal(images.pixels([image], "k"), expected), name
        assert image_size(image, "k") == (20, 24), name
    assert image_size(data[:60], "k") == (20, 24), "from the header alone"
    for broken in (b"no image", data[:60]):
        with pytest.raises(SampleError, match="sample 'k': part 'image'"):
            images.pixels([broken], "k")
    with pytest.raises(SampleError, match="'k'"):
        picture_sizes([b"no image"], ImageLimits(), "k")


def test_gray_and_transparent_images_and_single_pixels_become_rgb_of_the_one_size() -> None:
    pictures = [Image.new(mode, (9, 7)) for mode in ("L", "LA", "RGBA", "P", "1")] + [Image.new("RGB", (1, 1))]
    images = Images(image_processor(), "Mine")
    pixels = images.pixels(pictures, "k")
    assert (pixels.shape, pixels.dtype) == ((6, 3, 16, 16), torch.float32)
    assert images.pixels([], "k").shape == (0, 3, 16, 16)
    assert as_rgb(pictures[-1], "k") is pictures[-1], "what is RGB is not copied"


def test_tokens_of_an_image_are_its_patches_or_as_many_as_the_settings_say() -> None:
    images = Images(image_processor(), "Mine")
    assert images.num_tokens(MultiModalSampleConfig(patch_size=8)) == 4
    assert images.num_tokens(MultiModalSampleConfig(patch_size=8, tokens_per_image=9)) == 9
    with pytest.raises(ConfigError, match=r"does not say how many tokens an image takes; set .*patch_size"):
        images.num_tokens(MultiModalSampleConfig())
    processor = hf.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    processor.patch_size = 4
    assert Images(processor, "Mine").num_tokens(MultiModalSampleConfig()) == 16


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
    images = [encoded(picture((40, 30))), picture((7, 50)), encoded(picture((200, 100)))]
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
    images = [encoded(picture((8, 8))), encoded(picture(size))]
    with pytest.raises(SampleError, match=message):
        picture_sizes(images, settings, "k")
    with pytest.raises(SkipSample):
        picture_sizes(images, ImageLimits(min_side=settings.min_side), "k")
    assert len(picture_sizes(images, ImageLimits(max_aspect=10_000), "k")) == 2


def choose(num_frames: int, fps: float, sampling: VideoSampling) -> Sequence[int]:
    """The frames that Qwen2-VL takes."""
    return make_family("qwen2_vl").choose_frames(num_frames, fps, sampling)


def test_videos_give_the_frames_chosen() -> None:
    data = write("mp4", video="libx264")
    for source in (data, AVDecoder(data)):
        video = open_video(source, "v", VideoSampling(fps=4), choose)
        assert (video.num_frames, video.fps, video.size) == (50, 25.0, (48, 64))
        assert video.frames == (0, 6, 12, 18, 25, 31, 37, 43)
        assert video.sampled_fps == 4
        shown = np.stack([np.asarray(picture) for picture in video.pictures()]).transpose(0, 3, 1, 2)
        assert numbers(shown) == list(video.frames)
        assert np.array_equal(shown, decode_all(data)[list(video.frames)])
    frames = torch.randint(0, 255, (48, 3, 6, 8), dtype=torch.uint8)
    video = open_video(frames, "v", VideoSampling(fps=2, default_fps=24), choose)
    assert video.frames == (0, 12, 24, 36)
    shown = np.stack([np.asarray(picture) for picture in video.pictures()]).transpose(0, 3, 1, 2)
    assert np.array_equal(shown, frames[[0, 12, 24, 36]].numpy())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (torch.zeros(4, 6, 8, 3, dtype=torch.uint8), r"a video is torch.uint8 \(4, 6, 8, 3\)"),
        (torch.zeros(4, 3, 6, 8), "a video is torch.float32"),
        (torch.zeros(0, 3, 6, 8, dtype=torch.uint8), "a video has no frame"),
        ("file.mp4", "a video is str; expected an AVDecoder, bytes, or frames"),
        (write("wav", audio="pcm_s16le", num_samples=1000), "the medium has no video"),
    ],
)
def test_what_is_no_video_is_refused(source: Any, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        open_video(source, "v", VideoSampling(), choose)


@pytest.mark.parametrize("orientation", ["ignore", "apply"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_announced_sizes_are_those_of_turned_pictures(kind: str, orientation: str) -> None:
    data = [with_orientation(Image.new("RGB", (40, 20)), kind, number) for number in range(1, 9)]
    limits = ImageLimits(max_pixels=500, orientation=orientation)
    made = pictures(data, limits, "k")
    assert picture_sizes(data, limits, "k") == [(one.height, one.width) for one in made]
    turned = orientation == "apply" or kind == "TIFF"
    assert [one.height > one.width for one in made] == [turned and number > 4 for number in range(1, 9)]


RAMP = np.linspace(0, 65_535, 64).reshape(8, 8).astype(np.uint16)


@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(RAMP),
        Image.fromarray(RAMP / np.float32(65_535)),
        np.repeat(RAMP[..., None] / 65_535, 3, 2),
        RAMP / np.float32(65_535),
        RAMP,
        torch.from_numpy(RAMP / np.float32(65_535))[None],
    ],
)
def test_pixels_of_more_than_8_bits_keep_their_levels(image: Any) -> None:
    made = np.asarray(as_rgb(image, "k"), int)
    assert np.abs(made - (RAMP >> 8)[..., None]).max() <= 1
    assert image_size(image, "k") == (8, 8)


@pytest.mark.parametrize(
    "image", [Image.fromarray(RAMP.astype(np.float32)), torch.ones(3, 8, 8) * 2, -np.ones((8, 8, 3))]
)
def test_pixels_beyond_their_range_are_refused(image: Any) -> None:
    with pytest.raises(SampleError, match=r"'k'.*nothing says which value is white"):
        as_rgb(image, "k")
