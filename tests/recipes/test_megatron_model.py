"""The model needs the CPU shim, which changes torch: it is tried in a process of its own, on whichever version of
megatron-core is installed."""

import json
from typing import Any

import pytest

from tests.ranks import run_job

PROGRAM = """
import copy, json
import torch
import transformers as hf
from recipes import cpu_shim
cpu_shim.install()
from bridge_data.encoders import VideoConversationSample
from bridge_data.errors import ConfigError
from recipes.train_megatron import media_of
from recipes.megatron_model import MegatronModel
from recipes.packed_attention import sequence_numbers
from recipes.tiny_data import write_tiny_data
from recipes.tiny_parts import TILE, tiny_model, tiny_tokenizer
from recipes.recipe import load_recipe
from recipes.trainer.config import ParallelConfig
from recipes.trainer.parallel import initialize_parallel
from pathlib import Path

groups = initialize_parallel(ParallelConfig(), seed=1)
found = {}

# Families: the loss of a packed batch of each, beside that of transformers.
write_tiny_data(Path("tiny_data"))


def losses(original, batch):
    inputs = batch.model_inputs()
    expected = original(**inputs).loss.item()
    model = MegatronModel(copy.deepcopy(original), groups, seq_length=512)
    numbers = sequence_numbers(batch.cu_seqlens, batch.tokens.shape[1])

    def loss(positions):
        losses = model(batch.tokens, media_of(batch), numbers, batch.labels, positions)
        return (losses * batch.loss_mask).sum() / batch.loss_mask.sum()

    found = loss(batch.position_ids)
    found.backward()
    if batch.position_ids.ndim == 2:
        return [expected, found.item()]
    turned = batch.position_ids[:, [0, 2, 1]]  # columns for rows: another model
    return [expected, found.item(), loss(turned).item()]


def enlarged(original):
    for weight in original.parameters():  # biases are zero and norms one at first, and positions count for little
        torch.nn.init.normal_(weight, std=0.3)
    return original


found["families"] = {}
for name in ("text_sft", "llava", "llava_next", "idefics3", "smolvlm", "internvl", "qwen2_vl", "qwen2_5_vl"):
    recipe = load_recipe(None, [], recipe=name, tiny=True)
    tokenizer = recipe.build_tokenizer()
    loader = recipe.build_data(None, tokenizer).train_dataloader()
    batch = next(batch for batch in loader if batch.is_packed and (batch.media or name == "text_sft"))
    found["families"][name] = losses(recipe.build_model(tokenizer), batch)
    if name.startswith("qwen"):
        encoder = recipe.build_encoder(tokenizer, recipe.build_image_processor())
        turns = [{"role": "user", "content": "<video><image>which?"}, {"role": "assistant", "content": "both of them"}]
        films = [torch.randint(255, (6, 3, 20, 36), dtype=torch.uint8) for _ in range(2)]
        pictures = [torch.rand(3, 24, 40), torch.rand(3, 32, 16)]
        pack = [
            VideoConversationSample(
                __key__=str(n), __restore_key__=(), messages=turns, images=[pictures[n]], videos=[films[n]]
            )
            for n in range(2)
        ]
        waiting = [encoder.postencode_sample(encoder.preencode_sample(sample)) for sample in pack]
        batch = encoder.batch([encoder.pack_selected_samples(waiting)])
        found["families"][name + ", videos"] = losses(enlarged(recipe.build_model(tokenizer)), batch)

# Kinds of language models, on the batch of text.
recipe = load_recipe(None, [], recipe="text_sft", tiny=True)
batch = next(iter(recipe.build_data(None, recipe.build_tokenizer()).train_dataloader()))
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
sizes |= {"vocab_size": 320, "num_key_value_heads": 2, "max_position_embeddings": 4096}
makers = {
    "llama, wide heads": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(head_dim=16, **sizes)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(sliding_window=None, **sizes)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**sizes)),
    "qwen2, shared embeddings": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(tie_word_embeddings=True, **sizes)),
}
found["kinds"] = {}
for name, make in makers.items():
    torch.manual_seed(3)
    found["kinds"][name] = losses(enlarged(make()), batch)

# What the model is not.
rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
others = {
    "a window": lambda: hf.MistralForCausalLM(hf.MistralConfig(sliding_window=64, **sizes)),
    "other positions": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(rope_parameters=rope | {"original_max_position_embeddings": 64}, **sizes)
    ),
    "other layers": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**sizes)),
    "biases": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(attention_bias=True, **sizes)),
}
found["refusals"] = {}
for name, make in others.items():
    try:
        MegatronModel(make(), groups, seq_length=512)
    except ConfigError as error:
        found["refusals"][name] = str(error)

# Attention, and images.
tokenizer = tiny_tokenizer("llava")
model = MegatronModel(tiny_model("llava", tokenizer), groups, seq_length=64)
tokens = torch.arange(2, 66).reshape(1, 64)
tokens[:, 4:20] = tokenizer.convert_tokens_to_ids("<image>")
images = torch.rand(1, 3, TILE, TILE)
first, second = torch.zeros(1, 64, dtype=torch.long), torch.tensor([[0] * 32 + [1] * 32])
labels, positions = tokens.roll(-1, 1), torch.arange(64)[None]


def run(tokens, images, sequences):
    return model(tokens, {"pixel_values": images}, sequences, labels, positions)


loss = run(tokens, images, second)
found["shape"] = list(loss.shape)
loss.sum().backward()
found["without gradient"] = [name for name, p in model.named_parameters() if p.grad is None]
other = tokens.clone()
other[:, 20:32] = 99
found["sees its own sequence"] = not torch.equal(run(other, images, second)[:, 24:32], loss[:, 24:32])
found["is blind to the other"] = torch.equal(run(other, images, second)[:, 32:], loss[:, 32:])
found["sees it if it is one"] = not torch.equal(run(other, images, first)[:, 32:], run(tokens, images, first)[:, 32:])
found["sees the image"] = not torch.equal(run(tokens, 1 - images, second)[:, 20:32], loss[:, 20:32])
for name, (model, media) in {
    "two images": (model, torch.rand(2, 3, TILE, TILE)),
    "text only": (MegatronModel(tiny_model("text", tokenizer), groups, seq_length=64), images),
    "one number a position": (MegatronModel(tiny_model("qwen2_vl", tokenizer), groups, seq_length=64), images),
}.items():
    try:
        run(tokens, media, second)
    except ConfigError as error:
        found["refusals"][name] = str(error)
Path("found.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("model")
    status, output = run_job("-c", PROGRAM, cwd=folder, timeout_s=200)
    assert status == 0, output
    return dict(json.loads((folder / "found.json").read_text()))


@pytest.mark.parametrize(
    ("group", "tolerance", "names"),
    [
        (
            "families",
            1e-5,
            "text_sft; llava; llava_next; idefics3; smolvlm; internvl; qwen2_vl; qwen2_5_vl; qwen2_vl, videos; "
            "qwen2_5_vl, videos",
        ),
        ("kinds", 1e-4, "llama, wide heads; mistral; qwen2; qwen2, shared embeddings"),
    ],
)
def test_the_loss_is_that_of_the_model_of_transformers(
    found: dict[str, Any], group: str, tolerance: float, names: str
) -> None:
    assert [*found[group]] and sorted(found[group]) == sorted(names.split("; "))
    for name, (expected, got, *turned) in found[group].items():
        assert got == pytest.approx(expected, rel=tolerance), name
        if "videos" in name:
            assert turned != [pytest.approx(expected, rel=1e-5)], "rows and columns are told apart"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("a window", "attends to the last 64 tokens only (sliding_window)"),
        ("other positions", "rotary embedding is of type 'llama3'"),
        ("other layers", "of type 'qwen3'; recipes under Megatron know llama, mistral, qwen2, "),
        ("biases", "has attention_bias=True"),
        ("two images", "16 image tokens, but the model makes 32 features of its images"),
        ("one number a position", "three positions of each token (mRoPE); position_ids are (1, 64)"),
        ("text only", "batches have pixel_values, but the model takes text only"),
    ],
)
def test_what_the_model_is_not_is_a_config_error(found: dict[str, Any], what: str, message: str) -> None:
    assert message in found["refusals"][what]


def test_attention_stays_within_a_sequence_of_the_pack_and_all_weights_learn(found: dict[str, Any]) -> None:
    """But those that the original does not use: the norm of the pooled class token."""
    for what in ("sees its own sequence", "is blind to the other", "sees it if it is one", "sees the image"):
        assert found[what] is True, what
    assert found["shape"] == [1, 64]
    assert ["vision_tower" in name for name in found["without gradient"]] == [True, True]
