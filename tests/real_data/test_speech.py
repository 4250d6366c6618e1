"""Speech of pocketsphinx's tests, from the package to batches of waveforms with transcripts."""

import functools
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bridge_data import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    LaneDataset,
    Sample,
    SampleDecoder,
    basic_sample_keys,
    cooker,
    edataclass,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from bridge_data.task.stores import PrimaryFileStore
from tests.real_data.loading import WORKERS, read_all, read_interrupted
from tests.real_data.speech import PACKAGE, RATE, find_speech, prepare_speech

pytestmark = pytest.mark.data


@edataclass
class Utterance(Sample):
    """A waveform, int16 (samples,), with its transcript, and its duration by the metadata stored beside the data."""

    audio: torch.Tensor
    num_samples: int
    rate: int
    text: str
    duration_s: float


@stateless
@cooker(need_primary=True)
def cook_speech(sample: CrudeSample, primary: PrimaryFileStore) -> Utterance:
    """The whole recording, which has one channel."""
    with sample["wav"] as recording:
        rate = recording.get_audio_samples_per_second()
        (audio,) = recording.get_audio().audio_clips
    return Utterance(
        **basic_sample_keys(sample),
        audio=audio[0],
        num_samples=audio.shape[1],
        rate=rate,
        text=sample["txt"],
        duration_s=primary.get_media_metadata(".wav").audio_duration,
    )


class Speech(DefaultTaskEncoder):
    cookers = (Cooker(cook_speech),)
    decoder = SampleDecoder(av_decode="AVDecoder")


@pytest.fixture(scope="module")
def speech(package: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_speech(package(PACKAGE), tmp_path_factory.mktemp("speech"))


def train(speech: Path) -> LaneDataset:
    return get_train_dataset(
        speech,
        worker_config=WORKERS,
        batch_size=2,
        shuffle_buffer_size=10,
        max_samples_per_sequence=2,
        repeat=False,
        task_encoder=Speech(),
    )


def waveform(file: Path) -> torch.Tensor:
    """The samples of a file, as Python itself reads them."""
    with wave.open(str(file)) as recording:
        assert (recording.getframerate(), recording.getnchannels(), recording.getsampwidth()) == (RATE, 1, 2)
        return torch.from_numpy(np.frombuffer(recording.readframes(recording.getnframes()), dtype="<i2").copy())


def test_every_recording_arrives_with_its_waveform_and_transcript(speech: Path, package: Callable[[str], Path]) -> None:
    found = find_speech(package(PACKAGE))
    assert len(found) == 10
    dataset = get_val_dataset(speech, split_part="train", worker_config=WORKERS, batch_size=4, task_encoder=Speech())
    got = {}
    for batch in read_all(dataset):
        assert batch.audio.dtype == torch.int16
        assert batch.audio.shape == (len(batch.__key__), max(batch.num_samples))
        assert batch.rate == [RATE] * len(batch.__key__)
        for number, key in enumerate(batch.__key__):
            size = batch.num_samples[number]
            assert not batch.audio[number, size:].any()
            assert batch.duration_s[number] == pytest.approx(size / RATE)
            got[key.partition("/")[2]] = (batch.audio[number, :size], batch.text[number])
    assert got.keys() == {file.stem for file in found}
    for file, text in found.items():
        audio, transcript = got[file.stem]
        assert transcript == text
        assert torch.equal(audio, waveform(file))
    assert got["001"][1] == "ten of clubs"
    assert got["sense_and_sensibility_01_austen_64kb-0880"][1] == "he was not an ill disposed young man"


def test_an_interrupted_epoch_of_speech_is_the_same(speech: Path) -> None:
    make = functools.partial(train, speech)
    whole = read_all(make())
    assert len({key for batch in whole for key in batch.__key__}) == sum(len(batch.__key__) for batch in whole) == 10
    resumed = read_interrupted(make, after=2)
    assert [batch.text for batch in resumed] == [batch.text for batch in whole]
    assert all(torch.equal(one.audio, other.audio) for one, other in zip(resumed, whole, strict=True))
