"""Recipes of all families: printed, changed, and trained for five steps in small."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from recipes.recipe import FAMILIES, Recipe
from recipes.tiny_data import write_tiny_data
from recipes.train import RECIPES, load_recipe, main

NAMES = RECIPES
QUICK = ("qwen2_5_vl", "clip")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of tiny recipes."""
    folder = tmp_path_factory.mktemp("recipes")
    write_tiny_data(folder / "tiny_data")
    return folder


def test_every_family_has_a_recipe() -> None:
    made = {load_recipe(None, [], recipe=name).family for name in NAMES}
    assert made == set(FAMILIES)


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_printed_and_given_back(
    name: str, tiny: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--recipe", name, *(["--tiny"] if tiny else [])]
    assert main([*flags, "--print-config", "data.seed=3", "training.train_steps=7"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"recipe: {name}\n")
    (tmp_path / "run.yaml").write_text(printed)
    again = load_recipe(tmp_path / "run.yaml", [])
    assert isinstance(again, Recipe)
    assert again == load_recipe(None, ["data.seed=3", "training.train_steps=7"], recipe=name, tiny=tiny)
    assert (again.tokenizer.pretrained == again.model.pretrained == "tiny") == tiny
    assert tiny or re.fullmatch(r"[\w-]+/[\w.-]+", again.model.pretrained)


@pytest.mark.processes
def test_nothing_heavy_is_imported_until_something_is_built() -> None:
    code = (
        "import sys; from recipes.train import main; main(['--recipe', 'qwen2_5_vl', '--print-config'])\n"
        "assert not {'torch', 'lightning', 'transformers', 'megatron'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES])
def test_a_tiny_recipe_trains_for_five_steps(
    name: str, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(data)
    assert main(["--recipe", name, "--tiny", f"log_dir={name}"]) == 0
    losses = [float(loss) for loss in re.findall(r"step \d: loss (\S+) over", capsys.readouterr().out)]
    assert len(losses) == 5
    assert name == "clip" or losses[-1] < 0.9 * losses[0]
    assert os.listdir(name)


def test_the_data_of_tiny_recipes_is_written_once(data: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in data.rglob("tiny_data/**/*.tar")}
    write_tiny_data(data / "tiny_data")
    assert before == {file: file.stat().st_mtime_ns for file in data.rglob("tiny_data/**/*.tar")}
    assert len(before) == 20


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--recipe", "qwen2_vl_"], "--recipe: there is no recipe 'qwen2_vl_'; did you mean 'qwen2_vl'?; there are: "),
        (["--recipe", "llava", "encoder.patchsize=3"], "'encoder.patchsize'; did you mean 'encoder.patch_size'?"),
        (["--recipe", "llava", "pad_to_max_length=true"], "did you mean 'encoder.conversation.pad_to_max_length'?"),
        (["--recipe", "clip", "encoder.patch_size=3"], "there is no setting 'encoder.patch_size'"),
        (["--recipe", "qwen2_vl", "encoder.generation=4"], "encoder.generation='4': expected '2', '2.5' or '3'"),
        (["--recipe", "qwen2_vl", "encoder.video.fps=often"], "encoder.video.fps"),
        (["--recipe", "siglip", "model.dtype=int8"], "model.dtype='int8': expected float32, bfloat16 or float16"),
        (["--recipe", "siglip", "family=siglib"], "family='siglib': expected one of text, llava"),
        (["--tiny"], "no recipe is named: give --recipe, or `recipe:` in a YAML; there are: text_sft, "),
        (
            ["--recipe", "clip", "trainer=megatron"],
            "clip cannot be trained by it: it is two encoders",
        ),
        (
            ["--recipe", "qwen3_vl", "trainer=megatron"],
            "qwen3_vl cannot be trained by it: image features enter several layers",
        ),
        (
            ["--recipe", "whisper", "trainer=megatron"],
            "whisper cannot be trained by it: it is an encoder",
        ),
        (["--recipe", "llava", "trainer=keras"], "trainer='keras': expected megatron or lightning"),
        (["--recipe", "llava", "trainer=megatron", "model.dtype=float16"], "trainer=megatron has float32 and bfloat16"),
        (["--recipe", "llava", "parallel.tensor_parallel_size=2"], "trainer=lightning has data parallelism only"),
        (
            ["--recipe", "llava", "training.exit_signal=SIGTERM", "training.checkpoint_dir=x"],
            "only trainer=megatron saves on a signal",
        ),
        (["--recipe", "llava", "training.train_samples=9"], "expected one of them; set the other to null"),
        (["--recipe", "llava", "task_encoder_arguments.limit=9"], "there is no task_encoder to pass them to"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*flags, "--print-config"]) == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("argument", ["encoder.conversation.empty_answer=never", "tokenizer.pretrained=./no/such/one"])
def test_what_only_shows_when_it_is_built_is_one_line_too(
    argument: str, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(data)
    assert main(["--recipe", "text_sft", "--tiny", argument]) == 2
    printed = capsys.readouterr().err.strip().splitlines()[-1]
    assert argument.rpartition("=")[2] in printed
    assert printed.startswith("recipes.train: ")


def test_a_yaml_may_ask_for_the_recipe_in_small(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("recipe: whisper\ntiny: true\ndata: {seed: 5}\n")
    recipe = load_recipe(tmp_path / "run.yaml", [])
    assert (recipe.model.pretrained, recipe.data.seed) == ("tiny", 5)
    assert load_recipe(tmp_path / "run.yaml", [], tiny=True) == recipe


def test_settings_reach_what_is_built() -> None:
    recipe = load_recipe(
        None,
        [
            *("encoder.max_pixels=512", "encoder.video.fps=1", "encoder.video.min_frames=2", "data.seq_length=99"),
            *("encoder.conversation.system=hello", "encoder.conversation.overlong=skip"),
            *("encoder.conversation.max_image_tokens=7", "encoder.conversation.pack_in_batch=true"),
        ],
        recipe="qwen3_vl",
        tiny=True,
    )
    built = recipe.encoder.build(recipe.build_tokenizer(), recipe.build_image_processor(), seq_length=99)
    encoder: object = built
    assert encoder.family.grid((64, 64), 0) == (1, 2, 2)  # type: ignore[attr-defined]
    assert (encoder.sampling.fps, encoder.sampling.min_frames) == (1, 2)  # type: ignore[attr-defined]
    config = encoder.config  # type: ignore[attr-defined]
    assert config.conversation_template_config.system == "hello"
    assert (config.policies.overlong, config.images.max_image_tokens, config.pack_in_batch) == ("skip", 7, True)


def test_a_tokenizer_without_languages_is_refused() -> None:
    recipe = load_recipe(None, ["encoder.language=english"], recipe="whisper", tiny=True)
    with pytest.raises(ConfigError, match="knows none; expected Whisper's"):
        recipe.encoder.build(recipe.build_tokenizer(), recipe.build_image_processor(), seq_length=1)
