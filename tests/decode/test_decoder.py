import importlib.util
import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError, SampleError


def saved(save, value, **options):
    file = io.BytesIO()
    save(file, value, **options)
    return file.getvalue()


def png():
    file = io.BytesIO()
    Image.new("RGB", (4, 3), (255, 0, 51)).save(file, "PNG")
    return file.getvalue()


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
        ("mp4", b"video", b"video"),
        ("wav", b"audio", b"audio"),
        ("pkl", pickle.dumps(Runs()), pickle.dumps(Runs())),
        ("", b"x", b"x"),
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
        ("pth", pickle.dumps(Runs())),
        ("pth", saved(lambda file, value: torch.save(value, file), Runs())),
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


def test_messagepack_without_its_package_names_the_way_out(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "msgpack" else find_spec(name))
    with pytest.raises(ConfigError, match=r"'msgpack' is MessagePack.*pip install msgpack"):
        SampleDecoder().handler("msgpack")


def test_messagepack_with_its_package():
    msgpack = pytest.importorskip("msgpack")
    assert SampleDecoder().decode("a.msg", msgpack.packb({"a": [1, "b"]})) == {"a": [1, "b"]}


def test_unknown_image_form():
    with pytest.raises(ConfigError, match="image_decode='rgb16'"):
        SampleDecoder(image_decode="rgb16")


def test_decoders_travel_to_workers():
    decoder = pickle.loads(pickle.dumps(SampleDecoder(image_decode="rgb8", handlers={"xyz": len})))
    assert decoder.decode("png", png()).shape == (3, 4, 3)
    assert decoder.decode("xyz", b"four") == 4
