"""`AVDecoder` and Energon's names: what a medium holds, what is opened and what is not, the life of what is open, and
that nothing is left behind."""

import gc
import io
import math
import pickle
import random
import struct
import weakref
from pathlib import Path
from typing import Any

import cloudpickle
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
from bridge_data.decode.av.container import open_container
from bridge_data.errors import ConfigError, SampleError
from tests.decode.av import media
from tests.decode.av.media import decoder_of, sound, video, write
from tests.later import av


def test_metadata_of_a_video_with_sound() -> None:
    metadata = decoder_of("mp4 with audio, late").get_metadata(get_audio_num_samples=True)
    assert (metadata.video_num_frames, metadata.video_fps) == (50, 25.0)
    assert (metadata.video_width, metadata.video_height) == (media.WIDTH, media.HEIGHT)
    assert (metadata.audio_channels, metadata.audio_sample_rate) == (2, 44_100)
    assert metadata.video_duration == pytest.approx(2)
    assert metadata.audio_duration == pytest.approx(60_000 / 44_100, abs=0.001)
    assert metadata.audio_num_samples >= 60_000


def test_durations_and_rates() -> None:
    with decoder_of("mkv with audio") as decoder:
        wanted = {"get_video_duration": False, "get_video_frame_count": False, "get_video_frame_size": False}
        metadata = decoder.get_metadata(get_audio=False, **wanted)
        assert {name for name in metadata.__slots__ if getattr(metadata, name) is not None} == {"video_fps"}
        assert decoder.get_video_duration() == (pytest.approx(2), None)
        assert decoder.get_video_duration(get_frame_count=True) == (pytest.approx(2), 50)
        assert decoder.get_audio_duration() == pytest.approx(60_000 / 44_100, abs=0.03)
        assert (decoder.get_video_fps(), decoder.get_audio_samples_per_second()) == (25.0, 44_100)
        assert decoder.has_video_stream() and decoder.has_audio_stream()
        both = decoder.get_frames(video_decode_audio=True)
        assert (decoder.get_frames().audio_clips, both.audio_clips[0].shape[0]) == ([], 2)
        assert torch.equal(both.audio_clips[0], decoder.get_video_with_audio().audio_clips[0])
    silent, heard = decoder_of("mp4 with B-frames"), AVDecoder(sound("wav")[0])
    assert silent.get_frames(video_decode_audio=True).audio_clips == heard.get_frames().video_clips == []
    assert (heard.has_video_stream(), heard.get_video_duration()) == (False, (None, None))
    for take, told in (
        (heard.get_video_fps, "no video"),
        (silent.get_audio_samples_per_second, "no audio"),
        (silent.get_video_with_audio, "audio was asked for, but the medium has only video"),
        (heard.get_video, "video was asked for, but the medium has only audio"),
    ):
        with pytest.raises(SampleError, match=told):
            take()


def test_the_cover_of_music_is_no_video() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp3") as output:
        cover = output.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 48, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        stream = output.add_stream("libmp3lame", rate=44_100, layout="stereo")
        output.mux(cover.encode(av.VideoFrame.from_ndarray(media.picture(1), format="rgb24")))
        output.mux(cover.encode(None))
        for frame in [*media.sounds(stream, 9_000, 44_100), None]:
            output.mux(stream.encode(frame))
    with av.open(io.BytesIO(file.getvalue())) as container:
        assert {stream.type for stream in container.streams} == {"audio", "video"}
    with AVDecoder(file.getvalue()) as decoder:
        assert (decoder.has_video_stream(), decoder.get_frames().video_clips) == (False, [])


@pytest.mark.parametrize(
    ("take", "told"),
    [
        (lambda made: made.get_video_clips([(0, 1)], "ms"), 'video_unit=\'ms\': expected "frames" or "seconds"'),
        (lambda made: made.get_audio_clips([(0, 1)], "frames"), 'audio_unit=\'frames\': expected "samples" or "seco'),
        (lambda made: made.get_video_clips([(0, 1)], video_stride=0), "video_stride=0"),
        (lambda made: made.get_video_clips([(0, 1)], video_out_frame_size=(0, 5)), "video_out_frame_size="),
        (lambda made: made.get_video_clips([(0, 1)], video_out_frame_size=(5,)), "video_out_frame_size="),
        (lambda made: made.get_video_clips([(0, 1)], video_out_frame_size=(2.5, 5)), "video_out_frame_size="),
        (lambda made: AVDecoder(io.StringIO("text")), "opened as text"),
    ],
)
def test_wrong_settings(take: Any, told: str) -> None:
    with decoder_of("mkv with audio") as decoder, pytest.raises(ConfigError, match=told):
        take(decoder)


def test_nothing_is_read_before_it_is_asked_for() -> None:
    class Unread(io.BytesIO):
        def read(self, *args: Any) -> bytes:
            raise AssertionError("it was read")

    assert repr(AVDecoder(Unread())).startswith("AVDecoder(stream=")


def test_a_file_may_be_given(tmp_path: Any) -> None:
    (tmp_path / "a.mp4").write_bytes(video("mp4 with B-frames")[0])
    with (tmp_path / "a.mp4").open("rb") as file:
        file.seek(100)
        with AVDecoder(file) as decoder:
            assert media.numbers(decoder.get_video().video_clips[0].numpy()) == list(range(50))
        assert not file.closed


def test_a_closed_decoder_opens_again() -> None:
    decoder = decoder_of("mp4 with B-frames")
    first = decoder.get_video_clips([(3, 5)], "frames")[0][0]
    container = weakref.ref(decoder._open())
    decoder.close()
    gc.collect()
    assert container() is None
    assert torch.equal(decoder.get_video_clips([(3, 5)], "frames")[0][0], first)
    decoder.close()
    decoder.close()


def test_a_decoder_that_is_dropped_is_released_at_once() -> None:
    decoder = decoder_of("mp4 with B-frames")
    decoder.get_video()
    medium = decoder._open()
    container = medium.container
    gc.disable()
    try:
        del decoder
        with pytest.raises(AssertionError, match="not open"):
            container.seek(0)
    finally:
        gc.enable()


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_decoders_travel_closed(pickler: Any) -> None:
    decoder = decoder_of("mkv with audio")
    before = decoder.get_video_with_audio()
    again = pickler.loads(pickler.dumps(decoder))
    after = again.get_video_with_audio()
    assert torch.equal(before.video_clips[0], after.video_clips[0])
    assert torch.equal(before.audio_clips[0], after.audio_clips[0])
    assert again.suppress_warnings


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


@pytest.mark.parametrize(
    ("clip", "unit", "message"),
    [
        (
            (50, 60),
            "frames",
            r"video clip \(50, 60\) in frames begins after the video, which has 50 frames and ends at 2",
        ),
        ((2.0, 3.0), "seconds", r"clip \(2\.0, 3\.0\) in seconds begins after the video"),
        ((-1, 3), "frames", r"clip \(-1, 3\) in frames begins before 0"),
        ((5, 4), "frames", r"clip \(5, 4\) in frames is empty: its end comes before its start"),
        ((1, math.nan), "seconds", "expected numbers"),
        ((0.5, 3), "frames", "frames are whole numbers; give fractions in seconds"),
        (3, "frames", r"expected a pair of numbers, \(start, end\)"),
        (("a", 3), "frames", "expected a pair of numbers"),
    ],
)
def test_clips_that_are_none(clip: Any, unit: Any, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        decoder_of("mp4 with B-frames").get_video_clips([(0, 1), clip], unit)


@pytest.mark.parametrize(
    ("clip", "unit", "message"),
    [
        ((200_000, 200_001), "samples", r"audio clip \(200000, 200001\) in samples holds no sample .* 200000 of them"),
        ((99, 100), "seconds", r"clip \(99, 100\) in seconds holds no sample of the audio"),
        ((-0.5, 1), "seconds", "begins before 0"),
        ((7, 7), "samples", r"clip \(7, 7\) in samples is empty: nothing is in it"),
        ((2, 1), "seconds", "is empty: its end comes before its start"),
    ],
)
def test_audio_clips_that_are_none(clip: Any, unit: Any, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        AVDecoder(sound("wav")[0]).get_audio_clips([clip], unit)


def test_what_is_no_medium() -> None:
    for content in (b"", b"no medium", b"x" * 5_000, video("mp4 with B-frames")[0][:2_000]):
        with pytest.raises(SampleError, match=r"the medium cannot be read: .*damaged"):
            AVDecoder(content).get_video()


def test_a_playlist_opens_no_other_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.ts").write_bytes(video("mpeg transport stream")[0])
    playlist = b"ffconcat version 1.0\nfile secret.ts\n"
    with av.open(io.BytesIO(playlist)) as container:
        assert container.streams.video
    for decode in (
        lambda: AVDecoder(playlist).get_video(),
        lambda: AVWebdatasetDecoder(False, "pyav").decode(playlist),
    ):
        with pytest.raises(SampleError, match="the medium cannot be read"):
            decode()


def test_without_pyav_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    decoder = AVDecoder(b"data")  # a lazy one needs it only when it is used
    with pytest.raises(ConfigError, match=r"the package av, .*pip install av"):
        decoder.get_video()


def test_tags_that_are_not_utf8_do_not_matter() -> None:
    """A WAV file with a title in Latin-1; releases of PyAV differ in what they make of it."""
    sound = bytes(16_000)
    form = struct.pack("<HHIIHH", 1, 1, 8_000, 16_000, 2, 16)
    title = b"INFOINAM" + struct.pack("<I", 4) + b"caf\xe9"
    chunks = [(b"fmt ", form), (b"LIST", title), (b"data", sound)]
    body = b"WAVE" + b"".join(name + struct.pack("<I", len(data)) + data for name, data in chunks)
    with open_container(io.BytesIO(b"RIFF" + struct.pack("<I", len(body)) + body)) as container:
        assert [stream.type for stream in container.streams] == ["audio"]


def test_a_stream_that_only_begins_in_a_damaged_packet_is_an_error_or_left_out() -> None:
    """Of an FLV file with video alone, a late packet says that it is sound; FFmpeg then finds another stream. PyAV
    before 19 fails there, later ones leave the packet out."""
    data = bytearray(write("flv", video="libx264", times=range(400)))
    offset, tags = 9 + 4, []
    while offset + 11 <= len(data):
        tags.append(offset)
        offset += 11 + int.from_bytes(data[offset + 1 : offset + 4], "big") + 4
    data[tags[-2]] = 8
    try:
        (frames,) = AVDecoder(bytes(data)).get_video().video_clips
    except SampleError as error:
        assert "the medium has a packet of an unknown stream" in str(error)
    else:
        assert len(frames) == 399


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def take_clips(data: bytes, count: int, rng: random.Random) -> None:
    """Clips as training takes them: a decoder each, half of them closed, half of them only dropped."""
    for number in range(count):
        first = rng.randrange(40)
        decoder = AVDecoder(io.BytesIO(data))
        decoder.get_video_clips([(first, first + 7)], "frames", (56, 56))
        if number % 5 == 0:
            decoder.get_audio_clips([(0.2, 0.7)])
        if number % 2:
            decoder.close()


@pytest.mark.parametrize(
    ("count", "most"),
    [
        pytest.param(25, 8 << 20, marks=pytest.mark.seconds),
        pytest.param(500, 4 << 20, marks=pytest.mark.slow),
    ],
)
def test_memory_stays_flat_over_many_clips(count: int, most: int) -> None:
    media, rng = [video(name)[0] for name in ("mp4 with audio, late", "mkv with audio")], random.Random(0)
    sizes = []
    for number in range(12):
        take_clips(media[number % 2], count, rng)
        sizes.append(resident_bytes())
    assert max(sizes[7:]) - sizes[4 if count < 100 else 1] < most, sizes
