import base64
import io
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data.errors import ConfigError
from bridge_data.plugins.view.catalog import SampleAddress
from bridge_data.plugins.view.contents import contents, pictures_of, write_sheet
from bridge_data.plugins.view.data_catalog import BrowsedSplit
from tests.cli.runner import run_command
from tests.prepared import write_texts

HOSTILE = "</style><script>alert(1)</script>"


def test_a_sheet_is_one_file_with_all_in_it(blend_yaml: Path, tmp_path: Path) -> None:
    file = tmp_path / "sheet.html"
    result = run_command("info", blend_yaml, "--html", file, "--samples", 4, "--split-part", "train")
    assert result.exit_code == 0, result.stderr
    assert result.output == f"{file}: 8 samples of {blend_yaml}\n"
    html = file.read_text()
    assert html.count('<article class="card">') == 8
    assert "a picture of coffee, cut at 1" in html and "what does film 3 say?" in html
    uris = re.findall(r'src="([^"]+)"', html)
    assert len(uris) == 4 + 2 * 4 and all(uri.startswith("data:") for uri in uris)
    assert Image.open(io.BytesIO(base64.b64decode(uris[0].partition(",")[2]))).size == (24, 18)
    assert not re.search(r"(href|src)=\"(?!data:)", html) and "<script" not in html
    assert "default-src 'none'" in html


def test_captions_stay_text_and_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    part = BrowsedSplit.open(write_texts(tmp_path / "texts", 1100, lambda _: HOSTILE), "train", {})
    assert part is not None
    chosen = [SampleAddress(0, number) for number in range(1100)]
    write_sheet(tmp_path / "sheet.html", HOSTILE, part, chosen[1:10])
    html = (tmp_path / "sheet.html").read_text()
    assert "<script>" not in html and html.count("&lt;script&gt;") >= 3
    for file, count, told in (
        ("sheet.html", 1100, "1,100 samples are too many for one file, at most 1,000"),
        ("none/sheet.html", 2, "cannot be written: No such file"),
    ):
        with pytest.raises(ConfigError, match=told):
            write_sheet(tmp_path / file, "texts", part, chosen[:count])


class Words:
    """A tokenizer of numbered words."""

    def decode(self, tokens: list[int]) -> str:
        return f"w{tokens[0]} "


def batch() -> dict[str, object]:
    """Two rows of eight: a pack of three and two tokens and padding, and one sample that fills its row."""
    return {
        "__key__": ["a,b", "c"],
        "tokens": torch.arange(16).reshape(2, 8),
        "loss_mask": torch.tensor([[0, 1, 0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 0]]).float(),
        "position_ids": torch.tensor([[0, 1, 2, 0, 1, 0, 0, 0], list(range(8))]),
        "cu_seqlens": torch.tensor([[0, 3, 5], [0, 8, 8]], dtype=torch.int32),
        "more": [1, 2],
    }


def test_rows_have_their_samples_their_waste_and_what_is_learnt() -> None:
    shown = contents(batch(), Words())
    assert shown.keys == ("a", "b", "c") and ("more", "[1, 2]") in shown.fields
    first, second = shown.rows
    assert [(one.key, one.first, one.length) for one in first.segments] == [("a", 0, 3), ("b", 3, 2)]
    assert (first.used, first.length, first.waste) == (5, 8, 3 / 8)
    assert (first.segments[1].start, first.segments[1].share) == (3 / 8, 2 / 8)
    assert ([one.key for one in second.segments], second.waste) == (["c"], 0)
    assert [token.text for token in first.tokens if token.learnt] == ["w2 ", "w5 "], "the label of the one before"
    assert [token.number for token in second.tokens if token.learnt] == [15]
    assert (first.num_learnt, second.num_learnt) == (2, 1)
    assert [token.position for token in first.tokens] == [0, 1, 2, 0, 1, 0, 0, 0]


def test_other_names_masks_and_positions_are_understood_and_batches_without_tokens() -> None:
    given = {"input_ids": torch.ones(2, 4, dtype=torch.int64), "attention_mask": torch.tensor([[1, 1, 0, 0], [1] * 4])}
    rows = contents(given).rows
    assert [(row.used, row.num_learnt) for row in rows] == [(2, 0), (4, 0)] and rows[0].tokens[0].text == "1"
    three = torch.stack([torch.full((2, 8), 7), torch.zeros(2, 8), torch.zeros(2, 8)])  # of a token; the first is shown
    assert {token.position for token in contents(batch() | {"position_ids": three}).rows[0].tokens} == {7}
    shown = contents({"__key__": ["x"], "image": torch.zeros(1, 3, 4, 5)})
    assert (shown.rows, shown.fields) == ((), (("image", "float32 1×3×4×5, 0 … 0"),))


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


def test_normalised_pixels_are_turned_back_exactly_or_stretched_and_it_is_said() -> None:
    images = [photo(8, 6), photo(8, 6).rotate(180)]
    batch = {"media": {"pixel_values": torch.stack([normalised(image) for image in images])}}
    found = pictures_of(batch, encoder(image_mean=MEAN, image_std=DEVIATION))
    assert [np.array_equal(one.image, image) for one, image in zip(found, images, strict=True)] == [True, True]
    assert all(one.is_exact and one.field == "pixel_values" for one in found)
    (stretched,) = pictures_of({"images": normalised(photo(8, 6))[None]}, None)
    pixels = np.asarray(stretched.image)
    assert (pixels.min(), pixels.max(), stretched.is_exact) == (0, 255, False)


def test_bytes_and_shares_are_shown_as_they_are_and_what_is_no_picture_is_not() -> None:
    pixels = torch.tensor(np.asarray(photo(8, 6))).permute(2, 0, 1)
    for given in (pixels, pixels / 255):
        (found,) = pictures_of({"image": given[None]}, None)
        assert found.is_exact and np.array_equal(found.image, photo(8, 6))
    tiles = torch.zeros(1, 4, 3, 6, 8)
    tiles[0, 1] = 0.5
    assert len(pictures_of({"pixel_values": tiles}, None)) == 1, "empty tiles are left out"
    masks = {"position_ids": torch.arange(3 * 2 * 8).reshape(3, 2, 8), "attention_mask": torch.ones(2, 1, 8, 8).bool()}
    assert pictures_of(masks, None) == []


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
