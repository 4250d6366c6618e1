"""What is fuzzed: every reader of foreign bytes. To add one, add a line to `TARGETS`.

Each line names what builds good files in an empty folder, and what reads them after one of them was damaged.
"""

import contextlib
import functools
import gzip
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bridge_data import WorkerConfig, get_val_dataset
from bridge_data.data import open_shards
from bridge_data.data.blocks import BlockBudget, BlockCache, ChunkBlocks
from bridge_data.data.jsonl_file import open_jsonl
from bridge_data.decode import SampleDecoder
from bridge_data.decode.image import IMAGE_FORMS, encoded_size
from bridge_data.decode.media_metadata import decode_metadata
from bridge_data.decode.source_reader import open_source_reader
from bridge_data.encoders.chat import render_conversation
from bridge_data.encoders.pretrained import open_image_processor, open_tokenizer
from bridge_data.errors import ConfigError, SampleError
from bridge_data.loader.checkpoint.checkpoint_folder import encoded as encoded_state
from bridge_data.loader.checkpoint.checkpoint_folder import load_states, read_checkpoint, save_states
from bridge_data.order.state import LoaderState
from bridge_data.plan import load_plan
from bridge_data.plugins.convert.media_files import MediaRoot
from bridge_data.plugins.convert.record_layout import RecordLayout, find_columns
from bridge_data.plugins.convert.source_kinds import open_source
from bridge_data.plugins.tables.table_records import open_records
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.part_encoding import encode_sample
from bridge_data.prepare.record_source import SourceConfig, SourceRecord
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import PrepareConfig, prepare
from bridge_data.task import DefaultTaskEncoder
from bridge_data.task.cooking import Cooker
from bridge_data.task.stores.part_reader import PartReader
from tests.data.chunks import write_chunks, write_rows
from tests.decode.av import media
from tests.decode.pictures import encoded, picture
from tests.fuzz.target import Target, parts
from tests.loader.checkpoint.states import make_state
from tests.plan.joins import joined, prepared_plan, texts
from tests.plugins.convert import originals
from tests.prepared import write_blend, write_texts
from tests.tables import IMAGE, save_to_disk, table_of, write_parquet

MAX_SAMPLES = 40


# Data sets as a whole


def data_set(*names: str) -> Callable[[Path], list[Path]]:
    """Builds a prepared data set of texts, of which the files `names` in `.nv-meta` are damaged."""

    def build(folder: Path) -> list[Path]:
        write_texts(folder / "data", 30, lambda number: f"text {number}", per_shard=10, ratio="2,1,0")
        return [folder / "data" / ".nv-meta" / name for name in names]

    return build


def tar_indexes(folder: Path) -> list[Path]:
    """A data set that has no index of ours, only those that Energon makes too."""
    data_set()(folder)
    (folder / "data" / ".nv-meta" / "index.bridge").unlink()
    return sorted((folder / "data").glob("*.tar.idx"))


def shards(folder: Path) -> list[Path]:
    data_set()(folder)
    return sorted((folder / "data").glob("*.tar"))


def read_by_key(file: Path) -> object:
    """Finds parts by their keys, as auxiliary data are read."""
    reader = PartReader(file.parent.parent)
    for number in range(30):
        with contextlib.suppress(SampleError):
            assert reader.read(reader.find(f"{number:06d}.txt")) == f"text {number}".encode()
    return [reader.index.keys(shard) for shard in range(3)]


def prepare_shard(file: Path) -> object:
    """Prepares a folder with a damaged shard, and reads what was accepted of it."""
    folder = file.parent
    prepare(folder, functools.partial(split_by_ratio, ratio=parse_ratio("1,0,0")), PrepareConfig(num_workers=1))
    shards = open_shards(folder, "train")
    reader = shards.reader()
    return [reader.read(index) for index in range(shards.num_samples)]


def read_texts(file: Path) -> object:
    """Opens the data set around `file` and reads some samples of each part: their own text, or one of our errors."""
    root = next(folder for folder in file.parents if folder.name == "data")
    return [read_plan(root, part) for part in ("train", "val")]


def read_plan(path: Path, part: str) -> list[str]:
    plan = load_plan(path, split_part=part, training=False)
    seen = []
    for source in plan.sources:
        reader = open_source_reader(source, SampleDecoder())
        for index in range(min(source.num_samples, MAX_SAMPLES)):
            try:
                sample = reader.build(reader.read(index), index)
            except SampleError as error:
                seen.append(str(error))
                continue
            text = getattr(sample, "text", None)
            if text is not None:
                number = int(text.removeprefix("text "))
                assert sample.__key__ == f"data-{number // 10:04d}.tar/{number:06d}", (sample.__key__, text)
            seen.append(str(text))
    return seen


def blend(folder: Path) -> list[Path]:
    for name in ("a", "b"):
        write_texts(folder / "data" / name, 12, lambda number: f"text {number}", per_shard=10)
    inner = write_blend(folder / "data" / "inner.yaml", {"a": 1, "b": 2.5})
    outer = folder / "data" / "outer.yaml"
    outer.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend_epochized: &all\n"
        "      - {path: a, repetitions: 2, subflavors: {x: 1, y: [a, b]}, subset: {range: [10%, 90%]}}\n"
        "      - path: ./b\n        repetitions: 0.5\n        shuffle_over_epochs_multiplier: 3\n"
        "  val:\n    path: inner.yaml\n    split_part: train\n  test:\n    blend_epochized: *all\n"
    )
    first = folder / "data" / "first.yaml"
    first.write_text("splits:\n  train:\n    datasets:\n    - path: a\n      weight: 1.5\n    - path: b\n")
    first.write_text("__module__: megatron.energon\n__class__: Metadataset\n" + first.read_text())
    return [outer, inner, first]


def read_blend(file: Path) -> object:
    for part in ("train", "val", "test"):
        try:
            load_plan(file, split_part=part, training=True)
        except ConfigError:
            if part == "train":
                raise
    return read_plan(file, "train")


def join(folder: Path) -> list[Path]:
    for name, keys in (("a", "abcdef"), ("b", "fdabce")):
        texts(folder / "data" / name, keys)
    file = joined(folder / "data" / "join.yaml", [{"path": "a"}, {"path": "b", "nonmatch": "skip"}])
    prepared_plan(file)
    return [file, *(folder / "data" / "join.yaml.joins").iterdir()]


def read_join(file: Path) -> object:
    root = next(folder for folder in file.parents if folder.name == "data")
    plan = load_plan(root / "join.yaml", training=False)
    records = plan.sources[0].records.reader()
    for index in range(min(plan.sources[0].num_samples, MAX_SAMPLES)):
        records.read(index)
    return None


# JSON lines


def jsonl(folder: Path) -> list[Path]:
    path = folder / "a.jsonl"
    lines = [json.dumps({"n": number, "t": "é" * (number % 7), "l": [number, {"a": None}]}) for number in range(20)]
    path.write_text("\n\n".join(lines) + "\n")
    prepare_jsonl(path)
    split = folder / "a.jsonl.split.yaml"
    split.write_text("split_parts: {train: [0, 15], val: ['80%', '100%'], rest: [15, end]}\n")
    return [path, folder / "a.jsonl.idx", split]


def read_jsonl(file: Path) -> object:
    path = file.parent / "a.jsonl"
    content = path.read_bytes()
    lines = {line.strip() for line in content.split(b"\n")}
    records = open_jsonl(path, "train")
    reader, decoder = records.reader(), SampleDecoder()
    for index in range(min(records.num_samples, MAX_SAMPLES)):
        try:
            raw = reader.read(index)
            assert raw.parts["json"] in lines
            decoder(dict(raw.parts, __key__=raw.key))
        except SampleError:
            continue
    load_plan(path, split_part="val", training=False)
    return None


def prepare_lines(file: Path) -> object:
    try:
        return prepare_jsonl(file, num_workers=1)
    finally:
        (file.parent / "a.jsonl.split.yaml").unlink(missing_ok=True)


# States


def state_files(folder: Path) -> list[Path]:
    save_states(folder / "saved", make_state(), step=3, world_size=2)
    bare = folder / "bare.pt"
    torch.save(make_state(), bare)
    whole = folder / "one.pt"
    whole.write_bytes(encoded_state(LoaderState.from_dict(make_state()), step=3, rank=0, world_size=1))
    return [*sorted((folder / "saved").iterdir()), bare, whole]


def read_state_files(file: Path) -> object:
    return load_states(file.parent) if file.parent.name == "saved" else read_checkpoint(file)


def state_json(folder: Path) -> list[Path]:
    path = folder / "state.json"
    path.write_text(json.dumps(make_state(1, 3)))
    return [path]


def read_state_json(file: Path) -> object:
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return None
    state = LoaderState.from_dict(content)
    assert LoaderState.from_dict(state.to_dict()) == state
    return None


# Single parts


def saved(save: Callable[..., Any], value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    save(file, value, **options)
    return file.getvalue()


def packed(folder: Path) -> list[Path]:
    """Parts in binary formats of plain data, and compressed ones."""
    import cbor2
    import msgpack
    import webdataset

    for name, content in (
        ("a.msgpack", msgpack.packb(LABEL)),
        ("b.cbor", cbor2.dumps(LABEL)),
        ("c.ten", bytes(webdataset.tenbin.encode_buffer([ARRAY, ARRAY[0]]))),
        ("d.json.gz", gzip.compress(json.dumps(LABEL).encode())),
        ("e.npy.gz", gzip.compress(saved(np.save, ARRAY))),
    ):
        (folder / name).write_bytes(content)
    return sorted(folder.iterdir())


def decode(file: Path) -> object:
    return SampleDecoder().decode(file.name, file.read_bytes())


def images(folder: Path) -> list[Path]:
    for name, kind, mode, options in (
        ("a.jpg", "JPEG", "RGB", {}),
        ("b.jpg", "JPEG", "L", {"progressive": True}),
        ("c.jpg", "JPEG", "CMYK", {}),
        ("a.png", "PNG", "RGBA", {}),
        ("b.png", "PNG", "P", {}),
        ("a.webp", "WEBP", "RGBA", {}),
        ("a.gif", "GIF", "P", {}),
        ("a.tiff", "TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("b.tiff", "TIFF", "L", {}),
        ("a.bmp", "BMP", "RGB", {}),
        ("a.ppm", "PPM", "RGB", {}),
        ("a.ico", "ICO", "RGBA", {}),
        ("a.jp2", "JPEG2000", "RGB", {}),
        ("a.avif", "AVIF", "RGB", {}),
        ("a.tga", "TGA", "RGB", {}),
    ):
        (folder / name).write_bytes(encoded(picture((48, 40), mode), kind, **options))
    return sorted(folder.iterdir())


def decode_image(file: Path) -> object:
    content = file.read_bytes()
    made = SampleDecoder(image_decode="rgb8").decode(file.name, content)
    assert made.dtype == np.uint8 and made.ndim == 3, (made.dtype, made.shape)
    try:
        assert tuple(encoded_size(content)) == made.shape[:2]
    except (OSError, ValueError, SyntaxError):
        raise AssertionError("an image that can be decoded has no size") from None
    for form in ("pil", "torchrgba8", "l"):
        assert form in IMAGE_FORMS
        SampleDecoder(image_decode=form, image_size=(8, 9)).decode(file.name, content)
    return None


def videos(folder: Path) -> list[Path]:
    for number, name in enumerate(
        ("mp4 with audio, late", "webm, VP8", "avi with B-frames", "mpeg transport stream", "flv")
    ):
        settings = media.VIDEOS[name] | {"times": range(12), "num_samples": 6000}
        (folder / f"{number}.{settings['container'].replace('matroska', 'mkv')}").write_bytes(media.write(**settings))
    return sorted(folder.iterdir())


def sounds(folder: Path) -> list[Path]:
    for number, name in enumerate(("wav", "flac", "mp3", "m4a", "ogg, Opus", "ogg, Vorbis", "mka, AAC")):
        (folder / f"{number}.wav").write_bytes(media.write(**media.SOUNDS[name], num_samples=9000))
    return sorted(folder.iterdir())


def decode_medium(file: Path) -> object:
    content = file.read_bytes()
    decoder = SampleDecoder().decode("a.mp4", content)
    try:
        decoder.suppress_warnings = True
        decoder.get_metadata(get_audio_num_samples=True)
        decoder.get_frames(video_decode_audio=True)
        if decoder.has_video_stream():
            decoder.get_single_frames_uniform(2)
    finally:
        decoder.close()
    return None


def read_metadata(file: Path) -> object:
    """Media metadata as the rows of the SQLite index have them."""
    try:
        text = file.read_bytes().decode()
    except UnicodeDecodeError:
        return None  # SQLite's text is Unicode
    try:
        return decode_metadata(file.stem, text)
    except (ValueError, TypeError):
        return None  # which `MediaIndex.get` makes a DatasetError of


# Tokenizers and templates


def tokenizers(folder: Path) -> list[Path]:
    from tests.encoders.multimodal_parts import image_processor, make_tokenizer

    make_tokenizer().save_pretrained(folder / "t")
    image_processor().save_pretrained(folder / "t")
    return sorted(path for path in (folder / "t").iterdir() if path.suffix in (".json", ".jinja"))


def read_tokenizer(file: Path) -> object:
    name = "image_processor" if "processor" in file.name else "tokenizer"
    return (open_image_processor if name == "image_processor" else open_tokenizer)(file.parent)


def templates(folder: Path) -> list[Path]:
    from tests.encoders.multimodal_parts import TURNS, TURNS_WITHOUT_MARKS

    (folder / "a.jinja").write_text(TURNS)
    (folder / "b.jinja").write_text(TURNS_WITHOUT_MARKS)
    return sorted(folder.iterdir())


def render(file: Path) -> object:
    from tests.encoders.multimodal_parts import make_tokenizer

    turns = [{"role": "user", "content": "what is this ?"}, {"role": "assistant", "content": "a boat"}]
    return render_conversation(make_tokenizer(), turns, file.read_text(errors="replace"), "assistant")


class _Texts(DefaultTaskEncoder):
    cookers = (Cooker(lambda sample: sample),)


def open_val(file: Path) -> object:
    """A JSONL file as the public function opens it."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    return get_val_dataset(file, split_part="train", worker_config=config, batch_size=1, task_encoder=_Texts())


def tables(folder: Path) -> list[Path]:
    """The same rows as Parquet files, of small pages and of one with large values, and as `datasets` saves them; and
    shards of MDS and of litData."""
    numbers = range(60)
    columns: dict[str, Any] = {"text": [f"text {n}" for n in numbers], "tokens": [list(range(n % 4)) for n in numbers]}
    small = table_of(columns)
    image = [None if n % 9 == 0 else {"bytes": bytes([n]) * 5000, "path": "a.png"} for n in numbers]
    large = table_of({**columns, "image": image}, {"image": IMAGE})
    array, pixel = struct.pack("<4I", 1, 2, 1, 3) + bytes(6), struct.pack("<3I", 2, 1, 3) + b"RGB" + bytes(6)
    samples = [{"text": b"text", "a": array, "b": pixel}] * 10
    return [
        write_parquet(folder / "a.parquet", small, per_group=40, data_page_size=64),
        write_parquet(folder / "b.parquet", large, per_group=40, data_page_version="2.0", compression="none"),
        save_to_disk(folder, large, per_batch=25) / "data-00000-of-00001.arrow",
        originals.captioned_mds(folder / "mds", 10) / "shard.00000.mds",
        write_chunks(folder / "chunks", samples, {"text": "str", "a": "numpy", "b": "pil"}) / "chunk-0-0.bin",
        write_rows(folder / "rows", small) / "chunk-0-0.bin",
    ]


def read_table(file: Path) -> object:
    """Reads rows in blocks, and then singly."""
    records = open_records(file, [(file.name, str(file))], "train", list)
    seen = []
    alone = records.reader()
    for reader in (BlockCache(records.shards, records.reader(), ChunkBlocks(20, 5), None, BlockBudget(1 << 20)), alone):
        for index in range(min(records.num_samples, MAX_SAMPLES)):
            with contextlib.suppress(SampleError):
                seen.append(reader.read(index).parts)
    return seen


ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
LABEL = {"a": [1, 2.5, None, {"b": "é", "c": [True, []]}], "d": -7}

# Sources of conversions


def convertible(name: str) -> Callable[[Path], list[Path]]:
    """Builds a source of this form, all files of which are damaged."""

    def build(folder: Path) -> list[Path]:
        made = {
            "mds": lambda: originals.captioned_mds(folder, 12),
            "csv": lambda: originals.write_csv(folder / "a.csv", originals.rows(12)),
            "json list": lambda: (folder / "a.json").write_text(json.dumps(originals.llava(6))),
            "coco": lambda: originals.write_coco(folder / "a.json", 6),
            "parquet": lambda: originals.write_parquet(folder / "a.parquet", 6),
            "arrow": lambda: originals.write_arrow(folder / "a.arrow", originals.table_of(6)),
        }
        made[name]()
        return sorted(folder.iterdir())

    return build


def read_source(name: str, file: Path) -> object:
    """Opens a source and makes samples of its records."""
    is_mds = name == "mds"
    source = open_source(file.parent if is_mds else file, SourceConfig(format=name.replace("json list", "json")))
    layout = RecordLayout(columns=tuple(find_columns(source)), media_root=MediaRoot(file.parent))
    made = []
    for block in source.blocks():
        for record in source.read(block):
            if isinstance(record, SourceRecord):
                with contextlib.suppress(SampleError, ConfigError):
                    made.append(encode_sample(layout.sample_of(record)).key)
    return made


SOURCES = ("mds", "csv", "json list", "coco", "parquet", "arrow")

TARGETS = [
    Target("metadataset", blend, read_blend),
    Target("folder", data_set("dataset.yaml", "split.yaml", ".info.json", "index.uuid"), read_texts),
    Target("join", join, read_join),
    Target("tar", shards, prepare_shard),
    Target("tar index", tar_indexes, read_texts),
    Target("index.bridge", data_set("index.bridge"), read_texts),
    Target("index.sqlite", data_set("index.sqlite"), read_by_key),
    Target("jsonl", jsonl, read_jsonl),
    Target("jsonl prepare", lambda folder: jsonl(folder)[:1], prepare_lines),
    Target("jsonl open", jsonl, lambda file: open_val(file.parent / "a.jsonl")),
    Target("tables", tables, read_table),
    Target("state files", state_files, read_state_files),
    Target("state", state_json, read_state_json),
    Target("json", parts(a_json=json.dumps(LABEL).encode(), b_json=b'[1, "x"]', c_txt=b"text", d_cls=b"17"), decode),
    Target("arrays", parts(a_npy=saved(np.save, ARRAY), b_npz=saved(np.savez_compressed, ARRAY)), decode),
    Target("packed", packed, decode),
    Target("tensors", parts(a_pth=saved(lambda file, value: torch.save(value, file), {"a": torch.ones(3)})), decode),
    Target("images", images, decode_image),
    Target("video", videos, decode_medium),
    Target("audio", sounds, decode_medium),
    Target(
        "media metadata", parts(image=b'{"width":4,"height":3,"format":"JPEG","mode":"RGB"}', av=b"{}"), read_metadata
    ),
    Target("tokenizer", tokenizers, read_tokenizer),
    Target("chat template", templates, render),
    *(Target(f"convert {name}", convertible(name), functools.partial(read_source, name)) for name in SOURCES),
]
"""All targets, each with a name of its own."""

BY_NAME = {target.name: target for target in TARGETS}
