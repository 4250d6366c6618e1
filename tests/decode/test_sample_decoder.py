import gzip
import importlib.util
import io
import pickle

import cbor2
import msgpack
import numpy as np
import pytest
import torch
import webdataset
from PIL import Image

from bridge_data.decode import SampleDecoder
from bridge_data.decode.av import AVData, AVDecoder
from bridge_data.decode.media_kinds import guess_kind
from bridge_data.decode.sample_decoder import decode_part
from bridge_data.errors import ConfigError, SampleError
from bridge_data.limits import Limits
from tests.decode.av import media
from tests.decode.av.media import sound, video
from tests.decode.pictures import encoded, picture


def saved(save, *values, **options):
    """What `save` writes."""
    file = io.BytesIO()
    save(file, *values, **options)
    return file.getvalue()


def save_tensors(file, value, **options):
    torch.save(value, file, **options)


def png():
    return encoded(Image.new("RGB", (4, 3), (255, 0, 51)), "PNG")


class Runs:
    """Its pickle runs code where it is loaded."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('code was run')",))


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("txt", "grün".encode(), "grün"),
        ("caption.txt", b"a", "a"),
        ("TEXT", b"a", "a"),
        ("transcript", b"a", "a"),
        ("cls", b" 17\n", 17),
        ("inx", b"-3", -3),
        ("json", b'{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        ("meta.jsn", b'"x"', "x"),
        ("bin", b"\x00\x01", b"\x00\x01"),
        ("jsonl", b"{}", b"{}"),
        ("", b"x", b"x"),
        ("txt.gz", gzip.compress(b"a", mtime=0), "a"),
        ("a.json.GZ", gzip.compress(b"[1]", mtime=0), [1]),
        ("gz", gzip.compress(b"a", mtime=0), b"a"),
        ("bin.gz", gzip.compress(b"a", mtime=0), b"a"),
        ("mp", msgpack.packb({"a": [1, "b"]}), {"a": [1, "b"]}),
        ("a.msg", msgpack.packb(None), None),
        ("msgpack", msgpack.packb(b"x"), b"x"),
        ("cbor", cbor2.dumps([1, {"a": "b"}]), [1, {"a": "b"}]),
    ],
)
def test_parts_are_decoded_by_extension(name, raw, value):
    assert SampleDecoder().decode(name, raw) == value


ARRAYS = {"a": np.arange(6, dtype=np.float16).reshape(2, 3), "b": np.ones((2, 2), np.float16)}
TENSORS = {"x": torch.arange(3), "y": [torch.ones(2), 5]}


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("a.npy", saved(np.save, ARRAYS["a"]), ARRAYS["a"]),
        ("npz", saved(np.savez, **ARRAYS), ARRAYS),
        ("npz", saved(np.savez_compressed, **ARRAYS), ARRAYS),
        ("ten", bytes(webdataset.tenbin.encode_buffer([*ARRAYS.values()])), [*ARRAYS.values()]),
        ("tb", bytes(webdataset.tenbin.encode_buffer([*ARRAYS.values()])), [*ARRAYS.values()]),
        ("pth", saved(save_tensors, TENSORS), TENSORS),
    ],
)
def test_arrays_and_tensors(name, raw, expected):
    def plain(value):
        if isinstance(value, np.ndarray | torch.Tensor):
            return value.tolist()
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    assert plain(SampleDecoder().decode(name, raw)) == plain(expected)


def test_images_follow_the_settings():
    assert SampleDecoder().decode("0001.png", png()).shape == SampleDecoder().decode("jpg", png()).shape == (3, 3, 4)
    assert SampleDecoder(image_decode="torchrgb8").decode("png", png()).dtype == torch.uint8
    sent = pickle.loads(pickle.dumps(SampleDecoder(image_decode="pilrgb", handlers={"xyz": len})))
    assert (sent.decode("left.PNG", png()).getpixel((0, 0)), sent.decode("xyz", b"four")) == ((255, 0, 51), 4)
    large = encoded(picture((320, 240)), "JPEG")
    exact = SampleDecoder(image_size=(84, 84)).decode("jpg", large)
    assert (exact.shape, exact.dtype, exact.is_contiguous()) == ((3, 84, 84), torch.float32, True)
    fast = SampleDecoder(image_size=(84, 84), resize="torch").decode("jpg", large)
    assert (fast - exact).abs().max() * 255 < 2.01
    fastest = SampleDecoder(image_size=(84, 84), resize="torch", dct_scaling=True).decode("jpg", large)
    assert 0 < (fastest - exact).abs().mean() * 255 < 5


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"image_decode": "rgb16"}, "image_decode='rgb16'"),
        ({"av_decode": "numpy"}, "av_decode='numpy': expected one of torch, AVDecoder, pyav"),
        ({"resize": "torch"}, r"without image_size: .*set image_size=\(height, width\)"),
        ({"dct_scaling": True}, r"without image_size: .*set image_size=\(height, width\)"),
    ],
)
def test_wrong_settings_are_refused(settings, told):
    with pytest.raises(ConfigError, match=told):
        SampleDecoder(**settings)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("png", png()[:40]),
        ("jpg", b"\xff\xd8\xff\xe0 nothing else"),
        ("jpg", b""),
        ("txt", b"\xff\xfe"),
        ("json", b"{"),
        ("cls", b"cat"),
        ("npy", b"\x93NUMPY nonsense"),
        ("npy", saved(np.save, np.array([Runs()], dtype=object), allow_pickle=True)),
        ("npy", saved(np.save, np.arange(3))[:-4]),
        ("npz", saved(np.savez, np.array([Runs()], dtype=object))),
        ("npz", b"no zip"),
        ("txt.gz", b"no gzip"),
        ("mp", b"\xc1"),
        ("cbor", b"\x61"),
        ("ten", b"nothing"),
        ("pth", pickle.dumps(Runs())),
        ("pth", saved(save_tensors, Runs())),
        ("pth.gz", gzip.compress(saved(save_tensors, Runs(), _use_new_zipfile_serialization=False), mtime=0)),
        ("npy", saved(np.save, np.zeros(1, np.uint8)).replace(b"(1,), }              ", b"(999999999999999,), }")),
    ],
)
def test_what_cannot_be_decoded_names_key_and_part(name, raw):
    with pytest.raises(SampleError, match=rf"sample 'a\.tar/7': part '{name}' \({len(raw)} bytes\) cannot be decoded"):
        SampleDecoder()({"__key__": "a.tar/7", name: raw})


@pytest.mark.parametrize(
    ("raw", "said"), [(b"<html>404</html>", "it begins with b'<html>404</html>'"), (b"", "it is empty")]
)
def test_what_is_no_image_is_told_by_its_content(raw, said):
    with pytest.raises(SampleError, match=f"cannot be decoded: {said}"):
        SampleDecoder()({"__key__": "a.tar/7", "jpg": raw})


def test_the_words_of_a_users_decoder_are_kept() -> None:
    def refuses(_: bytes) -> None:
        raise ValueError(f"takes no {SampleDecoder()!r}")

    with pytest.raises(SampleError, match=r"cannot be decoded: ValueError: takes no <.* object at 0x"):
        decode_part(refuses, b"ab", "a.tar/7", "jpg")


def test_bombs_are_sample_errors(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 11)
    with pytest.warns(Image.DecompressionBombWarning), pytest.raises(SampleError, match="4 x 3 pixels"):
        SampleDecoder().decode("png", png())


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("xyz", b"four", 4),
        ("a.xyz", b"four", 4),
        ("seg.png", png(), "mask"),
        ("0001.seg.png", png(), "mask"),
        ("txt", b"a", b"A"),
        ("mp", b"four", 4),
        ("json", b"1", 1),
    ],
)
def test_own_handlers_come_first_and_the_longest_name_wins(name, raw, expected):
    handlers = {"xyz": len, "seg.png": lambda raw: "mask", ".TXT": bytes.upper, "mp": len}
    assert SampleDecoder(handlers=handlers).decode(name, raw) == expected


def test_a_whole_sample_is_decoded_in_a_copy_by_handlers_that_may_be_one_function():
    def own(name, content):
        return (name, len(content)) if name.endswith("xyz") else None

    sample = {"__key__": "k", "__sources__": None, "txt": b"a", "cls": 5, "bin": b"b", "a.xyz": b"four"}
    decoded = SampleDecoder(handlers=own)(sample)
    assert decoded == {**sample, "txt": "a", "a.xyz": ("a.xyz", 4)} and sample["txt"] == b"a"


@pytest.mark.parametrize(("name", "package"), [("msgpack", "msgpack"), ("a.mp", "msgpack"), ("cbor", "cbor2")])
def test_a_format_without_its_package_names_the_way_out(name, package, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(ConfigError, match=rf"part '{name}' needs the package {package}, .*: pip install {package}"):
        SampleDecoder().handler(name)
    assert SampleDecoder(handlers={name: len}).decode(name, b"four") == 4


@pytest.mark.parametrize("name", ["pkl", "a.pickle", "PYD", "pkl.gz"])
def test_pickles_are_refused_with_a_way_out(name):
    with pytest.raises(ConfigError, match=r"is a pickle, which can run any code.*handlers=\{'p\w+': bytes\}"):
        SampleDecoder().decode(name, pickle.dumps(Runs()))
    assert SampleDecoder(handlers={"pkl": bytes}).decode("pkl", b"x") == b"x"


@pytest.mark.parametrize("name", ["txt.gz", "npz"])
def test_what_unpacks_to_too_much_is_refused(name):
    limits = Limits(max_unpacked_bytes=1000)
    zeros = io.BytesIO()
    np.savez_compressed(zeros, a=np.zeros(1001, np.uint8))
    raw = zeros.getvalue() if name == "npz" else gzip.compress(bytes(1001))
    for decoder in (SampleDecoder(limits=limits), SampleDecoder().within(limits)):
        with pytest.raises(SampleError, match="unpacks to"):
            decoder.decode(name, raw)
    SampleDecoder(limits=Limits()).within(limits).decode(name, raw)


def test_media_become_what_av_decode_says():
    raw = video("mkv with audio")[0]
    assert isinstance(SampleDecoder().decode("clip.MP4", raw), AVDecoder)
    for with_audio in (False, True):
        whole = SampleDecoder(av_decode="torch", video_decode_audio=with_audio).decode("mp4", raw)
        assert isinstance(whole, AVData)
        assert media.numbers(whole.video_clips[0].numpy()) == list(range(50))
        assert len(whole.audio_clips) == with_audio
    with SampleDecoder(av_decode="pyav").decode("mp4", raw) as container:
        assert [stream.type for stream in container.streams] == ["video", "audio"]


def test_content_is_guessed_only_where_the_extension_does_not_say():
    guessing = SampleDecoder(guess_content=True, handlers={"own": len})
    assert guessing.decode("blob", png()).shape == guessing.decode("mp4", png()).shape == (3, 3, 4)
    for name in ("blob", "jpg"):
        assert isinstance(guessing.decode(name, sound("wav")[0]), AVDecoder)
    assert guessing.decode("txt", b"BM is text") == "BM is text"
    assert guessing.decode("blob", b"something else") == b"something else"
    assert SampleDecoder().decode("blob", png()) == png()
    assert guessing.decode("own", png()) == len(png())


IMAGES = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "AVIF", "QOI")
VIDEOS = ("mp4 with B-frames", "mkv with audio", "webm, VP8", "avi with B-frames", "mov, MPEG-4", "flv")
SOUNDS = ("wav", "flac", "mp3", "m4a", "aac", "ogg, Opus")
OTHERS = (
    b"",
    b"\xff",
    b"BM is a text of some length",
    b"RIFF....WAVY",
    b'{"json": true}',
    b"\xff\xfe\x00u\x00t\x00f",
    b"\xff\xff\xff\xff",
    b"\x93NUMPY",
    bytes(64),
)


def test_what_content_is_guessed_to_be():
    assert {guess_kind(encoded(picture(), kind)) for kind in IMAGES} == {"image"}
    assert {guess_kind(video(name)[0]) for name in (*VIDEOS, "mpeg program stream")} == {"av"}
    assert {guess_kind(sound(name)[0]) for name in SOUNDS} == {"av"}
    mp3 = sound("mp3")[0]
    assert guess_kind(mp3[mp3.index(b"\xff\xfb") :]) == "av"  # without a tag, it begins with a frame
    assert {guess_kind(content) for content in OTHERS} == {None}
