"""Recipes of all families: printed, changed, and trained for five steps in small."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from recipes.recipe import FAMILIES, RECIPES, Recipe, load_recipe
from recipes.tiny_data import write_tiny_data
from recipes.train import main

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
    assert main(["--config", str(tmp_path / "run.yaml"), "--print-config"]) == 0
    assert capsys.readouterr().out == printed
    assert (again.tokenizer.pretrained == again.model.pretrained == "tiny") == tiny
    assert tiny or re.fullmatch(r"[\w-]+/[\w.-]+", again.model.pretrained)


@pytest.mark.processes
def test_nothing_heavy_is_imported_until_something_is_built() -> None:
    code = (
        "import sys; from recipes.train import main; main(['--recipe', 'qwen2_5_vl', '--print-config'])\n"
        "assert not {'torch', 'lightning', 'transformers', 'megatron'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL)


@pytest.mark.processes
def test_checkpoint_writers_import_the_command_alone() -> None:
    code = (
        "import sys; before = set(sys.modules); import recipes.train\n"
        "ours = {name for name in set(sys.modules) - before if name.startswith(('bridge_data', 'recipes'))}\n"
        "assert ours == {'recipes', 'recipes.train'}, ours"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


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
        (["--recipe", "qwen2_vl", "encoder.generation=4"], "encoder.generation=4: expected '2' or '2.5' or '3'"),
        (["--recipe", "qwen2_vl", "encoder.video.fps=often"], "encoder.video.fps='often'"),
        (["--recipe", "qwen2_vl", "encoder.conversation.policies.empty_answer=never"], "empty_answer='never'"),
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
        (["--recipe", "llava", "task_encoder_arguments.limit=9"], "no setting 'task_encoder_arguments.limit'"),
        (["--recipe", "llava", "loader.options.prefetch_factor=9"], "did you mean 'loader.prefetch_factor'"),
        (["--recipe", "llava", "loader.options.sample_timeout_s=9"], "did you mean 'loader.sample_timeout_s'"),
        (["--recipe", "llava", "loader.sample_timeout=9"], "no setting 'loader.sample_timeout'"),
        (["--recipe", "llava", "loader.seed=9"], "loader.seed: a recipe has it as data.seed"),
        (["--recipe", "llava", "data.batch_size=4"], "no setting 'data.batch_size'; did you mean"),
        (["--recipe", "llava", "loader.batch_size=4"], "no setting 'loader.batch_size'; did you mean"),
        (["--recipe", "llava", "data.dataset=x"], "no setting 'data.dataset'"),
        (["--recipe", "llava", "loader.dataset=x"], "no setting 'loader.dataset'"),
        (["--recipe", "llava", "data.worker_config={rank: 0}"], "no setting 'data.worker_config.rank'"),
        (["--recipe", "llava", "loader.worker_config=x"], "no setting 'loader.worker_config'"),
        (["--recipe", "llava", "loader.eval_batches=0"], "eval_batches=0: expected an integer of at least 1"),
        (["--recipe", "llava", "loader.prefetch_factor=0"], "prefetch_factor=0: expected"),
        (["--recipe", "llava", "data.repeat_steps=['3']"], "repeat_steps=['3']: steps are no longer repeated"),
        (["--recipe", "llava", "encoder.conversation.system=x"], "conversation_template_config.system'"),
        (["--recipe", "llava", "task_encoder=recipes.task_encoders:lava"], "there is none of this name"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*flags, "--print-config"]) == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("argument", ["tokenizer.pretrained=./no/such/one"])
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
    assert (recipe.model.pretrained, recipe.data["seed"]) == ("tiny", 5)
    assert load_recipe(tmp_path / "run.yaml", [], tiny=True) == recipe


def test_settings_reach_what_is_built() -> None:
    recipe = load_recipe(
        None,
        [
            *("encoder.max_pixels=512", "encoder.video.fps=1", "encoder.video.min_frames=2", "data.seq_length=99"),
            "encoder.conversation.conversation_template_config.system=hello",
            "encoder.conversation.policies.overlong=skip",
            *("encoder.conversation.images.max_image_tokens=7", "encoder.conversation.pack_in_batch=true"),
        ],
        recipe="qwen3_vl",
        tiny=True,
    )
    built = recipe.build_encoder(recipe.build_tokenizer(), recipe.build_image_processor())
    encoder: object = built
    assert encoder.family.grid((64, 64), 0) == (1, 2, 2)  # type: ignore[attr-defined]
    assert (encoder.sampling.fps, encoder.sampling.min_frames) == (1, 2)  # type: ignore[attr-defined]
    config = encoder.config  # type: ignore[attr-defined]
    assert config.conversation_template_config.system == "hello"
    assert (config.policies.overlong, config.images.max_image_tokens, config.pack_in_batch) == ("skip", 7, True)


def test_a_tokenizer_without_languages_is_refused() -> None:
    recipe = load_recipe(None, ["encoder.language=english"], recipe="whisper", tiny=True)
    with pytest.raises(ConfigError, match="knows none; expected Whisper's"):
        recipe.build_encoder(recipe.build_tokenizer(), recipe.build_image_processor())


@pytest.mark.parametrize("value", ["crops", "3", "[crops]"])
def test_a_section_is_a_mapping(value: str) -> None:
    with pytest.raises(ConfigError, match=r"command line: data: got .*, expected a mapping of settings, such as data"):
        load_recipe(None, [f"data={value}"], recipe="llava")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("data.seq_lenght", "data.seq_length"),
        ("seq_length", "data.seq_length"),
        ("datta.path", "data.path"),
        ("trainr", "trainer"),
        ("num_workers", "loader.num_workers"),
        ("model.path", "data.path"),
    ],
)
def test_an_unknown_key_names_the_nearest_right_one(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"no setting '{key}'; did you mean '{nearest}'"):
        load_recipe(None, [f"{key}=1"], recipe="llava")


def test_an_unknown_key_like_no_other_lists_them_all() -> None:
    with pytest.raises(ConfigError, match=r"data\.seq_length.*training\.train_steps"):
        load_recipe(None, ["zzzzzzzz=1"], recipe="llava")


@pytest.mark.parametrize("argument", ["data.seq_length=long", "data.seq_length=0", "training.learning_rate=fast"])
def test_wrong_values_are_config_errors(argument: str) -> None:
    with pytest.raises(ConfigError, match=f"command line: .*{argument.partition('=')[2]}"):
        load_recipe(None, [argument], recipe="llava")


@pytest.mark.parametrize("argument", ["data.seq_length", "=5"])
def test_an_argument_without_a_key_or_value_is_an_error(argument: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        load_recipe(None, [argument], recipe="llava")


def test_a_missing_or_broken_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_recipe(tmp_path / "none.yaml")
    for text, message in (("- a\n", "got a list"), ("a: [", "not valid YAML")):
        (tmp_path / "run.yaml").write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_recipe(tmp_path / "run.yaml")


def test_a_recipe_takes_every_option_of_a_run() -> None:
    recipe = load_recipe(None, ["loader.sample_timeout_s=9", "data.where=txt.bytes < 9"], recipe="text_sft")
    assert (recipe.options.loader.sample_timeout_s, recipe.options.data.where) == (9, "txt.bytes < 9")


def test_text_of_the_environment_becomes_values_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SIZE": "8", "STRICT": "false", "SECONDS": "1e1", "FIRST": "2"}.items():
        monkeypatch.setenv(name, value)
    recipe = load_recipe(
        None,
        [
            *("data.global_batch_size=${oc.env:SIZE}", "data.rampup_batch_size=['${oc.env:FIRST}', 2, '12']"),
            *("loader.strict_restore=${oc.env:STRICT}", "loader.wait_for_workers=${oc.env:STRICT}"),
            *("loader.num_workers='4'", "loader.sample_timeout_s=${oc.env:SECONDS}", "data.path=7"),
            *("loader.ledger_path=5", "data.skip_steps=[3, 5-6]", "data.seq_length=${oc.env:SIZE}"),
        ],
        recipe="text_sft",
    )
    options = recipe.options
    assert (options.trainer.global_batch_size, options.trainer.rampup_batch_size) == (8, [2, 2, 12])
    assert options.trainer.strict_restore is False and recipe.loader["wait_for_workers"] is False
    assert (options.worker.num_workers, options.loader.sample_timeout_s) == (4, 10.0)
    assert (recipe.data["path"], options.loader.ledger_path, recipe.data["seq_length"]) == ("7", "5", 8)
    assert options.trainer.skip_steps == [3, "5-6"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("loader.wait_for_workers=maybe", "loader.wait_for_workers='maybe': expected true or false"),
        ("loader.strict_restore=maybe", "loader.strict_restore='maybe': expected true or false"),
        ("loader.strict_restore=null", "loader.strict_restore=None: expected true or false"),
        ("data.path=null", "data.path=None: expected text"),
        ("data.path=''", "data.path='': expected a path or a URL"),
        ("data.rampup_batch_size=abc", "data.rampup_batch_size='abc': expected a list or null"),
        ("data.rampup_batch_size=[2, x, 12]", "data.rampup_batch_size[1]='x': expected an integer"),
        ("data.global_batch_size=few", "data.global_batch_size='few': expected an integer or null"),
        ("data.packing_buffer_size=2.5", "data.packing_buffer_size=2.5: expected an integer or null"),
        ("data.trust_dataset_code=perhaps", "data.trust_dataset_code='perhaps': expected true or false"),
        ("data.field_map=text", "data.field_map='text': expected a mapping or null"),
        ("loader.start_method=thread", "expected 'server' or 'spawn'"),
        ("loader.cache_pool=5", "loader.cache_pool=5: expected null"),
        ("loader.ledger_path=[a]", "loader.ledger_path=['a']: expected text or null"),
        ("encoder.conversation=null", "encoder.conversation=None: expected a mapping of the fields of FamilyConfig"),
        ("data.eval_batches=0", "eval_batches=0: expected an integer of at least 1"),
    ],
)
def test_a_value_of_another_type_is_refused(argument: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^command line: .*{re.escape(message)}"):
        load_recipe(None, [argument], recipe="text_sft")


def test_another_task_encoder_begins_without_arguments() -> None:
    recipe = load_recipe(None, ["task_encoder=a.b:C", "encoder.x=1"], recipe="llava")
    assert recipe.encoder == {"x": 1}


def test_batch_sizes_grow_as_the_data_say() -> None:
    sizes = ["data.global_batch_size=8", "data.rampup_batch_size=[2, 2, 12]"]
    schedule = load_recipe(None, sizes, recipe="llava").batch_schedule
    assert (schedule.size_after(0), schedule.size_after(100)) == (2, 8)


def test_parts_of_the_model_are_of_its_revision() -> None:
    recipe = load_recipe(None, ["model.pretrained=/x", "model.revision=abc"], recipe="qwen2_5_vl")
    assert recipe.image_processor is not None
    assert recipe.tokenizer.revision == recipe.image_processor.revision == "abc"
    other = load_recipe(None, ["model.revision=abc", "tokenizer.pretrained=/y"], recipe="qwen2_5_vl")
    assert other.image_processor is not None
    assert (other.tokenizer.revision, other.image_processor.revision) == (None, "abc")
