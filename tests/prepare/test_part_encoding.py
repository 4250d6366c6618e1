"""Values become parts by their endings, and the decoder makes the same values of them again."""

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError
from bridge_data.prepare.part_encoding import encode_part, encode_sample

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)

VALUES: list[tuple[str, Any]] = [
    ("txt", "größe 大きさ\n"),
    ("json", {"caption": "größe", "numbers": [1, 2.5, None, True]}),
    ("json.gz", {"caption": "größe"}),
    ("cls", 17),
    ("id", np.int64(-3)),
    ("npy", np.arange(6, dtype=np.float16).reshape(2, 3)),
    ("left.npy", np.array("größe")),
    ("npy", np.float32(2)),
    ("npz", {"a": np.arange(3), "b": np.zeros((2, 0))}),
    ("pth", torch.arange(5)),
    ("pth", {"a": [torch.ones(2), 1, "x"]}),
    ("npy", torch.ones(2, 3)),
    ("wav", b"RIFF"),
    ("unknown", b"\0\1"),
]


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    return (str(value.dtype), value.shape, value.tolist()) if isinstance(value, (np.ndarray, np.generic)) else value


@pytest.mark.parametrize(("name", "value"), VALUES)
def test_a_value_is_decoded_as_it_was(name: str, value: Any) -> None:
    content = encode_part("k", name, value)
    assert encode_part("k", name, value) == content
    decoded = content if name == "wav" else SampleDecoder().decode(name, content)
    assert plain(decoded) == plain(int(value) if name == "id" else value)


@pytest.mark.parametrize("name", ["png", "bmp", "tiff", "left.png"])
@pytest.mark.parametrize("value", [PIXELS, Image.fromarray(PIXELS)], ids=["array", "image"])
def test_images_without_loss(name: str, value: Any) -> None:
    decoded = SampleDecoder(image_decode="rgb8").decode(name, encode_part("k", name, value))
    assert (decoded == PIXELS).all()


@pytest.mark.parametrize("name", ["jpg", "webp"])
def test_images_with_loss_keep_their_size_and_look(name: str) -> None:
    pixels = np.full((16, 24, 3), (200, 30, 40), dtype=np.uint8)
    decoded = SampleDecoder(image_decode="rgb8").decode(name, encode_part("k", name, Image.fromarray(pixels)))
    assert decoded.shape == pixels.shape and np.abs(decoded.astype(int) - pixels).max() < 8


def test_bytes_and_files_are_stored_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"no image")
    sample = {"__key__": "a/b", "png": file, "jpg": bytearray(b"x"), "mp4": memoryview(b"y"), "__sources__": ()}
    assert encode_sample(sample).parts == [("png", b"no image"), ("jpg", b"x"), ("mp4", b"y")]


def test_a_view_of_a_tensor_does_not_bring_all_of_it_and_compressed_parts_say_nothing_of_the_time() -> None:
    content = encode_part("k", "pth", torch.zeros(1_000_000)[:3])
    assert len(content) < 10_000 and torch.load(io.BytesIO(content)).tolist() == [0, 0, 0]
    content = encode_part("k", "txt.gz", "text")
    assert gzip.decompress(content) == b"text" and content[4:8] == bytes(4)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("png", "text", "expected a Pillow image"),
        ("png", torch.zeros(3, 2, 2), "of a tensor"),
        ("png", PIXELS.astype(np.float32), "uint8, got float32"),
        ("jpg", Image.new("RGBA", (2, 2)), "RGBA"),
        ("txt", 3, "expected text"),
        ("json", {"a": float("nan")}, r"\['a'\] is nan, which JSON does not have"),
        ("json", {"a": "b", "c": [1.0, {"d": float("-inf")}]}, r"\['c'\]\[1\]\['d'\] is -inf, which"),
        ("json", {"a": [{"bytes": b"123"}]}, r"\['a'\]\[0\]\['bytes'\] is 3 bytes, which JSON does not have"),
        ("json", {"a": torch.zeros(1)}, "not JSON serializable"),
        ("cls", True, "whole number"),
        ("cls", 1.5, "float"),
        ("npy", [1, 2], "array or a tensor"),
        ("npy", np.array([object()]), "Python objects"),
        ("npz", np.zeros(1), "dict of arrays"),
        ("pth", {"a": pytest}, "only tensors"),
        ("pth", Path, "only tensors"),
        ("pth", lambda: 0, "only tensors"),
        ("webp", Image.fromarray(np.zeros((2, 2), np.uint16)), "clipped to 8 bits"),
        ("mp4", "text", "'mp4' are given as bytes"),
        ("xyz", 3, "others may end with txt"),
        ("xyz", Path("/no/such/file"), "No such file"),
        ("pkl", b"", "pickles are never read"),
    ],
)
def test_a_value_that_its_ending_does_not_store(name: str, value: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"sample 'k': part '{name}'.*{reason}"):
        encode_part("k", name, value)


@pytest.mark.parametrize("key", ["0001", "a/0001", "v1.0/a", "größe", "with space"])
def test_keys_that_are_found_again(key: str) -> None:
    assert encode_sample({"__key__": key, "txt": "a"}).key == key


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        *(
            ({"__key__": key, "txt": "a"}, reason)
            for key, reason in (
                (None, "without a __key__"),
                (7, "__key__ is 7"),
                ("", "empty names"),
                ("/a", "empty names"),
                ("a/", "empty names"),
                ("../a", "'..'"),
                ("a.b", "no dot after its last '/': write 'a_b'"),
                ("a/.b", "no dot"),
                ("a\n", "characters"),
                ("\ud800", "characters"),
                ("__meta__/a", "__name__"),
                ("x" * 300, "too long"),
            )
        ),
        *(
            ({"__key__": "k", name: b""}, r"sample 'k': part .*(expected the name|characters)")
            for name in ("", "a/b", 3, "txt\n")
        ),
        ({"__key__": "k"}, "sample 'k' has no parts"),
        ({"__key__": "k", "__sources__": ()}, "sample 'k' has no parts"),
        (["a"], "got a list"),
    ],
)
def test_keys_names_and_samples_that_cannot_be_stored(sample: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        encode_sample(sample)
