"""Real data prepared here is the same in Megatron-Energon: every caption, text and pixel."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.peer.running import MARKS, in_order, run_both
from tests.real_data import pages, stamps

pytestmark = [pytest.mark.data, *MARKS]

READ = """
from megatron.energon import InterleavedSample

@stateless
def cook(sample):
    items = sample["json"]["sequence"]
    sequence = [item["text"] if "text" in item else sample[item["image"]] for item in items]
    return InterleavedSample(**basic_sample_keys(sample), sequence=sequence)

class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(cook)]

found = val(given["path"], split_part="train", task_encoder=Encoder())
"""


@pytest.mark.parametrize(
    ("name", "prepare", "size"),
    [(stamps.PACKAGE, stamps.prepare_stamps, 785), (pages.PACKAGE, pages.prepare_pages, 320)],
    ids=["captioning", "interleaved"],
)
def test_both_read_the_same_samples(
    name: str, prepare: Callable[[Path, Path], Path], size: int, package: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = prepare(package(name), tmp_path)
    theirs, ours = run_both(READ, tmp_path, path=folder)
    assert len(ours) == size
    assert in_order(theirs) == in_order(ours)
