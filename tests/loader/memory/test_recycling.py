import functools
import gc
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    Sample,
    SampleDecoder,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_loader,
    get_val_dataset,
    stateless,
)
from bridge_data.decode.image import image_handler
from bridge_data.loader.memory.recycling import Recycler
from bridge_data.samples.collation import batch_pad_stack, build_in, in_one_place
from tests.prepared import CRUDE, write_dataset

LARGE = (4, 1 << 20)


def test_memory_is_used_again_when_nothing_looks_at_it() -> None:
    recycler = Recycler()
    first = recycler.allocate(LARGE, torch.uint8)
    assert first is not None
    address, view = first.data_ptr(), first[1:3].numpy()
    del first
    gc.collect()
    second = recycler.allocate(LARGE, torch.uint8)
    assert second is not None and second.data_ptr() != address
    view[...] = 7
    del view
    gc.collect()
    third = recycler.allocate(LARGE, torch.uint8)
    assert third is not None and third.data_ptr() == address


def test_kept_tensors_keep_their_values() -> None:
    recycler = Recycler()
    kept = []
    for number in range(12):
        tensor = recycler.allocate(LARGE, torch.uint8)
        assert tensor is not None
        kept.append(tensor.fill_(number))
    assert [int(tensor.min()) for tensor in kept] == [int(tensor.max()) for tensor in kept] == list(range(12))
    kept.clear()
    gc.collect()
    assert len(recycler._spare) == 4


def test_small_tensors_are_left_to_torch() -> None:
    assert Recycler().allocate((10, 10), torch.float32) is None


def test_pieces_grow_with_what_is_asked_for() -> None:
    recycler = Recycler()
    for count in (1 << 20, 1 << 23, 1 << 20):
        tensor = recycler.allocate((count,), torch.float32)
        assert tensor is not None and tensor.shape == (count,)
        tensor.fill_(1)


@pytest.fixture
def recycler() -> Iterator[Recycler]:
    made = Recycler()
    build_in(made.allocate)
    yield made
    build_in(None)


def jpegs(sizes: list[tuple[int, int]]) -> list[bytes]:
    contents = []
    for number, size in enumerate(sizes):
        content = io.BytesIO()
        pixels = np.random.default_rng(number).integers(0, 255, (size[0] // 8, size[1] // 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((size[1], size[0])).save(content, "JPEG")
        contents.append(content.getvalue())
    return contents


@pytest.mark.parametrize("sizes", [[(256, 320)] * 4, [(256, 320), (304, 256), (256, 320)]])
def test_images_are_decoded_where_they_are_stacked(recycler: Recycler, sizes: list[tuple[int, int]]) -> None:
    contents, decode = jpegs(sizes), image_handler("torchrgb8")
    expected = batch_pad_stack([decode(content).contiguous() for content in contents])
    for _ in range(3):
        with in_one_place(len(contents)):
            images = [decode(content) for content in contents]
        batch = batch_pad_stack(images)
        assert torch.equal(batch, expected)
    assert (batch.data_ptr() == images[0].data_ptr()) == (len(set(sizes)) == 1)
    assert decode(contents[0]).untyped_storage().nbytes() < batch.nbytes


def test_what_was_stacked_where_it_lay_is_copied_when_it_is_stacked_again(recycler: Recycler) -> None:
    contents, decode = jpegs([(256, 320)] * 4), image_handler("torchrgb8")
    for _ in range(2):
        with in_one_place(len(contents)):
            images = [decode(content) for content in contents]
        batch = batch_pad_stack(images)
    assert batch.data_ptr() == images[0].data_ptr()
    assert batch_pad_stack(images).data_ptr() != batch.data_ptr()


def test_a_batch_with_an_image_left_out_is_whole(recycler: Recycler) -> None:
    contents, decode = jpegs([(256, 320)] * 4), image_handler("torchrgb8")
    for left_out in range(4):
        with in_one_place(len(contents)):
            images = [decode(content) for content in contents]
        del images[left_out]
        expected = torch.stack([decode(content) for n, content in enumerate(contents) if n != left_out])
        assert torch.equal(batch_pad_stack(images), expected)


@edataclass
class Pair(Sample):
    image: torch.Tensor
    reference: torch.Tensor


class Comparing(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Gives each image the first one, which its cooker has kept, and changes batches where they are."""

    decoder = SampleDecoder(image_decode="torchrgb8")

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []
        self.cookers = [Cooker(self.cook)]

    def cook(self, sample: CrudeSample) -> Pair:
        self.kept = self.kept or [sample["jpg"]]
        return Pair(**basic_sample_keys(sample), image=sample["jpg"], reference=self.kept[0])

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        batch.image.copy_(255 - batch.image)
        return batch


def test_an_image_that_a_cooker_keeps_is_its_own(tmp_path: Path) -> None:
    parts = [{"__key__": f"{n:02d}", "jpg": content} for n, content in enumerate(jpegs([(256, 320)] * 12))]
    data = write_dataset(tmp_path, parts, definition=CRUDE)
    settings: dict[str, Any] = {"split_part": "train", "worker_config": WorkerConfig(0, 1, 0), "batch_size": 4}
    with get_loader(get_val_dataset(data, task_encoder=Comparing(), **settings)) as loader:
        references = torch.cat([batch.reference for batch in loader])
    assert len(references) == 12
    assert torch.equal(references, image_handler("torchrgb8")(parts[0]["jpg"]).expand(12, -1, -1, -1))


class Caching(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Decodes each image once, and changes batches where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = SampleDecoder(handlers={"jpg": functools.cache(image_handler("torchrgb8"))})

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        batch.image.copy_(255 - batch.image)
        return batch


def test_an_image_that_a_handler_keeps_is_its_own(tmp_path: Path) -> None:
    parts = [{"__key__": f"{n:02d}", "jpg": content} for n, content in enumerate(jpegs([(256, 320)] * 8))]
    image = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "ImageSample"},
        "field_map": {"image": "jpg"},
    }
    data = write_dataset(tmp_path, parts, definition=image)
    settings: dict[str, Any] = {"split_part": "train", "worker_config": WorkerConfig(0, 1, 0), "batch_size": 4}
    with get_loader(get_val_dataset(data, task_encoder=Caching(), **settings)) as loader:
        first, again = (torch.cat([batch.image for batch in loader]) for _ in range(2))
    assert torch.equal(first, again)
