"""Bad input, the visual-token budget, packing, and the way from shards to batches."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import (
    ConfigError,
    Cooker,
    CrudeSample,
    SampleError,
    SkipSample,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_loader,
    get_train_dataset,
    packing_efficiency,
)
from bridge_data.encoders import (
    ConversationSample,
    ConversationTemplateConfig,
    FamilyConfig,
    FamilyTaskEncoder,
    HFTaskEncoder,
    ImageLimits,
    SamplePolicies,
    TokenizedSample,
    text_encoder,
)
from bridge_data.encoders.tokens import tokenize_spans
from bridge_data.samples.differences import first_difference
from bridge_data.task.task_encoder import together_with
from tests.encoders.parts import CASES, TILE, draw_talk, encode, make_tokenizer, picture, png
from tests.prepared import CRUDE, write_dataset

FAMILIES = ["llava", "llava_next", "idefics3", "internvl"]
ASK, ANSWER = {"role": "user", "content": "what is this ?"}, {"role": "assistant", "content": "a boat"}


def make_encoder(name: str = "llava", *, driven: bool = False, seq_length: int = 2048, **settings: Any) -> Any:
    case = CASES[name]
    family = case.make()
    tokenizer = make_tokenizer(template=family.chat_template)
    config = FamilyConfig(**settings)
    if driven:
        return HFTaskEncoder(case.processor(tokenizer), config, seq_length=seq_length)
    return FamilyTaskEncoder(tokenizer, family, config, seq_length=seq_length)


def talk(*messages: dict[str, str], images: tuple[tuple[int, int], ...] = ()) -> ConversationSample:
    return ConversationSample(
        __key__="k", messages=list(messages), images=[png(picture(size, n)) for n, size in enumerate(images)]
    )


def says(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


BAD = {
    "image_mismatch": [
        (talk(says("user", "<image> or <image> ?"), ANSWER, images=((8, 8),)), "2 .*'<image>'.* 1 images"),
        (talk(says("user", "<image> ?"), ANSWER), "1 .*'<image>'.* 0 images"),
        (talk(says("user", "<image> ?"), ANSWER, images=((8, 8),) * 2), "1 .*'<image>'.* 2 images"),
    ],
    "roles_out_of_order": [
        (talk(ANSWER, ASK), "its roles are 'assistant', 'user'; expected"),
        (talk(ASK, ASK, ANSWER), "'user', 'user', 'assistant'"),
        (talk(ASK, ANSWER, says("system", "a")), "'assistant', 'system'"),
        (
            talk(says("human", "a"), says("gpt", "b")),
            r"'human', 'gpt'.*SamplePolicies\(roles_out_of_order='keep'\) leaves",
        ),
    ],
    "empty_answer": [(talk(ASK, ANSWER, ASK, says("assistant", " ")), "answer 2 of 2 has no words")],
    "overlong": [(talk(says("user", "a boat " * 60), ANSWER), r"it has \d+ tokens, a sequence holds 40")],
}


@pytest.mark.parametrize("driven", [False, True])
@pytest.mark.parametrize("policy", BAD)
def test_samples_out_of_order_are_assigned_with_as_declared(policy: str, driven: bool) -> None:
    for sample, message in BAD[policy]:
        strict = make_encoder(driven=driven, seq_length=40, policies=SamplePolicies(**{policy: "error"}))
        with pytest.raises(SampleError, match=f"sample 'k': .*{message}"):
            encode(strict, sample)
        lenient = make_encoder(driven=driven, seq_length=40, policies=SamplePolicies(**{policy: "skip"}))
        with pytest.raises(SkipSample):
            encode(lenient, sample)


@pytest.mark.parametrize("name", ["llava", "internvl"])
def test_a_long_conversation_is_split_after_answers(name: str) -> None:
    asks = [says("user", "<image> what is this ?" if turn % 2 else "and this ?") for turn in range(6)]
    said = talk(*(one for ask in asks for one in (ask, ANSWER)), images=((8, 8),) * 3)
    whole = encode(make_encoder(name), said)
    length, encoder = len(whole.tokens) // 2, make_encoder(name, policies=SamplePolicies(overlong="split"))
    assert torch.equal(encode(encoder, said).tokens, whole.tokens)
    encoder.seq_length = length
    pieces = [*encoder.preencode_sample(said)]
    assert len(pieces) > 2
    assert max(len(piece.tokens) for piece in pieces) <= length
    joined = torch.cat([piece.tokens for piece in pieces])
    assert torch.equal(joined, whole.tokens[: len(joined)])
    assert sum(piece.loss_mask.sum() for piece in pieces) == whole.loss_mask.sum()
    assert [image for piece in pieces for image in piece.images] == said.images


def test_a_turn_that_is_too_long_to_split_loses_only_itself() -> None:
    encoder = make_encoder(seq_length=40, policies=SamplePolicies(overlong="split"))
    turns = [ASK, ANSWER] * 2, [says("user", "a boat " * 60), ANSWER], [ASK, ANSWER] * 3
    alone = [piece.loss_mask.sum() for own in (turns[0], turns[2]) for piece in pieces_of(encoder, talk(*own))]
    together = [piece.loss_mask.sum() for piece in pieces_of(encoder, talk(*turns[0], *turns[1], *turns[2]))]
    assert sum(together) >= sum(alone) > 0
    with pytest.raises(SkipSample):
        pieces_of(encoder, talk(*turns[1], *turns[1]))


def pieces_of(encoder: Any, sample: ConversationSample) -> list[Any]:
    made = encoder.preencode_sample(sample)
    return [made] if isinstance(made, TokenizedSample) else [*made]


def test_what_may_be_kept_is_kept() -> None:
    keep = make_encoder(policies=SamplePolicies(roles_out_of_order="keep", empty_answer="keep"))
    (roles, _), (empty, _) = BAD["roles_out_of_order"][1], BAD["empty_answer"][0]
    assert "a boat" in keep.tokenizer.decode(encode(keep, roles).tokens)
    learnt = encode(keep, empty)
    assert learnt.loss_mask.sum() > encode(keep, talk(ASK, ANSWER)).loss_mask.sum()
    with pytest.raises(SkipSample):
        encode(keep, talk(ASK, says("assistant", "")))


@pytest.mark.parametrize("driven", [False, True])
@pytest.mark.parametrize("name", ["llava", "llava_next", "internvl", "idefics3"])
def test_images_amid_a_text_keep_their_places_or_the_log_tells_once(
    name: str, driven: bool, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = make_encoder(name, driven=driven)
    encoder.__class__ = type(f"Mine_{name}_{driven}", (type(encoder),), {})  # one that the log has not told of
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            made = encode(encoder, talk(says("user", "one <image> two three"), ANSWER, images=((20, 20),)))
            encode(encoder, talk(says("user", "<image> one"), ANSWER, says("user", "two"), ANSWER, images=((20, 20),)))
    text = encoder.tokenizer.decode(made.tokens)
    moved = text.index("one") > text.index("<IMG_CONTEXT>" if name == "internvl" else "<image>")
    told = [record.getMessage() for record in caplog.records if "before its words" in record.getMessage()]
    assert moved is (name in ("llava", "llava_next")) and len(told) == int(moved)


@pytest.mark.parametrize("driven", [False, True])
def test_a_token_of_images_in_the_text_is_no_image(driven: bool) -> None:
    sample = talk(says("user", "what is <IMG_CONTEXT> ?"), ANSWER)
    with pytest.raises(SampleError, match=r"'k': a turn has '<IMG_CONTEXT>'"):
        encode(make_encoder("internvl", driven=driven), sample)
    kept = make_encoder("internvl", driven=driven, policies=SamplePolicies(media_tags="keep"))
    with pytest.raises(SampleError, match=r"template.* 1 image .* 0"):
        encode(kept, sample)


TURNS = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
bot: {% generation %}{{ message['content'] }}{% endgeneration %}
{% else -%}
user: {{ message['content'] }}
{% endif -%}
{%- endfor -%}
"""


@pytest.mark.parametrize("driven", [False, True])
def test_an_image_in_an_answer_is_not_learnt_but_the_words_around_it_are(driven: bool) -> None:
    """Under a template that takes texts."""
    case = CASES["idefics3"]
    config = FamilyConfig(conversation_template_config=ConversationTemplateConfig(chat_template=TURNS))
    tokenizer = make_tokenizer()
    encoder: Any = (
        HFTaskEncoder(case.processor(tokenizer), config)
        if driven
        else FamilyTaskEncoder(tokenizer, case.make(), config)
    )
    sample = talk(says("user", "<image> what ?"), says("assistant", "this <image> boat"), images=((30, 40), (20, 60)))
    encoded = encode(encoder, sample)
    learnt = tokenizer.decode(encoded.labels[encoded.loss_mask.bool()])
    assert learnt.split() == ["this", "boat"]
    assert "<image>" in tokenizer.decode(encoded.tokens)


@pytest.mark.parametrize("driven", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_dot_is_an_image_and_a_line_is_none(name: str, driven: bool) -> None:
    encoder = make_encoder(name, driven=driven)
    assert encode(encoder, talk(ASK, ANSWER, images=((1, 1),))).media["pixel_values"].shape[-1] == TILE
    with pytest.raises(SkipSample):
        encode(encoder, talk(ASK, ANSWER, images=((20_000, 20),)))
    wide = make_encoder(name, driven=driven, images=ImageLimits(max_aspect=1000))
    assert encode(wide, talk(ASK, ANSWER, images=((20_000, 20),))).media["pixel_values"].isfinite().all()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_budget_takes_detail_from_images_before_it_leaves_a_sample_out(name: str) -> None:
    sample = talk(ASK, ANSWER, images=((60, 60), (90, 30)))
    family = CASES[name].make()
    sizes = [(60, 60), (30, 90)]
    costs = []
    for detail in range(family.num_details):
        texts = [family.image_text(size, detail) for size in sizes]
        tokenizer = make_tokenizer()
        costs.append(sum(times * len(tokenizer(piece).input_ids) for text in texts for piece, times in text))
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == 1 if name == "llava" else len(set(costs)) > 1
    lengths = []
    for cost in costs:
        encoder = make_encoder(name, images=ImageLimits(max_image_tokens=cost))
        encoded = encode(encoder, sample)
        lengths.append(encoded.length)
        family.batch([encoded.media])  # of the tiles that belong to it
    assert [length - lengths[0] for length in lengths] == [cost - costs[0] for cost in costs]
    with pytest.raises(SkipSample):
        encode(make_encoder(name, images=ImageLimits(max_image_tokens=costs[-1] - 1)), sample)
    for driven in (False, True):
        limits = ImageLimits(max_pixels=400)
        encoded = encode(
            make_encoder("llava_next", driven=driven, images=limits), talk(ASK, ANSWER, images=((80, 40),))
        )
        assert encoded.media["image_sizes"].tolist() == [[14, 28]], "as if the image had come so"
    with pytest.raises(SkipSample):  # a processor that is driven keeps to the budget, too
        encode(
            make_encoder(driven=True, images=ImageLimits(max_image_tokens=15)), talk(ASK, ANSWER, images=((60, 60),))
        )


def test_a_tokenizer_without_padding_token_pads_with_its_end_and_learns_none_of_it() -> None:
    template = CASES["llava"].make().chat_template
    samples = [talk(ASK, ANSWER), talk(ASK, says("assistant", "a boat on the sea"))]
    batches = []
    for pad in (True, False):
        encoder = text_encoder(make_tokenizer(pad=pad, template=template), seq_length=64)
        batches.append(encoder.batch([encode(encoder, sample) for sample in samples]).model_inputs())
    real = batches[0]["attention_mask"].bool()
    assert torch.equal(batches[0]["input_ids"][real], batches[1]["input_ids"][real])
    assert all(torch.equal(batches[0][name], batches[1][name]) for name in ("labels", "attention_mask"))
    assert set(batches[1]["input_ids"][~real].tolist()) == {make_tokenizer(pad=False).eos_token_id}


def test_images_without_a_family_and_other_samples_are_refused() -> None:
    template = CASES["llava"].make().chat_template
    encoder = text_encoder(make_tokenizer(template=template))
    with pytest.raises(ConfigError, match="has no family"):
        encode(encoder, talk(ASK, ANSWER, images=((8, 8),)))
    assert encode(encoder, TextSample(__key__="k", text="a boat")).loss_mask.sum() >= 1


@pytest.mark.parametrize("name", ["llava", "idefics3"])
def test_samples_are_encoded_together_as_alone_and_long_texts_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make_encoder(name)
    long = talk(ASK, says("assistant", "a boat " * 10_000))
    samples = [
        talk(ASK, ANSWER),
        talk(says("user", "<image> ?"), ANSWER),  # without an image
        TextSample(__key__="k", text="a boat"),
        long,
        *(draw_talk(seed).sample for seed in range(4)),
    ]

    def outcome(preencode: Any, sample: Any) -> Any:
        try:
            return preencode(sample)
        except SampleError as error:
            return str(error)

    alone = [outcome(encoder.preencode_sample, sample) for sample in samples]
    lengths: list[list[int]] = []

    def tokenized(tokenizer: Any, texts: Any, **options: Any) -> Any:
        lengths.append([len(text) for text, _ in texts])
        return tokenize_spans(tokenizer, texts, **options)

    monkeypatch.setattr("bridge_data.encoders.family_encoder.tokenize_spans", tokenized)
    do_together = together_with(encoder.preencode_sample)
    assert do_together is not None
    preencode = do_together(iter(samples))
    assert [len(one) for one in lengths] == [5], "but the wrong one, the text and the long one"
    for _ in range(2):  # as of a hook that is called again
        assert first_difference(alone, [outcome(preencode, sample) for sample in samples]) is None
    assert [len(one) for one in lengths if max(one) > 1 << 16] == [1, 1]


def test_an_empty_batch_learns_nothing() -> None:
    encoder = make_encoder()
    batch = encoder.batch([encode(encoder, talk(ASK, ANSWER, images=((8, 8),)))])
    assert (encoder.empty_batch(batch).model_inputs()["labels"] == -100).all()
    assert (batch.model_inputs()["labels"] != -100).any()


def test_packs_are_full() -> None:
    encoder = make_encoder(seq_length=512)
    waiting = [encoder.preencode_sample(draw_talk(seed).sample) for seed in range(300)]
    lengths = [len(sample.tokens) for sample in waiting]
    packs = encoder.select_samples_to_pack(waiting)
    places = {id(sample): number for number, sample in enumerate(waiting)}
    groups = [[places[id(sample)] for sample in pack] for pack in packs]
    assert packing_efficiency(lengths, groups, 512) > 0.97


def cook(sample: CrudeSample) -> ConversationSample:
    return ConversationSample(**basic_sample_keys(sample), messages=sample["json"], images=[sample["png"]])


class ShardEncoder(FamilyTaskEncoder):
    cookers = (Cooker(cook),)


class DrivenShardEncoder(HFTaskEncoder):
    cookers = (Cooker(cook),)


@pytest.mark.parametrize(("driven", "num_workers"), [(False, 1), (True, 0)])
def test_shards_become_packed_batches_and_nothing_is_lost_uncounted(
    tmp_path: Path, driven: bool, num_workers: int
) -> None:
    bad = {3: [ANSWER, ASK], 8: [ASK, says("assistant", "")], 13: [says("user", "<image><image>"), ANSWER]}
    bad |= {20: [ASK, says("assistant", "a boat " * 200)], 21: [says("user", "a boat " * 200), ANSWER]}  # too long
    sizes = {5: (20_000, 20)}
    samples = [
        {
            "__key__": f"{n:03d}",
            "json": json.dumps(bad.get(n, [ASK, says("assistant", "a boat " * (n % 4 + 1))])),
            "png": png(picture(sizes.get(n, (10 + n, 20)), n)) if n != 17 else b"broken",
        }
        for n in range(24)
    ]
    path = write_dataset(tmp_path / "talks", samples, definition=CRUDE)
    family = CASES["llava_next"].make()
    tokenizer = make_tokenizer(template=family.chat_template)
    encoder: Any = (
        DrivenShardEncoder(CASES["llava_next"].processor(tokenizer), seq_length=300)
        if driven
        else ShardEncoder(tokenizer, family, seq_length=300)
    )
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        batch_size=2,
        packing_buffer_size=8,
        shuffle_buffer_size=10,
        max_samples_per_sequence=10,
        task_encoder=encoder,
        repeat=False,
    )
    with get_loader(dataset) as loader:
        batches = list(loader)
        skipped, truncated = sum(loader.skipped.values()), loader.truncated
    keys = sorted(int(key.rpartition("/")[2]) for b in batches for row in b.__key__ for key in row.split(","))
    assert keys == [n for n in range(24) if n not in (3, 5, 8, 13, 17, 21)]
    assert (skipped, truncated) == (6, 1)
    image = tokenizer.convert_tokens_to_ids("<image>")
    for batch in batches:
        assert (
            len(batch.media["image_sizes"])
            == len(batch.media["pixel_values"])
            == sum(len(row.split(",")) for row in batch.__key__)
        )
        assert (batch.tokens == image).any()
    assert any(batch.is_packed for batch in batches)


@pytest.mark.parametrize("driven", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_samples_are_filled_up_to_a_multiple_also_within_a_pack(name: str, driven: bool) -> None:
    plain, encoder = (make_encoder(name, driven=driven, pad_to_multiple_of=multiple) for multiple in (1, 16))
    said = [
        ConversationSample(__key__="one", messages=[ASK, ANSWER], images=[]),
        ConversationSample(__key__="two", messages=[ASK, ANSWER, ASK, ANSWER], images=[]),
    ]
    samples = [encode(encoder, sample) for sample in said]
    pack = encoder.pack_selected_samples(samples)
    assert pack.cu_seqlens.diff().remainder(16).eq(0).all()
    for sample, before in zip(samples, [encode(plain, sample) for sample in said], strict=True):
        assert torch.equal(sample.tokens[: before.length], before.tokens)
        assert torch.equal(sample.labels[: before.length], before.labels)
        assert sample.loss_mask[before.length :].sum() == 0
        assert all(len(tensor) == sample.length for tensor in sample.aligned.values())
    with pytest.raises(ConfigError, match="no multiple of pad_to_multiple_of=16"):
        make_encoder(name, driven=driven, seq_length=100, pad_to_multiple_of=16)
