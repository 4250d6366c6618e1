"""Frames and samples of sound: any range, of many containers, equals what decoding everything gives."""

import io
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.decode.av import AVDecoder
from bridge_data.errors import SampleError
from bridge_data.limits import Limits
from tests.decode.av import media
from tests.decode.av.media import IRREGULAR, SOUNDS, VIDEOS, decoder_of, sound, video
from tests.later import av


@pytest.mark.parametrize("name", VIDEOS)
def test_every_range_of_frames_is_what_decoding_everything_gives(name: str) -> None:
    _, frames = video(name)
    assert media.numbers(frames) == list(range(len(frames)))
    ends = st.integers(0, len(frames) - 1)
    clips = st.lists(st.tuples(ends, ends).map(lambda ends: tuple(sorted(ends))), min_size=1, max_size=4)
    with decoder_of(name) as decoder:
        assert decoder.get_metadata().video_num_frames == len(frames)

        @settings(max_examples=12, deadline=None)
        @given(clips=clips, stride=st.integers(1, 7))
        def check(clips: list[tuple[int, int]], stride: int) -> None:
            got, times = decoder.get_video_clips(clips, "frames", video_stride=stride)
            assert len(got) == len(times) == len(clips)
            for clip, (first, last) in zip(got, clips, strict=True):
                assert (clip.dtype, clip.shape[1:]) == (torch.uint8, (3, media.HEIGHT, media.WIDTH))
                np.testing.assert_array_equal(clip.numpy(), frames[first : last + 1 : stride])

        check()
        np.testing.assert_array_equal(decoder.get_video().video_clips[0].numpy(), frames)


@pytest.mark.parametrize("name", ["mp4, variable rate", "mkv, variable rate"])
def test_seconds_are_the_frames_on_screen_then(name: str) -> None:
    begins = [time / media.RATE for time in IRREGULAR]
    ends = [*begins[1:], begins[-1] + 1 / media.RATE]

    @settings(max_examples=60, deadline=None)
    @given(st.tuples(st.integers(0, 4_790), st.integers(0, 9_000)).map(sorted))
    def check(clip: list[int]) -> None:
        start, end = clip[0] / 1000, clip[1] / 1000
        if start * media.RATE % 1 == 0 or end * media.RATE % 1 == 0:
            return  # at the very moment of a change either frame is right, by how the container rounds
        shown = [n for n in range(len(begins)) if ends[n] > start and begins[n] < end] or [len(begins) - 1]
        (got,), ((first, last),) = decoder.get_video_clips([(start, end)])
        assert media.numbers(got.numpy()) == shown
        assert (first, last) == pytest.approx((begins[shown[0]], ends[shown[-1]]), abs=0.04)

    with decoder_of(name) as decoder:
        check()


@pytest.mark.parametrize("name", ["mp4 with B-frames", "mkv with audio", "avi with B-frames", "mpeg transport stream"])
def test_seconds_and_frames_agree_where_the_rate_is_constant(name: str) -> None:
    with decoder_of(name) as decoder:
        start = decoder.get_video().video_timestamps[0][0]  # with audio, video may begin later
        for first, last in ((0, 0), (0, 24), (7, 31), (49, 49)):
            for early in (0, 0.000005):
                clip = (start + first / media.RATE - early, start + last / media.RATE - early)
                (got,), _ = decoder.get_video_clips([(max(0, clip[0]), max(0, clip[1]))])
                assert media.numbers(got.numpy()) == list(range(first, last + 1))


def test_a_clip_may_end_beyond_the_video() -> None:
    with decoder_of("mp4 with B-frames") as decoder:
        for end, unit in (
            (math.inf, "frames"),
            (99, "frames"),
            (math.inf, "seconds"),
            (2.0, "seconds"),
            (70, "seconds"),
        ):
            (got,), ((_, last),) = decoder.get_video_clips([(1 if unit == "seconds" else 25, end)], unit)
            assert (media.numbers(got.numpy()), last) == (list(range(25, 50)), 2.0)


def test_missing_times_are_warned_of() -> None:
    data = video("bare h264, no times")[0]
    with pytest.warns(RuntimeWarning, match="no usable timestamps"):
        (got,), times = AVDecoder(data).get_video_clips([(1, 1.5)])
    assert (media.numbers(got.numpy()), times) == (list(range(25, 38)), [(1.0, 1.52)])


def test_a_video_cut_out_of_another_begins_with_its_first_whole_frame() -> None:
    """The first key frame and what depends on it alone are left; frames shown before it refer to what was cut off."""
    source, file = io.BytesIO(video("mpeg transport stream")[0]), io.BytesIO()
    with av.open(source) as whole, av.open(file, "w", format="mpegts") as cut:
        stream = cut.add_stream_from_template(whole.streams.video[0])
        for number, packet in enumerate(whole.demux(whole.streams.video[0])):
            if number >= 5 and packet.size:
                packet.stream = stream
                cut.mux(packet)
    frames = media.decode_all(file.getvalue())
    with AVDecoder(file.getvalue()) as decoder:
        assert decoder.get_metadata().video_num_frames == len(frames) < 50
        for number in (0, 1, 7, len(frames) - 1):
            (got,), _ = decoder.get_video_clips([(number, number)], "frames")
            np.testing.assert_array_equal(got[0].numpy(), frames[number])


def test_damage_in_the_middle_is_an_error_where_it_matters_only() -> None:
    whole, frames = video("mkv with audio")
    with av.open(io.BytesIO(whole)) as container:
        packets = [packet for packet in container.demux(container.streams.video[0]) if packet.size]
        keys = [number for number, packet in enumerate(packets) if packet.is_keyframe]
        spoilt = bytes(packets[keys[2]])
    begin = whole.index(spoilt)
    data = whole[:begin] + b"\xff" * len(spoilt) + whole[begin + len(spoilt) :]
    with AVDecoder(data) as decoder:
        (got,), _ = decoder.get_video_clips([(0, 5)], "frames")
        np.testing.assert_array_equal(got.numpy(), frames[:6])
        with pytest.raises(SampleError, match="of the video cannot be decoded"):
            decoder.get_video()


def test_clips_are_scaled_to_width_and_height() -> None:
    data = video("mp4 with B-frames")[0]
    (got,), _ = AVDecoder(data).get_video_clips([(10, 20)], "frames", video_out_frame_size=(80, 24))
    assert got.shape == (11, 3, 24, 80)
    assert media.numbers(got.numpy()) == list(range(10, 21))
    with av.open(io.BytesIO(data)) as container:
        expected = list(container.decode(video=0))[10].to_ndarray(width=80, height=24, format="rgb24")
    np.testing.assert_array_equal(got[0].numpy(), expected.transpose(2, 0, 1))


def test_a_rotation_is_not_carried_out() -> None:
    data = video("mp4 with B-frames")[0]
    begin = data.index(b"tkhd") + 4 + 40
    turned = b"".join(number.to_bytes(4, "big", signed=True) for number in (0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30))
    rotated = data[:begin] + turned + data[begin + 36 :]
    with av.open(io.BytesIO(rotated)) as container:
        assert next(container.decode(video=0)).rotation == -90
    metadata = AVDecoder(rotated).get_metadata()
    assert (metadata.video_width, metadata.video_height) == (media.WIDTH, media.HEIGHT)
    np.testing.assert_array_equal(AVDecoder(rotated).get_video().video_clips[0].numpy(), video("mp4 with B-frames")[1])


def test_clips_that_would_not_fit_into_memory_are_refused() -> None:
    limits = Limits(max_video_bytes=49 * 3 * media.WIDTH * media.HEIGHT)
    with AVDecoder(video("mp4 with B-frames")[0], limits=limits) as decoder:
        decoder.get_video_clips([(1, 49)], "frames")
        with pytest.raises(SampleError, match=r"50 frames of 64 x 48 pixels .*video_stride.*video_out_frame_size"):
            decoder.get_video()


@pytest.mark.seconds
@pytest.mark.parametrize("name", SOUNDS)
def test_every_range_of_samples_is_what_decoding_everything_gives(name: str) -> None:
    data, samples = sound(name)
    tolerance = {"rtol": 0, "atol": 1e-5 if samples.dtype.kind == "f" else 0}  # Opus forgets its past slowly

    @settings(max_examples=20, deadline=None)
    @given(st.integers(0, samples.shape[1] - 1), st.integers(1, 40_000))
    def check(first: int, length: int) -> None:
        (clip,), ((start, end),) = decoder.get_audio_clips([(first, first + length)], "samples")
        expected = samples[:, first : first + length]
        assert clip.numpy().dtype == samples.dtype
        np.testing.assert_allclose(clip.numpy(), expected, **tolerance)
        assert round((end - start) * rate) == expected.shape[1]

    with AVDecoder(data) as decoder:
        rate = decoder.get_audio_samples_per_second()
        check()
        assert decoder.get_metadata(get_audio_num_samples=True).audio_num_samples == samples.shape[1]
        (whole,) = decoder.get_audio().audio_clips
        np.testing.assert_array_equal(whole.numpy(), samples)


@pytest.mark.parametrize("name", ["wav", "mp3", "webm, Opus", "mka, AAC"])
def test_seconds_of_audio_are_samples_by_the_rate(name: str) -> None:
    with AVDecoder(sound(name)[0]) as decoder:
        rate = decoder.get_audio_samples_per_second()
        (by_time, late), times = decoder.get_audio_clips([(0.5, 1.25), (2, 99)])
        (by_number,), _ = decoder.get_audio_clips([(rate // 2, rate // 2 + round(0.75 * rate))], "samples")
        assert torch.equal(by_time, by_number)
        assert times[0] == pytest.approx((0.5, 1.25))
        assert late.shape[1] == decoder.get_metadata(get_audio_num_samples=True).audio_num_samples - 2 * rate


def test_audio_that_begins_late_keeps_its_distance_to_the_video() -> None:
    file = io.BytesIO()
    with av.open(io.BytesIO(video("mkv with audio")[0])) as source, av.open(file, "w", format="matroska") as target:
        streams = {stream.index: target.add_stream_from_template(stream) for stream in source.streams}
        for packet in source.demux():
            if packet.size:
                late = 500 if packet.stream.type == "audio" else 0
                packet.pts += late
                packet.dts = None if packet.dts is None else packet.dts + late
                packet.stream = streams[packet.stream.index]
                target.mux(packet)
    with AVDecoder(file.getvalue()) as decoder:
        data = decoder.get_clips(video_clip_ranges=[(0, 1)], audio_clip_ranges=[(0, 1)])
        assert data.video_timestamps == [(0.0, 1.04)]
        assert data.audio_timestamps[0] == pytest.approx((0.477, 1), abs=0.03)
        assert data.audio_clips[0].shape[1] == pytest.approx(0.523 * 44_100, abs=0.03 * 44_100)
        with pytest.raises(SampleError, match="holds no sample of the audio"):
            decoder.get_audio_clips([(0, 0.4)])


def retimed(data: bytes, late: Callable[[int], int]) -> tuple[bytes, list[int]]:
    """FLAC in a container with times to the sample, packet n `late(n)` samples later; and where its packets began."""
    file, begins = io.BytesIO(), []
    with av.open(io.BytesIO(data)) as source, av.open(file, "w", format="nut") as target:
        stream = target.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(audio=0):
            if packet.size:
                begins.append(packet.pts)
                packet.pts = packet.dts = packet.pts + late(len(begins) - 1)
                packet.stream = stream
                target.mux(packet)
    return file.getvalue(), begins


@pytest.mark.parametrize("odd", [1, 2, 17, 40])
def test_one_packet_with_a_wrong_time_moves_no_sample(odd: int) -> None:
    data, samples = sound("flac")
    changed, begins = retimed(data, lambda number: 448 if number == odd else 0)
    assert len(begins) > 41
    with AVDecoder(changed) as decoder:
        np.testing.assert_array_equal(decoder.get_audio().audio_clips[0].numpy(), samples)
        clip = (begins[odd] - 100, begins[odd] + 5000)
        (around,), _ = decoder.get_audio_clips([clip], "samples")
        np.testing.assert_array_equal(around.numpy(), samples[:, slice(*clip)])


def test_a_gap_in_the_audio_is_silence() -> None:
    data, samples = sound("flac")
    changed, begins = retimed(data, lambda number: 10_000 if number >= 10 else 0)
    with AVDecoder(changed) as decoder:
        whole = decoder.get_audio().audio_clips[0].numpy()
    np.testing.assert_array_equal(whole[:, : begins[10]], samples[:, : begins[10]])
    assert not whole[:, begins[10] : begins[10] + 10_000].any()
    np.testing.assert_array_equal(whole[:, begins[10] + 10_000 :], samples[:, begins[10] :])


def test_samples_are_counted_past_damage_that_leaves_a_packet_without_a_time() -> None:
    data = bytearray(media.write("flac", audio="flac", num_samples=300_000))
    with av.open(io.BytesIO(bytes(data))) as container:
        packet = [bytes(packet) for packet in container.demux(audio=0) if packet.size][60]
    data[data.index(packet) + len(packet) // 2] ^= 1
    samples = media.hear_all(bytes(data))
    assert samples.shape[1] > 290_000
    with AVDecoder(bytes(data)) as decoder:
        assert decoder.get_metadata(get_audio_num_samples=True).audio_num_samples == samples.shape[1]
        (last, first), _ = decoder.get_audio_clips([(290_000, math.inf), (0, 1000)], "samples")
        np.testing.assert_array_equal(last.numpy(), samples[:, 290_000:])
        np.testing.assert_array_equal(first.numpy(), samples[:, :1000])
        (whole,) = decoder.get_audio().audio_clips
        np.testing.assert_array_equal(whole.numpy(), samples)
