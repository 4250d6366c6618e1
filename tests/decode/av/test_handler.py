"""Media by the extension of a part."""

import pytest

from bridge_data.decode.av import AV_EXTENSIONS, AVData, AVDecoder, AVWebdatasetDecoder
from bridge_data.errors import ConfigError
from tests.decode.av.media import sound, video


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


def test_unknown_results() -> None:
    with pytest.raises(ConfigError, match="av_decode='numpy': expected one of torch, AVDecoder, pyav"):
        AVWebdatasetDecoder(False, "numpy")
