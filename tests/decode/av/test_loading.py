"""Videos of a data set, through workers to batches."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_loader,
    get_train_dataset,
)
from bridge_data.decode.av import AVData, AVDecoder
from tests.decode.av import media
from tests.prepared import CRUDE, write_dataset


@edataclass
class Clip(Sample):
    video: AVDecoder
    frames: torch.Tensor
    data: AVData


def cook(sample: dict[str, Any]) -> Clip:
    decoder = sample["mp4"]
    return Clip(
        **basic_sample_keys(sample),
        video=decoder,
        frames=decoder.get_single_frames_uniform(4, video_out_frame_size=(32, 24)),
        data=decoder.get_clips(video_clip_ranges=[(2, 5)], video_unit="frames"),
    )


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(cook),)


@pytest.mark.processes
def test_clips_and_decoders_come_through_workers(tmp_path: Path) -> None:
    videos = [media.write("mp4", video="libx264", times=range(10 + number)) for number in range(4)]
    samples = [{"__key__": f"{number}", "mp4": content} for number, content in enumerate(videos)]
    write_dataset(tmp_path / "videos", samples, definition=CRUDE)
    config = WorkerConfig(rank=0, world_size=1, num_workers=1, num_lanes=1)
    settings = {"batch_size": 2, "shuffle_buffer_size": 4, "max_samples_per_sequence": 4, "repeat": False}
    data = get_train_dataset(tmp_path / "videos", worker_config=config, task_encoder=Encoder(), **settings)
    seen = set()
    with get_loader(data) as loader:
        loader.wait_for_workers()
        for batch in loader:
            assert (batch.frames.dtype, batch.frames.shape) == (torch.uint8, (2, 4, 3, 24, 32))
            for decoder, frames, clips in zip(batch.video, batch.frames, batch.data.video_clips, strict=True):
                count = decoder.get_metadata().video_num_frames
                seen.add(count)
                shown = media.numbers(frames.numpy())
                assert (shown[0], shown[-1]) == (0, count - 1)
                assert media.numbers(clips[0].numpy()) == [2, 3, 4, 5]
    assert seen == {10, 11, 12, 13}
    assert pickle.loads(pickle.dumps(data)).plan.num_samples == 4
