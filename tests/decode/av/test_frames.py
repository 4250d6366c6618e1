"""Frames as tensors: size, rotation, memory."""

import io

import av
import numpy as np
import pytest

from bridge_data.decode.av import AVDecoder
from bridge_data.errors import SampleError
from tests.decode.av import media
from tests.decode.av.media import decoder_of, video


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


def test_clips_that_would_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge_data.decode.av.frames.MAX_CLIPS_BYTES", 49 * 3 * media.WIDTH * media.HEIGHT)
    with decoder_of("mp4 with B-frames") as decoder:
        decoder.get_video_clips([(1, 49)], "frames")
        with pytest.raises(SampleError, match=r"50 frames of 64 x 48 pixels .*video_stride.*video_out_frame_size"):
            decoder.get_video()
