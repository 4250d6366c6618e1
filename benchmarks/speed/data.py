"""The data of the benchmark: made once, the same for all libraries.

Reads the name of a data set. Returns its folder, with `tars`, shards that are prepared for us and for Megatron-Energon,
and `reference.json`, what Pillow, PyAV and Python themselves read of some samples. A data set that is whole has a file
`.made`, and is not made again; other formats are converted from the tars by the programs of `benchmarks/peers`.
"""

import functools
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image

from benchmarks.peers import measure, work

WORDS = ("the", "a", "of", "to", "and", "in", "is", "it", "on", "as", "with", "was", "red", "small", "river", "house")
NUM_BLENDED, NUM_SOURCES, REFERENCES = 20, 300, 100_000
CLIP_SIZE, NUM_CLIP_FRAMES = (640, 360), 250
AUDIO_RATE, NUM_AUDIO_SAMPLES = 16_000, 80_000
Samples = Iterator[tuple[str, dict[str, bytes]]]


def make(name: str, folder: Path, scale: float = 1.0) -> Path:
    """The folder of a data set, made if it does not exist; `scale` below 1 makes a smaller one."""
    target = folder / name
    if (target / ".made").exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    print(f"making the data set {name}", file=sys.stderr, flush=True)
    MAKERS[name](target, scale)
    (target / ".made").touch()
    return target


def warm(folder: Path) -> None:
    """Read all files below a folder into the page cache, so that no library's first epoch is slower than another's."""
    for file in folder.rglob("*"):
        if file.is_file():
            with open(file, "rb", buffering=0) as content:
                while content.read(1 << 22):
                    pass


def _texts(size: int, seed: int = 0) -> Samples:
    rng = random.Random(seed)
    for number in range(size):
        words: list[str] = []
        while len(words) < 45:
            words += rng.choices(WORDS, k=45)
        yield f"{seed:03d}{number:07d}", {"txt": " ".join(words)[:200].encode()}


def _text(target: Path, scale: float) -> None:
    _write(target, _texts(int(50_000 * scale)), 1_000, "text")


def _million(target: Path, scale: float) -> None:
    _write(target, _texts(int(1_000_000 * scale)), 10_000, "text", referenced=False)


def _ten_thousand(target: Path, scale: float) -> None:
    _write(target, _texts(int(10_000 * scale)), 1_000, "text", referenced=False)


def _cold(target: Path, scale: float) -> None:
    _write(target, _texts(int(50_000 * scale)), 5, "text", referenced=False)


def _blend(target: Path, scale: float) -> None:
    """Twenty sets of texts, and the metadataset that blends them with weights 1 to 20."""
    lines = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:", "  train:", "    blend:"]
    reference: dict[str, Any] = {}
    for number in range(NUM_BLENDED):
        _write(target / f"{number:02d}", _texts(int(2_000 * scale), number), 500, "text")
        reference |= json.loads((target / f"{number:02d}/reference.json").read_text())
        lines += [f"      - weight: {number + 1}", f"        path: ./{number:02d}/tars"]
    (target / "metadataset.yaml").write_text("\n".join(lines) + "\n")
    (target / "reference.json").write_text(json.dumps(reference))


def _sources(target: Path, scale: float) -> None:
    """Three hundred sets of JPEGs, links to one, and the metadataset that blends them."""
    _write(target / "000", _numbered(photos_of((320, 240), 20_000, 250), 4), 500, "jpeg")
    names = [f"{number:03d}" for number in range(max(2, int(NUM_SOURCES * scale)))]
    for name in names[1:]:
        shutil.copytree(target / "000/tars", target / name / "tars", copy_function=_copy_or_link)
    blend = "".join(f"      - weight: 1\n        path: ./{name}/tars\n" for name in names)
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
    (target / "metadataset.yaml").write_text(head + blend)
    shutil.copy(target / "000/reference.json", target)


def _copy_or_link(source: str, target: str) -> None:
    """Sets share tars, but no index, which readers may map into memory."""
    if source.endswith(".tar"):
        os.link(source, target)
    else:
        shutil.copy(source, target)


def _jpeg(target: Path, scale: float) -> None:
    _write(target, _numbered(photos_of((500, 400), 55_000, int(1_000 * scale)), 4), 100, "jpeg")


def _large_photos(target: Path, scale: float) -> None:
    _write(target, _numbered(photos_of((1600, 1200), 400_000, int(80 * scale)), 3), 20, "photos")


def _videos(target: Path, scale: float) -> None:
    """Clips of 10 s that pan over photos, in H.264 with B-frames and a key frame every two seconds."""
    photos = photos_of((1600, 1200), 400_000, max(1, int(16 * scale)))
    _write(target, _numbered((_clip_of(photo) for photo in photos), 8, "mp4"), 16, "video")


def _clip_of(photo: bytes) -> bytes:
    file, pixels = io.BytesIO(), np.asarray(Image.open(io.BytesIO(photo)))
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=25, options={"g": "50", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = *CLIP_SIZE, "yuv420p"
        for at in range(0, 3 * NUM_CLIP_FRAMES, 3):
            picture = np.ascontiguousarray(pixels[at : at + CLIP_SIZE[1], at : at + CLIP_SIZE[0]])
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode(None))
    return file.getvalue()


def _audio(target: Path, scale: float) -> None:
    """Five seconds of noise that rises and falls, as FLAC."""
    rng = np.random.default_rng(0)

    def clips() -> Iterator[bytes]:
        for _ in range(max(1, int(100 * scale))):
            noise = np.convolve(rng.normal(0, 3_000, NUM_AUDIO_SAMPLES), np.ones(8) / 8, "same")
            loudness = 1 + np.sin(np.linspace(0, rng.uniform(10, 60), NUM_AUDIO_SAMPLES))
            yield _flac_of((noise * loudness).astype(np.int16))

    _write(target, _numbered(clips(), 20, "flac"), 100, "audio")


def _flac_of(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as output:
        stream = output.add_stream("flac", rate=AUDIO_RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = AUDIO_RATE
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


def _chat(target: Path, scale: float) -> None:
    """Chats of 16 to 1,000 tokens, about 150 on average, as JSON."""
    rng = np.random.default_rng(0)

    def chats() -> Samples:
        for number in range(int(20_000 * scale)):
            size = int(np.clip(rng.lognormal(4.7, 0.8), 16, 1_000))
            chat = {"tokens": rng.integers(1, 32_000, size).tolist(), "prompt": size // 3}
            yield f"{number:07d}", {"json": json.dumps(chat).encode()}

    _write(target, chats(), 500, "chat")


def token_lengths(name: str, rng: np.random.Generator, count: int) -> np.ndarray:
    """Lengths of chats, as in `chat`, or with a long tail: half are below 1,400, one in a hundred is above 54,000."""
    mean, deviation, most = {"chat_tokens": (4.7, 0.8, 1_000), "long_tokens": (7.2, 1.6, 65_536)}[name]
    return np.clip(rng.lognormal(mean, deviation, count), 16, most).astype(np.int64)


def _tokens(name: str, count: int, target: Path, scale: float) -> None:
    """Sequences of tokens, two bytes each."""
    rng = np.random.default_rng(0)
    sizes = token_lengths(name, rng, int(count * scale)).tolist()
    contents = (rng.integers(1, 32_000, size).astype(np.uint16).tobytes() for size in sizes)
    samples = ((f"{number:07d}", {"bin": content}) for number, content in enumerate(contents))
    _write(target, samples, 500, "crude", referenced=False)


def _aux(target: Path, scale: float) -> None:
    """Questions as JSON, each of which names one of a thousand photos of another data set."""
    photos = list(_numbered(photos_of((160, 120), 6_000, int(250 * scale)), 4))
    _write(target / "photos", iter(photos), 250, "jpeg")
    pixels = json.loads((target / "photos/reference.json").read_text())
    rng, reference = random.Random(0), {}

    def questions() -> Samples:
        for number in range(int(20_000 * scale)):
            photo = rng.choice(photos)[0]
            reference[f"{number:07d}"] = pixels[photo]
            question = {"photo": photo, "question": "What is it?"}
            yield f"{number:07d}", {"json": json.dumps(question).encode()}

    _write(target / "questions", questions(), 1_000, "crude", referenced=False)
    (target / "reference.json").write_text(json.dumps(reference))
    (target / "metadataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    path: ./questions/tars\n"
        "    aux:\n      photos: ./photos/tars\n"
    )


def _numbered(contents: Iterable[bytes], times: int, part: str = "jpg") -> Samples:
    """Each content `times` times, far apart, with different keys."""
    made = list(contents)
    for number in range(len(made) * times):
        yield f"{number:07d}", {part: made[number % len(made)]}


def photos_of(size: tuple[int, int], num_bytes: int, count: int, rng: random.Random | None = None) -> Iterator[bytes]:
    """JPEGs of about `num_bytes`: crops of the photos that scikit-image and scikit-learn ship."""
    rng = rng or random.Random(0)
    for _ in range(count):
        source = rng.choice(_sources_of_photos())
        width = min(source.width, source.height * size[0] / size[1]) * rng.uniform(0.6, 1)
        height = width * size[1] / size[0]
        left, top = rng.uniform(0, source.width - width), rng.uniform(0, source.height - height)
        crop = source.resize(size, Image.Resampling.BICUBIC, (left, top, left + width, top + height))
        if rng.random() < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        gain = rng.uniform(0.8, 1.2)
        crop = crop.point([min(255, int(value * gain)) for value in range(256)] * 3)
        yield _jpeg_of(crop, num_bytes)


@functools.cache
def _sources_of_photos() -> list[Image.Image]:
    import skimage
    import sklearn

    of_skimage, of_sklearn = Path(skimage.__file__).parent / "data", Path(sklearn.__file__).parent / "datasets/images"
    names = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "retina.jpg", "rocket.jpg", "ihc.png")
    files = [of_skimage / name for name in names] + [of_sklearn / name for name in ("china.jpg", "flower.jpg")]
    return [Image.open(file).convert("RGB") for file in files]


def _jpeg_of(picture: Image.Image, num_bytes: int) -> bytes:
    """The picture at the lowest of a few qualities that gives `num_bytes`."""
    content = b""
    for quality in (70, 80, 86, 90, 93, 95, 97):
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality)
        content = file.getvalue()
        if len(content) >= num_bytes:
            break
    return content


def _write(folder: Path, samples: Samples, per_shard: int, kind: str, referenced: bool = True) -> None:
    """Shards in `folder/tars`, prepared, and the reference of the first samples."""
    tars = folder / "tars"
    tars.mkdir(parents=True)
    reference: dict[str, Any] = {}

    def noted() -> Samples:
        for key, parts in samples:
            if referenced and len(reference) < REFERENCES:
                reference[key] = _reference(kind, next(iter(parts.values())))
            yield key, parts

    write_tars(tars, noted(), per_shard)
    (folder / "reference.json").write_text(json.dumps(reference))
    prepare(tars, KINDS[kind])


@functools.lru_cache(maxsize=128)
def _reference(kind: str, content: bytes) -> list[Any]:
    if kind == "chat":
        tokens, labels = work.chat_tokens(content)
        return [len(tokens), int(tokens.sum()), int(labels.sum())]
    if kind not in ("video", "audio"):
        return measure.digest(work.decoded(kind, content))
    with av.open(io.BytesIO(content)) as medium:
        if kind == "audio":
            samples = np.concatenate([frame.to_ndarray() for frame in medium.decode(audio=0)], axis=1)
            return measure.digest(work.waveform(torch.from_numpy(samples)))
        frames = [frame.to_ndarray(format="rgb24") for frame in medium.decode(video=0)]
        chosen = np.stack([frames[at] for at in work.frames_of(len(frames))])
        return measure.digest(torch.from_numpy(chosen).permute(0, 3, 1, 2))


KINDS = {
    "text": ["--sample-type", "TextSample", "--field-map", '{"text": "txt"}'],
    "jpeg": ["--sample-type", "ImageSample", "--field-map", '{"image": "jpg"}'],
    "photos": ["--sample-type", "ImageSample", "--field-map", '{"image": "jpg"}'],
    "video": ["--sample-type", "CrudeWebdataset"],
    "audio": ["--sample-type", "CrudeWebdataset"],
    "chat": ["--sample-type", "CrudeWebdataset"],
    "crude": ["--sample-type", "CrudeWebdataset"],
}


def prepare(tars: Path, options: list[str], num_workers: int = 2) -> None:
    """`bridge-data prepare` as a user would call it."""
    command = ["prepare", str(tars), "--non-interactive", "--split-ratio", "1,0,0", "--num-workers", str(num_workers)]
    done = subprocess.run(
        [sys.executable, "-m", "bridge_data.cli", *command, *options], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise RuntimeError(f"{tars} could not be prepared: {done.stderr[-2000:]}")


def write_tars(folder: Path, samples: Samples, per_shard: int) -> None:
    tar, number = None, 0
    for position, (key, parts) in enumerate(samples):
        if position % per_shard == 0:
            if tar is not None:
                tar.close()
            shard = folder / f"data-{number:06d}.tar"
            tar = tarfile.open(shard, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115 (closed at the next shard)
            number += 1
        assert tar is not None
        for part, content in parts.items():
            member = tarfile.TarInfo(f"{key}.{part}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            tar.members.clear()  # tarfile keeps what it has written
    if tar is not None:
        tar.close()


MAKERS: dict[str, Callable[[Path, float], None]] = {
    "text": _text,
    "jpeg": _jpeg,
    "photos": _large_photos,
    "video": _videos,
    "audio": _audio,
    "chat": _chat,
    "chat_tokens": functools.partial(_tokens, "chat_tokens", 20_000),
    "long_tokens": functools.partial(_tokens, "long_tokens", 10_000),
    "aux": _aux,
    "blend": _blend,
    "sources": _sources,
    "cold": _cold,
    "million": _million,
    "ten_thousand": _ten_thousand,
}
