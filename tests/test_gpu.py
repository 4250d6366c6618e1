"""What only a CUDA device can show: `make test-gpu`. Without one, these tests skip, and say so."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import DefaultTaskEncoder, WorkerConfig, get_loader
from bridge_data.encoders import FamilyConfig, FamilyTaskEncoder
from bridge_data.encoders.pixel_table import PIXELS
from bridge_data.samples.differences import first_difference
from tests.encoders.parts import CASES, draw_talk, encode, make_tokenizer
from tests.loader.ends_job import CASES as ENDS
from tests.loader.ends_job import dataset_of
from tests.prepared import train_dataset, write_texts
from tests.ranks import run_job

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")


def batch_of(name: str, pixels: Any) -> Any:
    """A batch of six chats about images, of a family of models."""
    family = CASES[name].make()
    tokenizer = make_tokenizer(begin=CASES[name].begin, template=family.chat_template)
    encoder = FamilyTaskEncoder(tokenizer, family, FamilyConfig(pixels=pixels), seq_length=1 << 14)
    return encoder.batch([encode(encoder, draw_talk(seed).sample) for seed in range(6)])


def pixels_of(media: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: media[name].cpu() for name in PIXELS if name in media}


@pytest.mark.parametrize("name", CASES)
def test_bytes_become_the_values_of_the_cpu_on_the_stream_that_they_are_copied_on(name: str) -> None:
    expected = batch_of(name, "float32")
    raw = batch_of(name, "uint8").pin_memory()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        moved = raw.to(DEVICE, non_blocking=True)
    stream.synchronize()
    assert all(tensor.is_cuda for tensor in moved.media.values())
    assert first_difference(pixels_of(expected.media), pixels_of(moved.media)) is None
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", CASES)
def test_the_look_up_takes_little_more_memory_than_its_result(name: str) -> None:
    raw = batch_of(name, "uint8")
    raw.to(DEVICE)  # what is allocated once
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    moved = raw.to(DEVICE)
    torch.cuda.synchronize()
    result = sum(tensor.nbytes for tensor in moved.media.values() if tensor.is_cuda)
    assert torch.cuda.max_memory_allocated() - before < 2.2 * result + (8 << 20)


class Pixels(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Large tensors, so that a copy takes its time."""

    def encode_sample(self, sample: Any) -> Any:
        return {"pixels": torch.full((512, 1024), float(sample.text)), "__key__": sample.__key__}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_copies_that_overlap_with_the_next_batches_have_the_values_of_the_loader(
    tmp_path: Path, num_workers: int
) -> None:
    path = write_texts(tmp_path / "texts", 64)
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=2)
    dataset = train_dataset(path, worker_config=config, batch_size=8, task_encoder=Pixels())
    with get_loader(dataset) as loader:
        expected = [batch["pixels"].clone() for batch in itertools.islice(loader, 40)]
    stream, moved = torch.cuda.Stream(), []  # type: ignore[no-untyped-call]
    with get_loader(dataset, pin_memory=True) as loader:
        for batch in itertools.islice(loader, 40):
            assert batch["pixels"].is_pinned()
            with torch.cuda.stream(stream):
                moved.append(batch["pixels"].to(DEVICE, non_blocking=True))
            del batch  # its memory may be filled again only once it was copied
    stream.synchronize()
    assert [torch.equal(one.cpu(), other) for one, other in zip(moved, expected, strict=True)] == [True] * 40


def test_ranks_end_together_over_nccl(tmp_path: Path) -> None:
    """On each device a rank."""
    world_size = min(3, torch.cuda.device_count())
    data = write_texts(tmp_path / "data", 37, per_shard=10)
    status, output = run_job("tests.loader.ends_job", str(tmp_path), str(data), "nccl", num_ranks=world_size)
    assert status == 0, output
    job = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(world_size)]
    for case in set(ENDS) - {"no mask", "wrong empty_batch", "doubled in hiding"}:
        alone = [list(batch.__key__) for batch in get_loader(dataset_of(case, str(data), 0, 1))]
        for steps in zip(*(of_rank[case]["passes"] for of_rank in job), strict=True):
            assert len({len(of_rank) for of_rank in steps}) == 1
            assert [keys for step in zip(*steps, strict=True) for keys, _, _ in step if keys] == alone
