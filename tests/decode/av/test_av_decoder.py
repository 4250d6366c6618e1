"""`AVDecoder`: what a medium holds, and the life of what is open."""

import gc
import io
import pickle
import weakref
from typing import Any

import cloudpickle
import pytest
import torch

from bridge_data.decode.av import AVDecoder
from bridge_data.errors import ConfigError, SampleError
from tests.decode.av import media
from tests.decode.av.media import decoder_of, sound, video
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
