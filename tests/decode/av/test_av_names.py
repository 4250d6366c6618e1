"""Energon's names: media by the extension of a part, clips and frames at equal distances."""

import numpy as np
import pytest
import torch

from bridge_data.decode.av import (
    AV_EXTENSIONS,
    AVData,
    AVDecoder,
    AVWebdatasetDecoder,
    get_clips_uniform,
    get_single_frames_uniform,
)
from bridge_data.errors import ConfigError, SampleError
from tests.decode.av import media
from tests.decode.av.media import decoder_of, sound, video


def test_extensions_decide() -> None:
    decode = AVWebdatasetDecoder(video_decode_audio=False)
    for name in (".mp4", "clip.MOV", "flac", "a.b.webm"):
        assert isinstance(decode(name, b"data"), AVDecoder)
    for name in ("txt", "mp4.txt", "amp4", ""):
        assert decode(name, b"data") is None
    assert {"mp4", "avi", "mov", "webm", "mkv", "flac", "mp3", "wav", "flv"} <= AV_EXTENSIONS  # Energon's


def test_what_av_decode_gives() -> None:
    data = video("mkv with audio")[0]
    silent = AVWebdatasetDecoder(video_decode_audio=False, av_decode="torch")("mkv", data)
    assert isinstance(silent, AVData) and (len(silent.video_clips), len(silent.audio_clips)) == (1, 0)
    assert len(AVWebdatasetDecoder(video_decode_audio=True, av_decode="torch")("mkv", data).audio_clips) == 1
    assert len(AVWebdatasetDecoder(False, "torch")("wav", sound("wav")[0]).audio_clips) == 1
    with AVWebdatasetDecoder(False, "pyav")("mkv", data) as container:
        codecs = [stream.codec_context for stream in container.streams]
        assert [(codec.thread_count, codec.thread_type.name) for codec in codecs] == [(1, "NONE")] * 2


def test_clips_begin_with_the_medium_and_end_with_it() -> None:
    with decoder_of("mp4 with B-frames") as decoder:
        data = get_clips_uniform(av_decoder=decoder, num_clips=3, clip_duration_seconds=0.5)
    assert [media.numbers(clip.numpy()) for clip in data.video_clips] == [
        list(range(13)),
        list(range(18, 32)),  # from 0.75 to 1.25 s, where frames 18 and 31 are on screen
        list(range(37, 50)),
    ]
    assert data.audio_clips == []


def test_with_audio_both_have_the_same_places() -> None:
    with decoder_of("mkv with audio") as decoder:
        data = get_clips_uniform(av_decoder=decoder, num_clips=4, clip_duration_seconds=0.25, request_audio=True)
    assert isinstance(data, AVData)
    assert len(data.video_clips) == len(data.audio_clips) == 4
    for shown, heard in zip(data.video_timestamps, data.audio_timestamps, strict=True):
        assert shown[0] == pytest.approx(heard[0], abs=0.04) and shown[1] == pytest.approx(heard[1], abs=0.05)
    assert {clip.shape for clip in data.audio_clips} == {(2, round(0.25 * 44_100))}
    assert data.audio_timestamps[-1][1] == pytest.approx(decoder.get_audio_duration(), abs=0.001)


def test_of_sound_alone_and_of_audio_alone_there_are_audio_clips() -> None:
    for decoder, with_video in ((AVDecoder(sound("wav")[0]), None), (decoder_of("mkv with audio"), False)):
        data = get_clips_uniform(decoder, 0.5, 2, request_video=with_video, request_audio=True)
        assert (data.video_clips, [clip.shape for clip in data.audio_clips]) == ([], [(2, 22_050)] * 2)


@pytest.mark.parametrize("name", ["mp4 with B-frames", "mkv with audio", "avi with B-frames", "mp4, variable rate"])
def test_single_frames_reach_from_the_first_to_the_last(name: str) -> None:
    with decoder_of(name) as decoder:
        count = decoder.get_metadata().video_num_frames
        frames, times = get_single_frames_uniform(decoder, 5, return_timestamps=True)
        assert torch.equal(get_single_frames_uniform(decoder, num_frames=5), frames)
        shown = media.numbers(frames.numpy())
        assert (shown[0], shown[-1], len(shown)) == (0, count - 1, 5)
        assert shown == sorted(shown) and times == sorted(times)
        if "rate" not in name:
            np.testing.assert_allclose(np.diff(shown), (count - 1) / 4, atol=1)
        (first,) = media.numbers(decoder.get_single_frames_uniform(1).numpy())
        assert first == 0


def test_a_duration_of_zero_gives_single_frames_and_more_than_there_are_come_again() -> None:
    with decoder_of("mp4 with B-frames") as decoder:
        clips = get_clips_uniform(decoder, 0, 6).video_clips
        assert torch.equal(torch.cat(clips), decoder.get_single_frames_uniform(6))
        assert sorted(set(media.numbers(decoder.get_single_frames_uniform(120).numpy()))) == list(range(50))
        assert decoder.get_single_frames_uniform(video_out_frame_size=(32, 24)).shape == (16, 3, 24, 32)


@pytest.mark.parametrize(
    ("take", "error", "told"),
    [
        (
            lambda made: get_clips_uniform(made, 3, 2),
            SampleError,
            "a clip of 3 s was asked for, but .* ends at 2 s",
        ),
        (lambda made: get_single_frames_uniform(made, 0), ConfigError, "0 clips or frames: expected 1 or more"),
        (lambda made: get_clips_uniform(made, -1, 2), ConfigError, "clip_duration_seconds=-1"),
        (
            lambda made: get_clips_uniform(made, 1, 2, request_video=False),
            ConfigError,
            "at least one of request_video and request_audio",
        ),
        (
            lambda made: get_single_frames_uniform(AVDecoder(sound("wav")[0]), 3),
            SampleError,
            "the medium has only audio",
        ),
    ],
)
def test_wrong_uses(take, error, told) -> None:
    with decoder_of("mp4 with B-frames") as decoder, pytest.raises(error, match=told):
        take(decoder)
