"""What is built in an arena is right in nested arenas, threads and forked children, and hooks may keep it."""

import contextvars
import functools
import gc
import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
from bridge_data.samples.arena import Arena, PrivateArena, current_arena
from bridge_data.samples.collation import batch_pad_stack, batch_stack
from tests.prepared import CRUDE, write_dataset


@pytest.fixture
def arena() -> Iterator[PrivateArena]:
    made = PrivateArena()
    with made.active():
        yield made


def jpegs(sizes: list[tuple[int, int]]) -> list[bytes]:
    contents = []
    for number, size in enumerate(sizes):
        content = io.BytesIO()
        pixels = np.random.default_rng(number).integers(0, 255, (size[0] // 8, size[1] // 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((size[1], size[0])).save(content, "JPEG")
        contents.append(content.getvalue())
    return contents


SIZE = 1 << 20
LARGE = (4, SIZE)


def stacked(number: int) -> torch.Tensor:
    return batch_stack([torch.full((SIZE,), number, dtype=torch.uint8)] * 2)


def is_built_in(arena: Arena, tensor: torch.Tensor) -> bool:
    """Whether a tensor is the last that was allocated from the arena."""
    buffer = arena._buffer
    return buffer is not None and 0 <= tensor.data_ptr() - buffer.address < buffer.num_bytes


def test_an_arena_is_used_only_while_it_is_active_and_gives_way_to_the_one_outside(arena: PrivateArena) -> None:
    other = PrivateArena()
    with pytest.raises(ValueError, match="no"), other.active():
        assert current_arena() is other and is_built_in(other, stacked(2))
        with arena.active():
            assert current_arena() is arena
        assert current_arena() is other
        raise ValueError("no")
    assert current_arena() is arena and is_built_in(arena, stacked(3))
    assert arena.allocate((10, 10), torch.float32) is None  # small ones are left to torch


@pytest.mark.parametrize("with_context", [False, True], ids=["new context", "copied context"])
def test_threads_that_a_hook_starts_have_memory_of_their_own(arena: PrivateArena, with_context: bool) -> None:
    contents, decode = jpegs([(256, 320)] * 4), image_handler("torchrgb8")

    def work() -> tuple[Arena | None, torch.Tensor, torch.Tensor]:
        return current_arena(), stacked(5), decode(contents[0])

    context = contextvars.copy_context() if with_context else contextvars.Context()
    with arena.images(1):
        decode(contents[0])  # from now on it knows the size
    with arena.images(4), ThreadPoolExecutor(1) as pool:
        images = [decode(content) for content in contents]
        found, tensor, image = pool.submit(context.run, work).result()
    assert found is None
    assert not is_built_in(arena, tensor) and not is_built_in(arena, image)
    assert is_built_in(arena, images[0])


def test_a_forked_child_has_memory_of_its_own(arena: PrivateArena) -> None:
    first, ones = stacked(6), [torch.ones(SIZE, dtype=torch.uint8)] * 2
    child = os.fork()
    if child == 0:  # in which torch cannot compute in several threads, as it would on more values
        os._exit(int(current_arena() is not None or is_built_in(arena, batch_stack(ones))))
    assert os.waitpid(child, 0)[1] == 0
    assert is_built_in(arena, first) and is_built_in(arena, stacked(8)) and int(first.max()) == 6


@pytest.mark.parametrize("sizes", [[(256, 320)] * 4, [(256, 320), (304, 256), (256, 320)]])
def test_images_are_decoded_where_they_are_stacked(arena: PrivateArena, sizes: list[tuple[int, int]]) -> None:
    contents, decode = jpegs(sizes), image_handler("torchrgb8")
    expected = batch_pad_stack([decode(content).contiguous() for content in contents])
    for _ in range(3):
        with arena.images(len(contents)):
            images = [decode(content) for content in contents]
        batch = batch_pad_stack(images)
        assert torch.equal(batch, expected)
    assert (batch.data_ptr() == images[0].data_ptr()) == (len(set(sizes)) == 1)
    assert decode(contents[0]).untyped_storage().nbytes() < batch.nbytes


def test_what_was_stacked_where_it_lay_is_copied_when_it_is_stacked_again(arena: PrivateArena) -> None:
    contents, decode = jpegs([(256, 320)] * 4), image_handler("torchrgb8")
    for _ in range(2):
        with arena.images(len(contents)):
            images = [decode(content) for content in contents]
        batch = batch_pad_stack(images)
    assert batch.data_ptr() == images[0].data_ptr()
    assert batch_pad_stack(images).data_ptr() != batch.data_ptr()


def test_a_batch_with_an_image_left_out_is_whole(arena: PrivateArena) -> None:
    contents, decode = jpegs([(256, 320)] * 4), image_handler("torchrgb8")
    for left_out in range(4):
        with arena.images(len(contents)):
            images = [decode(content) for content in contents]
        del images[left_out]
        expected = torch.stack([decode(content) for n, content in enumerate(contents) if n != left_out])
        assert torch.equal(batch_pad_stack(images), expected)


@edataclass
class Pair(Sample):
    image: torch.Tensor
    reference: torch.Tensor


class Keeping(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Gives each image the first one, which its cooker or its decoder has kept, and changes batches where they are."""

    def __init__(self, decode: Any) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []
        self.decoder = SampleDecoder(handlers={"jpg": decode})
        self.cookers = [Cooker(self.cook)]

    def cook(self, sample: CrudeSample) -> Pair:
        self.kept = self.kept or [sample["jpg"]]
        return Pair(**basic_sample_keys(sample), image=sample["jpg"], reference=self.kept[0])

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        batch.image.copy_(255 - batch.image)
        return batch


@pytest.mark.parametrize("is_cached", [False, True])
def test_an_image_that_a_cooker_or_a_handler_keeps_is_its_own(tmp_path: Path, is_cached: bool) -> None:
    parts = [{"__key__": f"{n:02d}", "jpg": content} for n, content in enumerate(jpegs([(256, 320)] * 12))]
    data, decode = write_dataset(tmp_path, parts, definition=CRUDE), image_handler("torchrgb8")
    encoder = Keeping(functools.cache(decode) if is_cached else decode)
    settings: dict[str, Any] = {"split_part": "train", "worker_config": WorkerConfig(0, 1, 0), "batch_size": 4}
    with get_loader(get_val_dataset(data, task_encoder=encoder, **settings)) as loader:
        first, again = ([(batch.image, batch.reference) for batch in loader] for _ in range(2))
    expected = decode(parts[0]["jpg"])
    assert all(torch.equal(one, expected) for _, references in first + again for one in references)
    assert all(torch.equal(one, other) for (one, _), (other, _) in zip(first, again, strict=True))


def test_private_memory_is_used_again_when_nothing_looks_at_it() -> None:
    arena = PrivateArena()
    first = arena.allocate(LARGE, torch.uint8)
    assert first is not None
    address, view = first.data_ptr(), first[1:3].numpy()
    del first
    gc.collect()
    second = arena.allocate(LARGE, torch.uint8)
    assert second is not None and second.data_ptr() != address
    view[...] = 7
    del view
    gc.collect()
    third = arena.allocate(LARGE, torch.uint8)
    assert third is not None and third.data_ptr() == address


def test_kept_tensors_keep_their_values() -> None:
    arena = PrivateArena()
    kept = []
    for number in range(12):
        tensor = arena.allocate(LARGE, torch.uint8)
        assert tensor is not None
        kept.append(tensor.fill_(number))
    assert [int(tensor.min()) for tensor in kept] == [int(tensor.max()) for tensor in kept] == list(range(12))
    kept.clear()
    gc.collect()
    assert len(arena._spare) == 4
