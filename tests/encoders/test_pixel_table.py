"""Pixel values that are looked up are bit by bit those that the image processor computes."""

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.fabric.utilities.apply_func import move_data_to_device
from transformers import image_processing_backends

from bridge_data.encoders import (
    FamilyConfig,
    FamilyTaskEncoder,
    Idefics3,
    InternVL,
    Llava,
    LlavaNext,
    Qwen2VL,
    Qwen3VL,
    QwenVLTaskEncoder,
    VideoConversationSample,
    VideoSampling,
)
from bridge_data.encoders.chat import chatml
from bridge_data.encoders.families import ProcessedFamily, same_media
from bridge_data.encoders.pixel_table import TABLE
from bridge_data.encoders.sequences import Media, joined
from bridge_data.errors import ConfigError, FatalSampleError
from bridge_data.plugins.sharing.assignment import pixels
from bridge_data.plugins.view.contents import pictures_of
from bridge_data.task.samples_key import costs_key
from tests.encoders.conftest import trial
from tests.encoders.parts import CASES, assert_equal, draw_talk, encode, forbid_calls, make_tokenizer, picture
from tests.encoders.qwen_parts import frames, make_family, qwen_tokenizer
from tests.later import hf
from tests.tiny_models.parts import PATCH, tiny_image_processor

FAMILIES = {
    "llava": lambda one: Llava(one, patch_size=PATCH),
    "siglip": lambda one: Llava(one, patch_size=PATCH, num_additional_image_tokens=0),
    "llava_next": lambda one: LlavaNext(one, patch_size=PATCH),
    "idefics3": lambda one: Idefics3(one, image_seq_len=4),
    "smolvlm": lambda one: Idefics3(one, image_seq_len=4),
    "internvl": lambda one: InternVL(one, image_seq_length=4),
    "qwen2_vl": Qwen2VL,
    "qwen3_vl": Qwen3VL,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "its own": {},
    "not rescaled": {"do_rescale": False},
    "not normalized": {"do_normalize": False},
    "another mean": {"image_mean": [0.1, 0.5, 0.9], "image_std": [0.3, 0.2, 0.7], "rescale_factor": 1 / 127.5},
}
SIDES = st.integers(8, 90)


@pytest.mark.parametrize("name", ["device", "bfloat16"])
def test_a_table_is_found_whatever_torch_makes_by_default(name: str) -> None:
    with torch.device("meta" if name == "device" else "cpu"):
        torch.set_default_dtype(torch.bfloat16 if name == "bfloat16" else torch.float32)
        try:
            family = Llava(tiny_image_processor("llava"), patch_size=PATCH)
            assert family.keeps_bytes
            pixels = torch.full((1, 3, 2, 2), 7, dtype=torch.uint8, device="cpu")
            found = family._table.look_up(pixels, 1)
        finally:
            torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32 and not found.is_meta


def family_of(kind: str, **changed: Any) -> Any:
    processor = copy.deepcopy(tiny_image_processor(kind))
    for name, value in changed.items():
        setattr(processor, name, value)
    return FAMILIES[kind](processor)


def untabled(family: Any) -> Any:
    """The same family, whose processor computes all."""
    plain = copy.copy(family)
    object.__setattr__(plain, "_table", None)
    return plain


def batch_of(family: Any, rows: list[list[Any]]) -> Media:
    made: Media = family.batch([family.pixels(images, 0) if images else {} for images in rows])
    return made


@pytest.mark.parametrize("changed", SETTINGS)
@pytest.mark.parametrize("kind", FAMILIES)
def test_each_family_has_the_values_of_its_processor(kind: str, changed: str) -> None:
    family = family_of(kind, **SETTINGS[changed])
    assert family._table is not None or "do_rescale" in SETTINGS[changed]  # which some processors do not take
    rows = [[picture((40, 61), 1), picture((90, 30), 2)], [], [picture((33, 34), 3)]]
    assert same_media(batch_of(family, rows), batch_of(untabled(family), rows))


@settings(deadline=None)
@given(st.sampled_from(list(FAMILIES)), st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=4), st.integers(0, 3))
def test_at_any_size(kind: str, sizes: list[tuple[int, int]], cut: int) -> None:
    family = _families(kind)
    images = [picture(size, seed) for seed, size in enumerate(sizes)]
    rows = [images[:cut], images[cut:]]
    assert same_media(batch_of(family, rows), batch_of(untabled(family), rows))


_made: dict[str, Any] = {}


def _families(kind: str) -> Any:
    return _made.get(kind) or _made.setdefault(kind, family_of(kind))


def test_patches_of_an_odd_number_of_pixels() -> None:
    processor = hf.Qwen2VLImageProcessorPil(patch_size=3, size={"shortest_edge": 36, "longest_edge": 3600})
    family = Qwen2VL(processor)
    assert family._table is not None
    rows = [[picture((50, 41))]]
    assert same_media(batch_of(family, rows), batch_of(untabled(family), rows))


@pytest.mark.parametrize("kind", FAMILIES)
def test_until_the_batch_they_are_bytes(kind: str) -> None:
    family = family_of(kind)
    sample, plain = ({**one.pixels([picture((64, 48))], 0)}["pixel_values"] for one in (family, untabled(family)))
    copies = family.frames_a_step if kind.startswith("qwen") else 1
    assert sample.dtype == torch.uint8
    assert sample.nbytes * 4 * copies == plain.nbytes
    batch_of(family, [[picture((64, 48))]])
    assert len(pickle.dumps(family)) < 1 << 15  # its largest tables are made again in each worker


def of_its_own(kind: str, name: str) -> Any:
    """A processor of a user, which computes in another way than its settings say."""
    processor = tiny_image_processor(kind)
    base = type(processor)

    def normalize(self: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
        made = base.normalize(self, image, *args, **kwargs)
        return made - made.mean(dtype=np.float32) if name == "of all pixels" else made * np.float32(2)

    return type(base.__name__, (base,), {"normalize": normalize})(**processor.to_dict())


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_processor_that_looks_at_more_than_a_value_computes_itself(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "bridge_data"):
        family = FAMILIES[kind](of_its_own(kind, "of all pixels"))
    assert family._table is None
    assert caplog.text.count(f"{type(family.image_processor).__name__} computes pixel values itself") == 1
    assert FAMILIES[kind](of_its_own(kind, "twice"))._table is not None
    images = [picture((40, 61), 1)]
    expected = batch_of(untabled(family), [images])
    assert same_media(batch_of(family, [images]), expected)
    assert expected["pixel_values"].dtype == torch.float32


@pytest.mark.parametrize("changed", [{"image_mean": [0.0, 0.0, 0.0]}, {"resample": 0}])
@pytest.mark.parametrize("kind", FAMILIES)
def test_settings_that_change_later_are_an_error(kind: str, changed: dict[str, Any]) -> None:
    family = dataclasses.replace(family_of(kind))
    vars(family.image_processor).update(changed)
    with pytest.raises(FatalSampleError, match=r"its settings .* were .* when the encoder was made; set them before"):
        family.pixels([picture((40, 61))], 0)


# Bytes until the batch is moved

TYPES = ("float32", "bfloat16", "uint8")


def batches_of(make: Any, samples: list[Any], **options: Any) -> list[Any]:
    """A batch of the samples for each type of pixels."""
    made = []
    for name in TYPES:
        encoder = make(FamilyConfig(pixels=name, **options))
        made.append(encoder.batch([encode(encoder, sample) for sample in samples]))
    return made


def assert_same_pixels(whole: Any, half: Any, raw: Any) -> None:
    """The same, rounded, and looked up: where the batch is moved, or its inputs are asked for."""
    names = [name for name in ("pixel_values", "pixel_values_videos") if name in whole.media]
    assert names
    for name in names:
        assert raw.media[name].dtype == torch.uint8
        assert torch.equal(half.media[name], whole.media[name].to(torch.bfloat16))
    moved = move_data_to_device(raw, torch.device("cpu"))  # as Lightning moves batches
    assert same_media(moved.media, whole.media) and type(moved) is type(whole)
    inputs = [{name: torch.as_tensor(value) for name, value in one.model_inputs().items()} for one in (raw, whole)]
    assert_equal(*inputs)


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_batches_of_bytes_become_those_of_floats(name: str, pack: bool) -> None:
    family = CASES[name].make()
    tokenizer = make_tokenizer(begin=CASES[name].begin, template=family.chat_template)
    samples = [draw_talk(seed).sample for seed in range(6)]
    samples.sort(key=lambda sample: len(sample.images))  # one without images comes first

    def make(config: FamilyConfig) -> Any:
        return FamilyTaskEncoder(tokenizer, family, config, seq_length=1 << 14)

    assert_same_pixels(*batches_of(make, samples, pack_in_batch=pack))


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_images_and_videos_of_qwen(name: str) -> None:
    said = [{"role": "user", "content": "<video><image> what"}, {"role": "assistant", "content": "this"}]
    images = [picture((64, 40), 5)]
    sample = VideoConversationSample(__key__="v", messages=said, images=images, videos=[frames(5, (48, 32), 1)])

    def make(config: FamilyConfig) -> Any:
        sampling = VideoSampling(fps=None)
        return QwenVLTaskEncoder(qwen_tokenizer(name), make_family(name), config, seq_length=4096, sampling=sampling)

    assert_same_pixels(*batches_of(make, [sample, sample]))


@pytest.mark.parametrize("kind", FAMILIES)
def test_how_many_bytes_a_batch_has(kind: str) -> None:
    family = family_of(kind)
    rows = [family.pixels([picture((64, 64), seed)], 0) for seed in range(3)]
    raw, whole = family.collected(rows), family.batch(rows)
    copies = family.frames_a_step if kind.startswith("qwen") else 1
    assert raw["pixel_values"].nbytes * 4 * copies == whole["pixel_values"].nbytes
    assert raw[TABLE].nbytes == 3 * copies * 256 * 4


class OwnBatch(Llava):
    """A family of a user, which changes what a batch has."""

    def batch(self, rows: Any) -> Media:
        media = super().batch(rows)
        return media | {"pixel_values": media["pixel_values"] * 2}


class Tiled:
    """A family of a user without an image processor, whose model takes a number of tiles."""

    image_token, chat_template, num_details = "<image>", None, 1

    def image_text(self, size: Any, detail: int) -> list[tuple[str, int]]:
        return [("<image>", 1)]

    def pixels(self, images: Any, detail: int) -> Media:
        return {"pixel_values": torch.ones(len(images), 3), "num_tiles": torch.ones(len(images), dtype=torch.int64)}

    def batch(self, rows: Any) -> Media:
        return joined(rows)


def test_what_models_of_others_take_is_theirs() -> None:
    encoder = FamilyTaskEncoder(make_tokenizer(template=FAMILIES["llava_next"](_processor()).chat_template), Tiled())
    batch = encoder.batch([encode(encoder, draw_talk(seed).sample) for seed in range(4)])
    assert "num_tiles" in batch.media
    assert same_media(batch.to("cpu").media, batch.media) and "num_tiles" in batch.model_inputs()


def _processor() -> Any:
    return tiny_image_processor("llava_next")


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl"])
def test_measured_costs_hold_for_every_type_of_pixels_and_on_every_machine(kind: str) -> None:
    is_qwen, keys = kind == "qwen2_vl", set()
    tokenizer = qwen_tokenizer(kind) if is_qwen else make_tokenizer(template=chatml(image="<image>"))
    encoder_of: Any = QwenVLTaskEncoder if is_qwen else FamilyTaskEncoder
    for name in TYPES:
        family = family_of(kind)
        if not is_qwen:
            object.__setattr__(family, "image_token", "<image>")
        keys.add(costs_key(encoder_of(tokenizer, family, FamilyConfig(pixels=name))))
    object.__setattr__(family, "_table", None)
    keys.add(costs_key(encoder_of(tokenizer, family)))
    assert len(keys) == 1


def test_ranks_are_balanced_and_pictures_shown_by_the_values_that_models_take() -> None:
    said = [{"role": "user", "content": "<video><image> what"}, {"role": "assistant", "content": "this"}]
    images, videos = [picture((64, 40), 5)], [frames(5, (48, 32), 1)]
    sample = VideoConversationSample(__key__="v", messages=said, images=images, videos=videos)
    made = batches_of(
        lambda config: QwenVLTaskEncoder(qwen_tokenizer("qwen2_vl"), make_family("qwen2_vl"), config), [sample]
    )
    whole, _, raw = made
    assert pixels(raw) == pixels(whole)
    encoder = QwenVLTaskEncoder(qwen_tokenizer("qwen2_vl"), make_family("qwen2_vl"))
    shown = [[(one.field, one.pixels) for one in pictures_of(batch, encoder)] for batch in (whole, raw)]
    assert len(shown[0]) == len(shown[1]) > 1
    for (field, one), (other_field, other) in zip(*shown, strict=True):
        assert field == other_field and torch.equal(one, other)


# Images that are resized here


def square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


CUT: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("llava", {"size": {"shortest_edge": 336}, "crop_size": square(336)}),
    "clip, wide": ("llava", {"size": {"shortest_edge": 40}, "crop_size": {"height": 21, "width": 40}}),
    "clip, to a size": ("llava", {"size": {"height": 40, "width": 56}, "crop_size": square(33), "resample": 2}),
    "clip, larger than the image": ("llava", {"size": {"shortest_edge": 21}, "crop_size": {"height": 32, "width": 33}}),
    "clip, not cropped": ("siglip", {"size": {"height": 48, "width": 40}, "resample": 1}),
    "llava_next": ("llava_next", {"size": {"shortest_edge": 336}, "crop_size": square(336)}),
    "llava_next, not cropped": ("llava_next", {"do_center_crop": False, "resample": 2}),
    "idefics3": ("idefics3", {"size": {"longest_edge": 364}, "max_image_size": {"longest_edge": 182}}),
    "idefics3, more tiles": ("idefics3", {"size": {"longest_edge": 150}, "max_image_size": {"longest_edge": 24}}),
    "smolvlm, whole": ("smolvlm", {"do_image_splitting": False, "resample": 3}),
    "internvl": ("internvl", {"size": square(112), "max_patches": 12}),
    "internvl, wide": ("internvl", {"size": {"height": 16, "width": 40}, "min_patches": 2, "max_patches": 5}),
    "internvl, one tile": ("internvl", {"max_patches": 1, "resample": 0}),
    "qwen2_vl": ("qwen2_vl", {"size": {"shortest_edge": 56 * 56, "longest_edge": 1 << 18}, "patch_size": 14}),
}
NOT_CUT: dict[str, tuple[str, dict[str, Any]]] = {
    "not resized": ("llava", {"do_resize": False}),
    "longer side limited": ("llava", {"size": {"shortest_edge": 32, "longest_edge": 999}, "crop_size": square(32)}),
    "padded to a square": ("padded", {"do_pad": True}),
    "tiles resized again": ("llava_next", {"size": {"shortest_edge": 24}}),
}
SIZES = (
    (1, 1),
    (1, 40),
    (40, 1),
    (3, 3),
    (2, 90),
    (336, 336),
    (427, 640),
    (641, 427),
    (300, 299),
    (1024, 768),
    (901, 88),
)


def processor_of(kind: str, options: dict[str, Any]) -> tuple[str, Any]:
    """The kind of family, and a processor with these settings."""
    family = "llava" if kind == "padded" else kind
    own = tiny_image_processor(family)
    made = hf.LlavaImageProcessorPil if kind == "padded" else type(own)
    options = {"size": own.size, "crop_size": getattr(own, "crop_size", None)} | options
    if kind == "llava_next":
        side = options["crop_size"]["height"]
        options["image_grid_pinpoints"] = [
            [side * high, side * wide] for high, wide in ((1, 2), (2, 1), (2, 2), (3, 1))
        ]
    return family, made(**{name: value for name, value in options.items() if value is not None})


@pytest.mark.parametrize("name", [*CUT, *NOT_CUT])
def test_tiles_are_those_of_the_processor_for_any_settings_and_sizes(name: str) -> None:
    kind, processor = processor_of(*(CUT | NOT_CUT)[name])
    family = FAMILIES[kind](processor)
    assert family.keeps_bytes and family._resizes == (name in CUT)
    plain = untabled(family)
    images = [picture(size, seed) for seed, size in enumerate(SIZES)]
    for detail in range(family.num_details):
        made, expected = (one.batch([one.pixels(images, detail)]) for one in (family, plain))
        assert same_media(made, expected)


@pytest.mark.parametrize("kind", FAMILIES)
def test_images_are_resized_without_the_processor(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = family_of(kind)
    forbid_calls(family.image_processor, monkeypatch)
    assert family.pixels([picture((40, 61)), picture((61, 40))], 0)["pixel_values"].dtype == torch.uint8


@pytest.mark.parametrize("kind", FAMILIES)
def test_another_version_of_transformers_resizes_in_its_own_way(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = image_processing_backends.np_resize

    def reducing(*args: Any, **options: Any) -> Any:
        return base(*args, **options | {"reducing_gap": 1.0})  # which changes images that become smaller

    monkeypatch.setattr(image_processing_backends, "np_resize", reducing)
    monkeypatch.setattr(ProcessedFamily, "_has_table", trial)
    family = family_of(kind)
    assert family.keeps_bytes and not family._resizes
    rows = [[picture((301, 517))]]
    assert same_media(batch_of(family, rows), batch_of(untabled(family), rows))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_processor_of_a_user_resizes_itself(kind: str) -> None:
    processor = tiny_image_processor(kind)
    base = type(processor)
    family = FAMILIES[kind](type(base.__name__, (base,), {})(**processor.to_dict()))
    assert family.keeps_bytes and not family._resizes


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_images_of_other_modes_are_converted_as_the_processor_does(kind: str, mode: str) -> None:
    family, rows = family_of(kind), [[picture((40, 61)).convert(mode)]]
    outcomes: list[Any] = []
    for one in (family, untabled(family)):
        try:
            outcomes.append(batch_of(one, rows))
        except Exception as error:  # some processors of transformers take no other modes
            outcomes.append(type(error))
    assert outcomes[0] is outcomes[1] or same_media(*outcomes)


def test_where_bytes_cannot_be_looked_up_they_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"OwnBatch makes no bytes: .* or the class has a `batch` of its own"):
        FamilyTaskEncoder(
            make_tokenizer(template=None), OwnBatch(tiny_image_processor("llava"), PATCH), FamilyConfig(pixels="uint8")
        )
    tokenizer = make_tokenizer(template=None)
    own = FAMILIES["llava"](of_its_own("llava", "of all pixels"))
    with pytest.raises(ConfigError, match=r"pixels='uint8'\): Llava makes no bytes: its image processor computes"):
        FamilyTaskEncoder(tokenizer, own, FamilyConfig(pixels="uint8"))
    with pytest.raises(ConfigError, match=r'pixels="uint8", layout="bridge"\): the step of Bridge moves a batch'):
        FamilyConfig(pixels="uint8", layout="bridge")
    with pytest.raises(ConfigError, match=r"pixels='float16'.*expected one of 'float32', 'bfloat16', 'uint8'"):
        FamilyConfig(pixels="float16")  # type: ignore[arg-type]
