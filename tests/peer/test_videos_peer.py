"""Clips of video and audio are decoded alike here and in Energon, where that has PyAV."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.decode.av.media import write
from tests.peer.running import MARKS, PEER, run_both
from tests.prepared import write_dataset


def has_av() -> bool:
    return bool(PEER) and subprocess.run([PEER, "-c", "import av"], capture_output=True, check=False).returncode == 0


pytestmark = [*MARKS, pytest.mark.skipif(not has_av(), reason="the Python of BRIDGE_DATA_PEER has no PyAV")]

MEDIA: dict[str, dict[str, Any]] = {
    "both.mp4": {"container": "mp4", "video": "libx264", "audio": "aac"},
    "silent.mp4": {"container": "mp4", "video": "libx264"},
    "sound.flac": {"container": "flac", "audio": "flac"},
    "sound.wav": {"container": "wav", "audio": "pcm_s16le"},
}


def test_clips(tmp_path: Path) -> None:
    for name, settings in MEDIA.items():
        (tmp_path / name).write_bytes(write(**settings))
    program = """
import pathlib
from megatron.energon.av import get_clips_uniform, get_single_frames_uniform

def told(data):
    times = [[round(second, 2) for second in pair] for pair in (data.video_timestamps or [])]
    heard = [[round(second, 2) for second in pair] for pair in (data.audio_timestamps or [])]
    return [describe(data.video_clips or []), describe(data.audio_clips or []), times, heard]

contents = {name: (pathlib.Path(given["place"]) / name).read_bytes() for name in given["names"]}
def opened(name):
    return SampleDecoder().decode(name, contents[name])

video, both = ["both.mp4", "silent.mp4"], ["both.mp4", "sound.flac", "sound.wav"]
found = {
    "seconds": [told(opened(name).get_clips(video_clip_ranges=[(0.3, 0.7), (1, 1)], video_unit="seconds"))
                for name in video],
    "frames": [told(opened(name).get_clips(video_clip_ranges=[(0, 5), (31, 40)], video_unit="frames"))
               for name in video],
    "small": told(opened("both.mp4").get_clips(
        video_clip_ranges=[(0, 3)], video_unit="frames", video_out_frame_size=(32, 24))),
    "sounds": [told(opened(name).get_clips(audio_clip_ranges=[(0.25, 0.5)], audio_unit="seconds")) for name in both],
    "all": [told(opened(name).get_video()) for name in video],
    # Not when it ends: AAC has padding, which ours counts as it is in the clip, and 7.4.1 does not.
    "sound": [told(opened(name).get_audio())[1] for name in both],
    "uniform": [told(get_clips_uniform(av_decoder=opened(name), num_clips=3, clip_duration_seconds=0.2,
                                        request_video=True, request_audio=name == "both.mp4"))
                for name in video],
    "single": [describe(get_single_frames_uniform(av_decoder=opened(name), num_frames=5)) for name in video],
    "metadata": [describe(opened(name).get_metadata()) for name in contents],
}
"""
    theirs, ours = run_both(program, tmp_path, place=tmp_path, names=list(MEDIA))
    assert ours == theirs


def test_samples_of_video(tmp_path: Path) -> None:
    settings = {"sample_type": {"__module__": "megatron.energon", "__class__": "VidQASample"}}
    settings |= {"field_map": {"video": "mp4", "context": "txt", "answers": "json"}}
    clip = write(**MEDIA["both.mp4"])
    samples = ({"__key__": f"{n}", "mp4": clip, "txt": f"what {n}?", "json": ["yes", "no"][: n % 3]} for n in range(4))
    path = write_dataset(tmp_path / "clips", samples, definition=settings)
    program = """
class Frames(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample):
        sample.video = sample.video.get_clips(video_clip_ranges=[(3, 9)], video_unit="frames").video_clips
        return sample

class Whole(DefaultTaskEncoder):
    decoder = SampleDecoder(av_decode="torch", video_decode_audio=True)

    @stateless
    def encode_sample(self, sample):
        sample.video = [sample.video.video_clips, sample.video.video_timestamps, sample.video.audio_clips]
        return sample

found = [val(given["path"], split_part="train", task_encoder=encoder) for encoder in (Frames(), Whole())]
"""
    theirs, ours = run_both(program, tmp_path, path=path)
    assert ours == theirs
    assert [len(samples) for samples in ours] == [4, 4]
