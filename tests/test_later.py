import subprocess
import sys
import typing
from pathlib import Path

import numpy
import PIL.Image
import pytest
import torch

import bridge_data
from bridge_data import later
from bridge_data.samples import SimilarityInterleavedSample


def test_they_are_what_the_modules_are() -> None:
    assert later.torch.Tensor is torch.Tensor
    assert later.torch.Tensor is torch.Tensor
    assert later.torch.distributed is torch.distributed
    assert later.numpy.int64 is numpy.int64
    assert later.Image.Image is PIL.Image.Image
    with pytest.raises(AttributeError, match="no attribute 'no_such_thing'"):
        _ = later.torch.no_such_thing


def test_what_is_patched_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = later.torch.stack
    monkeypatch.setattr(torch, "stack", len)
    assert later.torch.stack is len is not before
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 17)
    assert later.Image.MAX_IMAGE_PIXELS == 17


@pytest.mark.processes
def test_what_is_no_tensor_is_known_without_torch() -> None:
    assert later.is_tensor(torch.ones(1)) and later.is_tensor(torch.nn.Parameter(torch.ones(1)))
    assert not later.is_tensor([torch.ones(1)])
    code = (
        "import sys\nfrom bridge_data.samples.collation import generic_batch\n"
        "from bridge_data.samples import TextSample\n"
        "batch = generic_batch([TextSample(__key__='a', __restore_key__=(), text='b')] * 2)\n"
        "assert batch.text == ['b', 'b'] and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


def test_annotations_are_the_real_classes() -> None:
    hints = typing.get_type_hints(SimilarityInterleavedSample)
    assert hints["images"] == list[torch.Tensor]
    assert hints["similarity_matrix"] == torch.Tensor | None


@pytest.mark.processes
def test_annotations_bring_torch_when_they_are_asked_for() -> None:
    code = (
        "import sys, typing; from bridge_data.samples import ImageSample; assert 'torch' not in sys.modules\n"
        "hint = typing.get_type_hints(ImageSample)['image']; import torch; assert hint is torch.Tensor"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


def test_modules_are_found_as_attributes() -> None:
    code = "import bridge_data; assert bridge_data.errors.ConfigError is bridge_data.ConfigError"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
    assert not hasattr(bridge_data, "nothing_of_that_name")
