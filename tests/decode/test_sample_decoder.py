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
from bridge_data.errors import ConfigError, SampleError
from bridge_data.limits import Limits
from bridge_data.shards.media_kinds import guess_kind
from tests.decode.av import media
from tests.decode.av.media import sound, video
from tests.decode.pictures import encoded, picture


def saved(save, value, **options):
    file = io.BytesIO()
    save(file, value, **options)
    return file.getvalue()


def png():
    file = io.BytesIO()
    Image.new("RGB", (4, 3), (255, 0, 51)).save(file, "PNG")
    return file.getvalue()


def torch_save_of_before(file, value):
    torch.save(value, file, _use_new_zipfile_serialization=False)


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


def test_arrays_and_tensors():
    decoder = SampleDecoder()
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    np.testing.assert_array_equal(decoder.decode("a.npy", saved(np.save, array)), array)
    tensors = {"x": torch.arange(3), "y": [torch.ones(2), 5]}
    file = io.BytesIO()
    torch.save(tensors, file)
    loaded = decoder.decode("pth", file.getvalue())
    assert torch.equal(loaded["x"], tensors["x"])
    assert loaded["y"][1] == 5


def test_images_follow_the_setting():
    assert SampleDecoder().decode("0001.png", png()).shape == (3, 3, 4)
    assert SampleDecoder(image_decode="torchrgb8").decode("png", png()).dtype == torch.uint8
    assert SampleDecoder(image_decode="pilrgb").decode("left.PNG", png()).getpixel((0, 0)) == (255, 0, 51)


def test_images_may_be_resized_as_they_are_decoded():
    large = encoded(picture((320, 240)), "JPEG")
    exact = SampleDecoder(image_size=(84, 84)).decode("jpg", large)
    assert (exact.shape, exact.dtype, exact.is_contiguous()) == ((3, 84, 84), torch.float32, True)
    fast = SampleDecoder(image_size=(84, 84), resize="torch").decode("jpg", large)
    assert (fast - exact).abs().max() * 255 < 2.01
    fastest = SampleDecoder(image_size=(84, 84), resize="torch", dct_scaling=True).decode("jpg", large)
    assert 0 < (fastest - exact).abs().mean() * 255 < 5


def test_ways_of_resizing_without_a_size_are_refused():
    for settings in ({"resize": "torch"}, {"dct_scaling": True}):
        with pytest.raises(ConfigError, match=r"without image_size: .*set image_size=\(height, width\)"):
            SampleDecoder(**settings)


def test_content_counts_not_the_extension_among_images():
    assert SampleDecoder().decode("jpg", png()).shape == (3, 3, 4)


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
        ("pth", saved(lambda file, value: torch.save(value, file), Runs())),
        ("pth.gz", gzip.compress(saved(torch_save_of_before, Runs()), mtime=0)),
    ],
)
def test_what_cannot_be_decoded_names_key_and_part(name, raw):
    with pytest.raises(SampleError, match=rf"sample 'a\.tar/7': part '{name}' \({len(raw)} bytes\) cannot be decoded"):
        SampleDecoder()({"__key__": "a.tar/7", name: raw})


def test_an_array_that_declares_more_than_it_holds_is_refused():
    header = saved(np.save, np.zeros((1,), dtype=np.uint8))
    bomb = header.replace(b"(1,), }              ", b"(999999999999999,), }")
    assert bomb != header
    with pytest.raises(SampleError, match="npy"):
        SampleDecoder().decode("npy", bomb)


def test_bombs_are_sample_errors(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 11)
    with pytest.warns(Image.DecompressionBombWarning), pytest.raises(SampleError, match="4 x 3 pixels"):
        SampleDecoder().decode("png", png())


def test_own_handlers_come_first_and_the_longest_name_wins():
    decoder = SampleDecoder(handlers={"xyz": len, "seg.png": lambda raw: "mask", ".TXT": bytes.upper, "mp": len})
    assert decoder.decode("xyz", b"four") == 4
    assert decoder.decode("a.xyz", b"four") == 4
    assert decoder.decode("seg.png", png()) == "mask"
    assert decoder.decode("0001.seg.png", png()) == "mask"
    assert decoder.decode("png", png()).shape == (3, 3, 4)
    assert decoder.decode("txt", b"a") == b"A"
    assert decoder.decode("mp", b"four") == 4


def test_a_whole_sample_is_decoded_in_a_copy():
    sample = {"__key__": "k", "__sources__": None, "txt": b"a", "cls": 5, "bin": b"b"}
    assert SampleDecoder()(sample) == {"__key__": "k", "__sources__": None, "txt": "a", "cls": 5, "bin": b"b"}
    assert sample["txt"] == b"a"


@pytest.mark.parametrize(("name", "package"), [("msgpack", "msgpack"), ("a.mp", "msgpack"), ("cbor", "cbor2")])
def test_a_format_without_its_package_names_the_way_out(name, package, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(ConfigError, match=rf"part '{name}' needs the package {package}: .*bridge-data\[formats\]"):
        SampleDecoder().handler(name)
    assert SampleDecoder(handlers={name: len}).decode(name, b"four") == 4


@pytest.mark.parametrize("name", ["pkl", "a.pickle", "PYD", "pkl.gz"])
def test_pickles_are_refused_with_a_way_out(name):
    with pytest.raises(ConfigError, match=r"is a pickle, which can run any code.*handlers=\{'p\w+': bytes\}"):
        SampleDecoder().decode(name, pickle.dumps(Runs()))
    assert SampleDecoder(handlers={"pkl": bytes}).decode("pkl", b"x") == b"x"


def test_archives_of_arrays():
    arrays = {"a": np.arange(3), "b": np.ones((2, 2), np.float16)}
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, **arrays)
        loaded = SampleDecoder().decode("npz", file.getvalue())
        assert loaded.keys() == arrays.keys()
        np.testing.assert_array_equal(loaded["b"], arrays["b"])


def test_tensors_of_webdataset():
    arrays = [np.arange(6, dtype=np.int32).reshape(2, 3), np.ones(2, np.float16)]
    for name in ("ten", "tb"):
        loaded = SampleDecoder().decode(name, bytes(webdataset.tenbin.encode_buffer(arrays)))
        for got, expected in zip(loaded, arrays, strict=True):
            np.testing.assert_array_equal(got, expected)


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
    raw = media.write("mp4", video="libx264", audio="aac", times=range(5), num_samples=4000)
    assert isinstance(SampleDecoder().decode("clip.MP4", raw), AVDecoder)
    whole = SampleDecoder(av_decode="torch").decode("mp4", raw)
    assert isinstance(whole, AVData)
    assert media.numbers(whole.video_clips[0].numpy()) == [0, 1, 2, 3, 4]
    assert whole.audio_clips == []
    assert len(SampleDecoder(av_decode="torch", video_decode_audio=True).decode("mp4", raw).audio_clips) == 1
    with SampleDecoder(av_decode="pyav").decode("mp4", raw) as container:
        assert [stream.type for stream in container.streams] == ["video", "audio"]


def test_content_is_guessed_only_where_the_extension_does_not_say():
    guessing = SampleDecoder(guess_content=True)
    sound = media.write("wav", audio="pcm_s16le", num_samples=100)
    assert guessing.decode("blob", png()).shape == guessing.decode("mp4", png()).shape == (3, 3, 4)
    assert isinstance(guessing.decode("blob", sound), AVDecoder)
    assert isinstance(guessing.decode("jpg", sound), AVDecoder)
    assert guessing.decode("txt", b"BM is text") == "BM is text"
    assert guessing.decode("blob", b"something else") == b"something else"
    assert SampleDecoder().decode("blob", png()) == png()
    own = SampleDecoder(guess_content=True, handlers={"blob": len})
    assert own.decode("blob", png()) == len(png())


def test_own_handlers_may_be_one_function():
    def own(name, content):
        return (name, len(content)) if name.endswith("xyz") else None

    decoder = SampleDecoder(handlers=own)
    assert decoder.decode("a.xyz", b"four") == ("a.xyz", 4)
    assert decoder.decode("txt", b"a") == "a"
    assert decoder.decode("bin", b"a") == b"a"
    assert decoder({"__key__": "k", "xyz": b"four", "txt": b"a"}) == {"__key__": "k", "xyz": ("xyz", 4), "txt": "a"}


def test_unknown_settings():
    with pytest.raises(ConfigError, match="image_decode='rgb16'"):
        SampleDecoder(image_decode="rgb16")
    with pytest.raises(ConfigError, match="av_decode='numpy': expected one of torch, AVDecoder, pyav"):
        SampleDecoder(av_decode="numpy")


def test_decoders_travel_to_workers():
    decoder = pickle.loads(pickle.dumps(SampleDecoder(image_decode="rgb8", handlers={"xyz": len})))
    assert decoder.decode("png", png()).shape == (3, 4, 3)
    assert decoder.decode("xyz", b"four") == 4


def image(kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (9, 7), (1, 2, 3)).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "AVIF", "QOI"])
def test_images(kind: str) -> None:
    assert guess_kind(image(kind)) == "image"


@pytest.mark.parametrize(
    "name", ["mp4 with B-frames", "mkv with audio", "webm, VP8", "avi with B-frames", "mov, MPEG-4", "flv"]
)
def test_videos(name: str) -> None:
    assert guess_kind(video(name)[0]) == "av"


def test_program_streams() -> None:
    assert guess_kind(video("mpeg program stream")[0]) == "av"


@pytest.mark.parametrize("name", ["wav", "flac", "mp3", "m4a", "aac", "ogg, Opus"])
def test_sounds(name: str) -> None:
    assert guess_kind(sound(name)[0]) == "av"


def test_mp3_without_a_tag_begins_with_a_frame() -> None:
    content = sound("mp3")[0]
    frame = content.index(b"\xff\xfb")
    assert guess_kind(content[frame:]) == "av"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"BM is a text of some length",
        b"RIFF....WAVY",
        b'{"json": true}',
        b"\xff\xfe\x00u\x00t\x00f",
        b"\xff\xff\xff\xff",
        b"\x93NUMPY",
        bytes(64),
    ],
)
def test_anything_else(content: bytes) -> None:
    assert guess_kind(content) is None
