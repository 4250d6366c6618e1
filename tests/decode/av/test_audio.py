"""Samples: every range, of many containers, equals what decoding everything gives."""

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.decode.av import AVDecoder
from bridge_data.errors import SampleError
from tests.decode.av.media import SOUNDS, sound, video
from tests.later import av


@pytest.mark.processes
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
