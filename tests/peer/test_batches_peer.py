"""Batches, packs and groups are made by the same rules here and in Energon.

Validation has the same order in both, so what is made of it is compared whole. Training has not: there it is the
samples, and how batches and packs are composed.
"""

import collections
from pathlib import Path

import pytest

from tests.peer.media import picture
from tests.peer.running import MARKS, in_order, run_both
from tests.prepared import write_dataset

pytestmark = MARKS

SIZE = 75


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Photos of several sizes with captions of several lengths, all in the part `val`, and in `train`."""
    samples = ({"__key__": f"{n:03d}", "png": picture(n % 9), "txt": "x" * (1 + n * 37 % 90)} for n in range(SIZE))
    definition = {"sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"}}
    definition |= {"field_map": {"image": "png", "caption": "txt"}, "subflavors": {"kind": "photo"}}
    return write_dataset(tmp_path / "photos", samples, per_shard=20, definition=definition)


def test_batches(photos: Path) -> None:
    program = """
from megatron.energon import Batch, batch_pad_stack

@edataclass
class Photos(Batch):
    image: torch.Tensor
    caption: list
    half: torch.Tensor

class Own(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="torchrgb8")

    @stateless
    def encode_sample(self, sample):
        if sample.caption == "x" * 30:
            raise SkipSample
        yield sample
        if len(sample.caption) > 80:
            yield type(sample).derive_from(sample, image=sample.image[:, :9], caption="again")

    @stateless
    def batch(self, samples):
        # By its documentation from_samples pads and stacks tensors, as ours does; that of 7.4.1 makes lists of them.
        image = batch_pad_stack([sample.image for sample in samples])
        half = torch.tensor([len(sample.caption) / 2 for sample in samples])
        return Photos.from_samples(samples, image=image, half=half)

    @stateless
    def encode_batch(self, batch):
        return Photos.derive_from(batch, image=batch.image[..., :30], caption=batch.caption, half=batch.half)

path = given["path"]
found = {
    "one": val(path, split_part="train", batch_size=1),
    "seven": val(path, split_part="train", batch_size=7),
    "whole ones": val(path, split_part="train", batch_size=7, batch_drop_last=True),
    "two": val(path, split_part="train", batch_size=7, limit=2),
    "own": val(path, split_part="train", batch_size=6, task_encoder=Own()),
}
"""
    theirs, ours = run_both(program, photos.parent, path=photos)
    assert ours == theirs
    assert [len(batches) for batches in ours.values()] == [75, 11, 10, 2, 14]


def test_packs(photos: Path) -> None:
    program = """
@edataclass
class Pack(Sample):
    keys: list
    lengths: torch.Tensor
    images: list

class Packing(DefaultTaskEncoder):
    def select_samples_to_pack(self, samples):
        packs, room = [], 0
        for sample in samples:
            if len(sample.caption) > room:
                packs.append([])
                room = 128
            packs[-1].append(sample)
            room -= len(sample.caption)
        return packs

    @stateless
    def pack_selected_samples(self, samples):
        return Pack.derive_from(
            samples[0],
            keys=[sample.__key__.rpartition("/")[2] for sample in samples],
            lengths=torch.tensor([len(sample.caption) for sample in samples]),
            images=[sample.image for sample in samples],
        )

class Later(Packing):
    @stateless
    def preencode_sample(self, sample):
        if len(sample.caption) == 1:
            raise SkipSample
        return sample

    @stateless
    def postencode_sample(self, sample):
        sample.image = sample.image[:, ::2]
        return sample

path = given["path"]
found = {
    "val": val(path, split_part="train", packing_buffer_size=20, task_encoder=Packing()),
    "later": val(path, split_part="train", packing_buffer_size=11, task_encoder=Later()),
    "batches": val(path, split_part="train", packing_buffer_size=20, batch_size=3, task_encoder=Packing()),
    "train": epoch(path, packing_buffer_size=20, task_encoder=Packing()),
}
"""
    theirs, ours = run_both(program, photos.parent, path=photos)
    for name in ("val", "later", "batches"):
        assert ours[name] == theirs[name]
    for packs in (ours["train"], theirs["train"]):
        keys = [key for pack in packs for key in pack["keys"][1:]]
        assert sorted(keys) == [f"str '{n:03d}'" for n in range(SIZE)]
    assert len(ours["val"]) > 30


def test_groups(photos: Path) -> None:
    program = """
class ByWidth(DefaultTaskEncoder):
    @stateless
    def batch_group_criterion(self, sample):
        width = sample.image.shape[2]
        return ("wide", 3) if width > 32 else (width // 4, 5 if width > 26 else 2)

class ByShape(DefaultTaskEncoder):
    @stateless
    def batch_group_criterion(self, sample):
        return tuple(sample.image.shape), None

path = given["path"]
found = {
    "own sizes": val(path, split_part="train", task_encoder=ByWidth()),
    "whole ones": val(path, split_part="train", batch_drop_last=True, task_encoder=ByWidth()),
    "one size": val(path, split_part="train", batch_size=4, task_encoder=ByShape()),
    "train": epoch(path, batch_size=4, task_encoder=ByShape()),
}
"""
    theirs, ours = run_both(program, photos.parent, path=photos)
    for name in ("own sizes", "whole ones", "one size"):
        assert in_order(ours[name]) == in_order(theirs[name])
    # In training other photos meet, but as many batches of each size and shape.
    shapes = [
        collections.Counter((len(batch["__key__"]), batch["image"].split()[2]) for batch in found["train"])
        for found in (ours, theirs)
    ]
    assert shapes[0] == shapes[1]
    keys = [in_order([key for batch in found["train"] for key in batch["__key__"]]) for found in (ours, theirs)]
    assert keys[0] == keys[1] == [f"{n:03d}" for n in range(SIZE)]
