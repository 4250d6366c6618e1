import subprocess
import sys
from pathlib import Path

import numpy
import PIL.Image
import pytest
import torch

from bridge_data import later


def test_what_is_imported_later_is_what_the_modules_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert later.torch.Tensor is torch.Tensor and later.torch.distributed is torch.distributed
    assert later.numpy.int64 is numpy.int64 and later.Image.Image is PIL.Image.Image
    with pytest.raises(AttributeError, match="no attribute 'no_such_thing'"):
        _ = later.torch.no_such_thing
    monkeypatch.setattr(torch, "stack", len)
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 17)
    assert later.torch.stack is len and later.Image.MAX_IMAGE_PIXELS == 17, "what is patched is seen"
    assert later.is_tensor(torch.nn.Parameter(torch.ones(1))) and not later.is_tensor([torch.ones(1)])


@pytest.mark.processes
@pytest.mark.parametrize(
    "code",
    [
        "import bridge_data; assert bridge_data.errors.ConfigError is bridge_data.ConfigError\n"
        "assert not hasattr(bridge_data, 'nothing_of_that_name')",
        "import sys; from bridge_data.samples import TextSample\n"
        "from bridge_data.samples.collation import generic_batch\n"
        "batch = generic_batch([TextSample(__key__='a', __restore_key__=(), text='b')] * 2)\n"
        "assert batch.text == ['b', 'b'] and 'torch' not in sys.modules",
        "import sys, typing; from bridge_data.samples import ImageSample; assert 'torch' not in sys.modules\n"
        "hint = typing.get_type_hints(ImageSample)['image']; import torch; assert hint is torch.Tensor",
    ],
    ids=["modules are attributes", "texts need no torch", "annotations bring torch when they are asked for"],
)
def test_a_new_process_imports_what_it_needs(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
