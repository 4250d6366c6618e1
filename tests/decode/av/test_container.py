"""What is opened, and what is not."""

import io
import struct
from typing import Any

import pytest

from bridge_data.decode.av import AVDecoder, AVWebdatasetDecoder
from bridge_data.decode.av.container import open_container
from bridge_data.errors import ConfigError, SampleError
from tests.decode.av.media import video, write
from tests.later import av


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
    with pytest.raises(ConfigError, match=r'pip install "bridge-data\[av\]"'):
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
