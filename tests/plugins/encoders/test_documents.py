"""Documents of texts and pictures equal what the processors make of their text, from rows as they are published."""

import functools
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bridge_data import (
    CaptioningSample,
    ConfigError,
    CrudeSample,
    InterleavedSample,
    SampleError,
    SimilarityInterleavedSample,
    SkipSample,
    TextSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from bridge_data.counts import COUNTS
from bridge_data.encoders import (
    ConversationSample,
    DocumentConfig,
    DocumentTaskEncoder,
    FamilyConfig,
    ImageLimits,
    MissingPicture,
    QwenVLDocumentTaskEncoder,
    Visual,
    VisualSettings,
    cook_document,
    text_encoder,
)
from bridge_data.plugins.convert.column_guess import guess_of_samples
from bridge_data.plugins.encoders.documents import piece_ends
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.samples.differences import first_difference
from tests.encoders.parts import CASES, TEXT, assert_equal, encode, make_tokenizer, picture, png
from tests.encoders.qwen_parts import FAMILIES, make_family, make_processor, qwen_tokenizer
from tests.plugins.convert.originals import converted, write_jsonl
from tests.prepared import CRUDE, write_dataset
from tests.tables import table_of, write_parquet

LLAVA = "llava"


@functools.cache
def parts_of(name: str) -> tuple[type[Any], Any, Any, Any]:
    """The encoder's class, the tokenizer, the family and the processor."""
    if name in FAMILIES:
        return QwenVLDocumentTaskEncoder, qwen_tokenizer(name), make_family(name), make_processor(name)
    case = CASES[name]
    tokenizer = make_tokenizer(begin=case.begin)
    return DocumentTaskEncoder, tokenizer, case.make(), case.processor(tokenizer)


def make_encoder(name: str = LLAVA, seq_length: int = 2048, **settings: Any) -> Any:
    kind, tokenizer, family, _ = parts_of(name)
    return kind(tokenizer, family, DocumentConfig(**settings), seq_length=seq_length)


def document(*sequence: Any, key: str = "d") -> InterleavedSample:
    return InterleavedSample(__key__=key, sequence=list(sequence))


def draw_document(seed: int) -> list[Any]:
    """Texts and one to four pictures, in any order."""
    draw = random.Random(seed)
    parts: list[Any] = [picture((draw.randint(2, 90), draw.randint(2, 90)), seed * 10 + n) for n in range(seed % 4 + 1)]
    for _ in range(draw.randint(1, 4)):
        words = " ".join(draw.choice(TEXT.split()) for _ in range(draw.randint(1, 12)))
        parts.insert(draw.randint(0, len(parts)), words + draw.choice(["", " ", "\n\n"]))
    return parts


def files(parts: Sequence[Any]) -> list[Any]:
    return [part if isinstance(part, str) else png(part) for part in parts]


@pytest.mark.parametrize("name", [*CASES, *FAMILIES])
def test_documents_are_as_the_processor_has_their_text(name: str) -> None:
    _, tokenizer, family, processor = parts_of(name)
    encoder = make_encoder(name, separator="")
    written = getattr(family, "written_image", family.image_token)
    for start in range(0, 9, 3):
        drawn = [draw_document(seed) for seed in range(start, start + 3)]
        texts = ["".join(part if isinstance(part, str) else written for part in parts) for parts in drawn]
        made = processor(
            text=[text + tokenizer.eos_token for text in texts],
            images=[[part for part in parts if not isinstance(part, str)] for parts in drawn],
            padding=True,
            padding_side="right",
            return_tensors="pt",
        )
        got = encoder.batch([encode(encoder, document(*files(parts))) for parts in drawn]).model_inputs()
        labels = got.pop("labels")
        assert_equal(got, {field: made[field] for field in got})
        assert {*made} <= {*got}
        for row, ids, parts in zip(labels, made["input_ids"], drawn, strict=True):
            learnt = row != -100
            assert torch.equal(row[learnt], ids[learnt])
            said = [token for part in [*_runs(parts), tokenizer.eos_token] for token in _ids(tokenizer, part)]
            is_first = isinstance(parts[0], str) and tokenizer.bos_token_id is None
            assert row[learnt].tolist() == said[is_first:]


def _runs(parts: Sequence[Any]) -> list[str]:
    """The texts between the pictures."""
    return "".join(part if isinstance(part, str) else "\0" for part in parts).split("\0")


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids if text else []


@pytest.mark.parametrize("name", [LLAVA, "idefics3", "qwen2_5_vl"])
def test_pieces_of_long_documents_lose_nothing_and_cut_no_picture(name: str) -> None:
    family, num_pieces = parts_of(name)[2], 0
    for seed in range(8):
        parts = [part for one in draw_document(seed) for part in (one, "and")]
        images = [part for part in parts if not isinstance(part, str)]
        sample = document(*files(parts))
        whole = encode(make_encoder(name), sample)
        largest = max(encode(make_encoder(name), document(png(image), "a")).length for image in images)
        encoder = make_encoder(name, seq_length=max(largest, whole.length // 3))
        made = encoder.preencode_sample(sample)
        made = [made] if hasattr(made, "tokens") else [*made]
        pieces = [encoder.postencode_sample(piece) for piece in made]
        tokens, labels = (torch.cat([getattr(piece, field) for piece in pieces]) for field in ("tokens", "labels"))
        left = whole.length - len(tokens)  # the end alone is no piece: it was a label
        assert left in (0, 1)
        assert torch.equal(tokens, whole.tokens[: len(tokens)])
        assert torch.equal(labels, whole.labels[: len(tokens)])
        assert torch.cat([piece.media["pixel_values"] for piece in pieces if piece.media]).equal(
            whole.media["pixel_values"]
        )
        for before, piece in zip(made, pieces, strict=True):
            own, images = images[: len(before.images)], images[len(before.images) :]
            texts = [family.image_text((image.height, image.width), 0) for image in own]
            expected = sum(times for text in texts for part, times in text if part == family.image_token)
            assert encoder.costs(before)["image_tokens"] == expected
            assert piece.length <= encoder.seq_length
        assert images == []
        num_pieces += len(pieces)
    assert num_pieces > 16


def test_pieces_are_cut_nowhere_but_in_a_text_or_beside_a_picture() -> None:
    draw = random.Random(0)
    for _ in range(300):
        limit, length, pictures = draw.randint(4, 12), 0, []
        for _ in range(draw.randint(0, 6)):
            first = length + draw.choice([0, 0, 1, 5, 20])
            length = first + draw.randint(1, limit)
            pictures.append((first, length))
        length += draw.choice([1, 1, 3, 30])
        ends = piece_ends(pictures, length, limit)
        assert ends[-1] == length
        assert all(0 < end - start <= limit for start, end in itertools.pairwise((0, *ends)))
        assert not any(first < end < after for first, after in pictures for end in ends)


def test_a_picture_stays_with_the_text_after_it_and_the_last_label_of_a_piece_is_the_next_token() -> None:
    tokenizer = make_tokenizer()
    image, words = png(picture((20, 20))), "a boat on the sea"
    size, num_words = encode(make_encoder(), document(image, "a")).length - 2, len(_ids(tokenizer, words))
    encoder = make_encoder(seq_length=num_words + size)
    first, second = encoder.preencode_sample(document(words, image, " sea"))
    assert (len(first.tokens), len(first.images), len(second.images)) == (num_words, 0, 1)
    assert first.labels.tolist() == [*first.tokens[1:].tolist(), -100]
    pieces = [*encoder.preencode_sample(document(image, words * 9))]
    for before, after in itertools.pairwise(pieces):
        assert len(before.tokens) == encoder.seq_length
        assert before.labels[-1] == after.tokens[0]


def test_other_ways_with_long_documents() -> None:
    image = png(picture((20, 20)))
    long = document("a boat " * 9, image, "on the sea")
    cut = encode(make_encoder(seq_length=30, overlong="truncate"), long)
    whole = encode(make_encoder(), long)
    assert cut.media == {} and torch.equal(cut.tokens, whole.tokens[: cut.length])
    with pytest.raises(SampleError, match=r"'d': it has .* tokens, a sequence holds 30"):
        encode(make_encoder(seq_length=30, overlong="error"), long)
    with pytest.raises(SkipSample):
        encode(make_encoder(seq_length=30, overlong="skip"), long)
    for first, after in ((image, "a boat"), ("a", image)):  # nothing is left before a picture that is too large
        with pytest.raises(SkipSample):
            encode(make_encoder(seq_length=8, overlong="truncate"), document(first, after))
    cut = encode(make_encoder(seq_length=8, overlong="truncate"), document("a boat on", image, "a" * 9))
    assert cut.length < 8 and cut.media == {}
    with pytest.raises(SampleError, match=r"'d': a picture has more tokens .* holds 8: set ImageLimits"):
        encode(make_encoder(seq_length=8), long)


def test_samples_of_energon_and_captions_are_documents_and_chats_stay_chats() -> None:
    one, two = (png(picture((20, 20 + n), n)) for n in range(2))
    encoder = make_encoder()

    def same(sample: Any, *sequence: Any) -> None:
        assert first_difference(encode(encoder, sample), encode(encoder, document(*sequence))) is None

    texts = {"__key__": "d", "images": [one, two], "texts": ["a boat .", "the sea .", "red ."]}
    similarity = torch.tensor([[0.1, 0.2, 0.9], [0.8, 0.1, 0.0]])
    ordered = (two, "a boat .", " the sea .", one, "red .")
    same(SimilarityInterleavedSample(**texts, matched_text_indices=[2, 0]), *ordered)
    same(SimilarityInterleavedSample(**texts, similarity_matrix=similarity), *ordered)
    for wrong in ({"matched_text_indices": [2]}, {"matched_text_indices": [2, 3]}, {}):
        with pytest.raises(SampleError, match="'d': its 2 pictures stand at"):
            encode(encoder, SimilarityInterleavedSample(**texts, **wrong))
    turns = {**texts, "images": [], "texts": [{"from": "human", "value": "a"}]}
    for wrong in (turns, {**texts, "images": ["a.png"], "matched_text_indices": [0]}):
        with pytest.raises(SampleError, match="make a ConversationSample"):
            encode(encoder, SimilarityInterleavedSample(**wrong))
    pixels = torch.from_numpy(np.array(picture((20, 20)))).permute(2, 0, 1)
    same(CaptioningSample(__key__="d", image=pixels, caption=" a boat\n"), one, "a boat")
    same(TextSample(__key__="d", text="a boat"), "a boat")
    chat = [{"role": "user", "content": "what is this"}, {"role": "assistant", "content": "a boat"}]
    said = encode(encoder, ConversationSample(__key__="d", messages=chat, images=[one]))
    tokenizer = make_tokenizer()
    assert tokenizer.decode(said.tokens, skip_special_tokens=True).startswith("USER: ")
    assert int(said.loss_mask.sum()) == len(_ids(tokenizer, " a boat")) + 1


A, B = (png(picture((9, 9), n)) for n in range(2))
INFO = [{"image_name": "b.png", "matched_text_index": 1}, {"image_name": "a.png", "matched_text_index": 1}]
PARTS = [{"type": "text", "text": "x"}, {"type": "image", "image": "a.png"}, "y", {"text": "z", "image": "b.png"}]
ROWS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "OBELICS": ({"images": [{"bytes": A, "path": None}, None, B], "texts": [None, "x", None]}, [A, "x", B]),
    "OBELICS, names": ({"json": {"images": ["a.png", None], "texts": [None, ""]}}, [A, ""]),
    "OBELICS, parts": ({"json": {"texts": [None, "x", None]}, "0.png": A, "2.png": B}, [A, "x", B]),
    "OBELICS, parts for empty texts": ({"json": {"texts": ["", "x"]}, "0.png": A}, [A, "x"]),
    "OBELICS, texts alone": ({"images": [], "texts": ["", "x"]}, ["", "x"]),
    "OBELICS, parts for URLs": (
        {"json": {"images": ["http://x/1", None, "http://x/2"], "texts": [None, "x", None]}, "0.png": A, "1.png": B},
        [A, "x", B],
    ),
    "OBELICS, a part less": ({"json": {"texts": [None, "x", None]}, "2.png": B}, ["no picture is stored", "x", B]),
    "OBELICS, URLs": ({"images": ["http://x/1.png", None], "texts": [None, "x"]}, ["is not downloaded", "x"]),
    "OBELICS, neither": ({"images": [None, None], "texts": [None, "x"]}, ["place 1 has neither", "x"]),
    "InfiMM": ({"text_list": ["x", None], "image_list": [None, "b.png"]}, ["x", B]),
    "MMC4": ({"json": {"text_list": ["x", "y"], "image_info": INFO}}, ["x", B, A, "y"]),
    "MMC4, no such file": (
        {"json": {"text_list": ["x"], "image_info": [{"image_name": "c.png", "matched_text_index": 0}]}},
        ["c.png", "x"],
    ),
    "parts": ({"json": {"sequence": PARTS}}, ["x", A, "y", "z", B]),
    "parts of CoMM": (
        {"content": [{"type": "image", "url": "http://x/1", "image_path": "b.png"}, {"type": "text", "text": "x"}]},
        [B, "x"],
    ),
    "a part with settings": (
        {"parts": [{"type": "image", "image": "a.png", "max_pixels": 64}, "x"]},
        [Visual(A, VisualSettings(max_pixels=64)), "x"],
    ),
    "parts alone": ({"json": [{"type": "image"}, {"type": "text", "text": "x"}], "png": A}, [A, "x"]),
    "placeholders": ({"json": {"text": "x<image>y", "images": ["a.png"]}}, ["x", A, "y"]),
    "caption": ({"txt": "x", "jpg": A, "json": {"width": 9, "status": "success"}}, [A, "x"]),
    "caption of a file": ({"image_path": "a.png", "caption": "x"}, [A, "x"]),
    "settings of a row": (
        {"images": ["a.png", "b.png"], "text": "x", "max_pixels": [64, None]},
        [Visual(A, VisualSettings(max_pixels=64)), B, "x"],
    ),
    "text": ({"text": "x"}, ["x"]),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_read_as_they_are_published(name: str, tmp_path: Path) -> None:
    row, expected = ROWS[name]
    got = _cooked(row, tmp_path).sequence
    assert len(got) == len(expected)
    for part, wanted in zip(got, expected, strict=True):
        if isinstance(part, MissingPicture):
            assert wanted in part.why
        else:
            assert part == wanted


def _cooked(row: dict[str, Any], folder: Path) -> Any:
    from bridge_data.task.stores import SystemFileStore

    for name, content in (("a.png", A), ("b.png", B)):
        (folder / name).write_bytes(content)
    return cook_document(CrudeSample({"__key__": "d", **row}), images=SystemFileStore(folder))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"images": ["a.png"], "texts": ["x", "y"]}, "2 texts and 1 images"),
        ({"images": ["a.png", None], "texts": ["x", "y"]}, "place 1 has 'x' and 'a.png'"),
        ({"json": {"text_list": ["x"], "image_info": [{"image_name": "a.png"}]}}, "matched_text_index None of 1 texts"),
        ({"json": {"text_list": ["x"], "image_info": [{"matched_text_index": 1}]}}, "matched_text_index 1 of 1 texts"),
        ({"json": {"text_list": ["x"], "image_info": 5}}, "its 'image_info' is 5"),
        ({"json": {"texts": ["x", None]}, "0.png": A, "5.png": B}, "1 places of pictures, but the parts 0.png, 5.png"),
        ({"sequence": ["x", {"type": "audio"}]}, "a part is {'type': 'audio'}"),
        ({"content": [{"image": ["a.png", "b.png"]}]}, "a part has 2 pictures"),
        ({"text": "x <image>", "images": []}, "1 placeholders '<image>' for 0 pictures"),
        ({"text": "x", "video": "a.mp4"}, "has 'video', but a document"),
        ({"number": 5}, "expected turns, or a document"),
    ],
)
def test_other_rows_are_refused(row: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="'d'") as error:
        _cooked(row, tmp_path)
    assert told in str(error.value)


def test_missing_pictures_are_an_error_or_left_out_as_the_settings_say() -> None:
    gone, line = MissingPicture("names 'a.png', which is not there"), png(picture((900, 2)))
    for part in (gone, None):
        with pytest.raises(SampleError, match=r"'d': (names 'a.png'|one of its).*missing_image='drop'"):
            encode(make_encoder(), document(A, "a boat", part))
        with pytest.raises(SkipSample):
            encode(make_encoder(missing_image="skip"), document(A, "a boat", part))
        for one in (part, b"no picture", line):
            got = encode(make_encoder(missing_image="drop"), document(A, "a boat", one, "on the sea"))
            wanted = encode(make_encoder(), document(A, "a boat", "on the sea"))
            assert first_difference(got, wanted) is None
    for policy, kind in (("skip", SkipSample), ("error", SampleError)):
        with pytest.raises(kind, match="no picture"):
            encode(make_encoder(missing_image="drop", no_image=policy), document(gone, "a boat"))
    assert encode(make_encoder(missing_image="drop"), document(gone, "a boat")).media == {}


def test_what_is_no_document_is_refused() -> None:
    with pytest.raises(SkipSample, match="no words"):
        encode(make_encoder(), document(A, " \n"))
    with pytest.raises(SampleError, match="'d': a text has '<image>', which stands for a medium"):
        encode(make_encoder(), document(A, "the tag <image>"))
    with pytest.raises(SampleError, match="half of a pair"):
        encode(make_encoder(), document(A, "a \ud83d"))
    with pytest.raises(SampleError, match="image 1 says max_pixels=64, which the family Llava cannot follow"):
        encode(make_encoder(), document(Visual(A, VisualSettings(max_pixels=64)), "a"))
    plain = text_encoder(make_tokenizer(template="{{ messages }}"))
    with pytest.raises(ConfigError, match=r"got InterleavedSample; .*DocumentTaskEncoder of bridge_data.encoders"):
        encode(plain, document(A, "a boat"))
    row: Any = CrudeSample({"__key__": "d", "images": [A, None], "texts": [None, "x"]})
    with pytest.raises(SampleError, match="no turns, but a document: DocumentTaskEncoder"):
        plain.cookers[0].cook(row)
    _, tokenizer, family, _ = parts_of(LLAVA)
    for wrong in ((None, None), (family, FamilyConfig())):
        with pytest.raises(ConfigError, match=r"expected a family .*, and a DocumentConfig"):
            DocumentTaskEncoder(tokenizer, *wrong)
    with pytest.raises(ConfigError, match=r"family=Qwen2VL\): makes no M-RoPE .* QwenVLDocumentTaskEncoder"):
        DocumentTaskEncoder(qwen_tokenizer("qwen2_vl"), make_family("qwen2_vl"))
    with pytest.raises(ConfigError, match=r"missing_image='keep'.*'error', 'skip', 'drop'"):
        DocumentConfig(missing_image="keep")  # type: ignore[arg-type]


def test_settings_of_a_picture_reach_families_that_follow_them() -> None:
    image = png(picture((80, 80)))
    small = encode(make_encoder("qwen2_vl"), document(Visual(image, VisualSettings(max_pixels=256)), "a boat"))
    assert (
        small.media["image_grid_thw"].prod()
        < encode(make_encoder("qwen2_vl"), document(image, "a")).media["image_grid_thw"].prod()
    )
    tight = make_encoder("qwen2_vl", images=ImageLimits(max_image_tokens=20))
    assert (encode(tight, document(image, "a", image, "b")).aligned["mm_token_type_ids"] > 0).sum() <= 20


def test_batches_for_bridge_learn_the_same_texts() -> None:
    drawn = [document(*files(draw_document(seed))) for seed in range(2)]
    ours, bridge = make_encoder("qwen2_5_vl"), make_encoder("qwen2_5_vl", layout="bridge")
    native, made = (encoder.batch([encode(encoder, one) for one in drawn]) for encoder in (ours, bridge))
    assert made["labels"][made["loss_mask"] > 0].equal(native.labels[native.loss_mask > 0])
    assert made["labels"][made["loss_mask"] == 0].eq(-100).all()
    assert made["visual_inputs"].image_grid_thw.shape == native.media["image_grid_thw"].shape


def test_prepare_takes_documents_for_no_captions() -> None:
    for row in ({"texts": [None, "x"], "url": "y"}, {"text_list": ["x"], "image_info": INFO, "url": "y"}):
        assert guess_of_samples([{"0.png": b"", "json": json.dumps(row).encode()}]) == (CRUDE["__class__"], {})


def _mmc4(folder: Path, count: int) -> Path:
    """Documents as those of MMC4, with their pictures beside them; of the last, one is missing."""
    folder.mkdir()
    rows = []
    for n in range(count):
        infos = []
        for k in range(2):
            name = f"{n}_{k}.png"
            if (n, k) != (count - 1, 1):
                (folder / name).write_bytes(png(picture((18 + k, 20 + n), 2 * n + k)))
            infos.append({"image_name": name, "raw_url": f"http://x/{name}", "matched_text_index": 1 - k})
        texts = [f"a boat {n} .", "the sea . " * (n % 5 + 1), "red ."]
        rows.append({"text_list": texts, "url": "http://x/page", "image_info": infos, "similarity_matrix": [[0.1]]})
    return write_jsonl(folder / "docs.jsonl", rows)


def test_pictures_without_a_text_in_their_piece_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(A)
    row = {"images": ["a.png"] * 3 + [None], "texts": [None] * 3 + ["a boat"]}
    source = write_jsonl(tmp_path / "docs.jsonl", [row, {"text": "a boat"}])
    prepare_jsonl(source)
    config, encoder = WorkerConfig(0, 1, 0, num_lanes=1), make_encoder(seq_length=24)
    loader = get_loader(get_val_dataset(source, worker_config=config, batch_size=1, task_encoder=encoder))
    assert [bool(batch.media) for batch in loader] == [True, False]
    assert (loader.truncated, loader.skipped) == (1, {})


def test_documents_are_read_in_place_and_converted_the_same(tmp_path: Path) -> None:
    source = _mmc4(tmp_path / "mmc4", 6)
    prepare_jsonl(source)
    told = converted(source, tmp_path / "tars", "--skip-broken")
    texts = [[None, f"a boat {n}", None, "the sea"] for n in range(5)]
    images = [[{"bytes": png(picture((18, 20 + n), n)), "path": None}, None] * 2 for n in range(5)]
    table = write_parquet(tmp_path / "obelics.parquet", table_of({"images": images, "texts": texts}), per_group=2)
    other = converted(table, tmp_path / "other")

    def read(path: Path, **settings: Any) -> tuple[list[Any], Any]:
        config = WorkerConfig(0, 1, 0, num_lanes=1)
        encoder = make_encoder(**settings)
        loader = get_loader(
            get_val_dataset(path, split_part="train", worker_config=config, batch_size=1, task_encoder=encoder)
        )
        return [{**vars_of(batch)} for batch in loader], loader

    COUNTS.take_others()  # of other tests
    in_place, loader = read(source, missing_image="drop")
    assert (len(in_place), loader.metrics().others) == (6, {"pictures_left_out": 1})
    assert first_difference(in_place[:5], read(told)[0]) is None
    assert first_difference(read(table)[0], read(other)[0]) is None


def vars_of(batch: Any) -> dict[str, Any]:
    """What a model takes."""
    return dict(batch.model_inputs())


@pytest.mark.parametrize("name", [LLAVA, "qwen3_vl"])
def test_packs_of_documents_resume_where_they_were_saved(name: str, tmp_path: Path) -> None:
    rows = [
        {"__key__": f"{n:03d}", "json": json.dumps({"texts": [None, "a boat on the sea " * (n % 7 + 1)]})}
        for n in range(24)
    ]
    path = write_dataset(
        tmp_path / "docs",
        [{**row, "0.png": png(picture((20 + n, 20), n))} for n, row in enumerate(rows)],
        definition=CRUDE,
    )

    def load() -> Any:
        options: dict[str, Any] = {"batch_size": 2, "packing_buffer_size": 8, "shuffle_buffer_size": 10}
        config = WorkerConfig(0, 1, 0, num_lanes=2)
        encoder = make_encoder(name, seq_length=90)
        return get_loader(
            get_train_dataset(path, worker_config=config, task_encoder=encoder, max_samples_per_sequence=10, **options)
        )

    loader = load()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.save_state_rank()
    expected = [next(batches) for _ in range(4)]
    assert any(batch.is_packed for batch in expected)
    assert all(batch.tokens.shape[1] <= 90 for batch in expected)
    again = load()
    again.restore_state_rank(state)
    got = [batch for batch, _ in zip(again, range(4), strict=False)]
    assert first_difference(got, expected) is None
