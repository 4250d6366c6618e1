"""Recipes of all families: printed, changed, and trained for five steps in small."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge_data import RayWorkers
from bridge_data.errors import ConfigError
from recipes.demo_tokenizer import train_tokenizer
from recipes.recipe import FAMILIES, RECIPES, Pretrained, Recipe, load_recipe
from recipes.tiny_data import write_tiny_data
from recipes.tiny_parts import tiny_image_processor
from recipes.train import main

NAMES = RECIPES
DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
RUNS = [file for file in sorted(DEMO.parent.glob("*.yaml")) if "recipe" in yaml.safe_load(file.read_text())]
QUICK = ("qwen2_5_vl", "clip")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of tiny recipes."""
    folder = tmp_path_factory.mktemp("recipes")
    write_tiny_data(folder / "tiny_data")
    return folder


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


@pytest.mark.parametrize("config", RUNS, ids=lambda file: file.stem)
def test_a_yaml_is_printed_and_given_back(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(config), "--print-config"]) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    assert load_recipe(tmp_path / "printed.yaml") == load_recipe(config)
    assert DEMO in RUNS


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
    encoder: Any = recipe.build_encoder(recipe.build_tokenizer(), recipe.build_image_processor())
    assert encoder.family.grid((64, 64), 0) == (1, 2, 2)
    assert (encoder.sampling.fps, encoder.sampling.min_frames) == (1, 2)
    config = encoder.config
    assert config.conversation_template_config.system == "hello"
    assert (config.policies.overlong, config.images.max_image_tokens, config.pack_in_batch) == ("skip", 7, True)


def test_a_missing_or_broken_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_recipe(tmp_path / "none.yaml")
    for text, message in (("- a\n", "got a list"), ("a: [", "not valid YAML")):
        (tmp_path / "run.yaml").write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_recipe(tmp_path / "run.yaml")


def test_text_of_the_environment_becomes_values_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SIZE": "8", "STRICT": "false", "SECONDS": "1e1", "FIRST": "2"}.items():
        monkeypatch.setenv(name, value)
    recipe = load_recipe(
        None,
        [
            *("data.global_batch_size=${oc.env:SIZE}", "data.rampup_batch_size=['${oc.env:FIRST}', 2, '12']"),
            "loader.strict_restore=${oc.env:STRICT}",
            *("loader.num_workers='4'", "loader.sample_timeout_s=${oc.env:SECONDS}", "data.path=7"),
            "loader.workers={pool: ray, num_cpus: 2, resources: {decoding: 1}}",
            *("loader.ledger_path=5", "data.skip_steps=[3, 5-6]", "data.seq_length=${oc.env:SIZE}"),
        ],
        recipe="text_sft",
    )
    options = recipe.options
    assert (options.trainer.global_batch_size, options.trainer.rampup_batch_size) == (8, [2, 2, 12])
    assert options.trainer.strict_restore is False
    assert (options.worker.num_workers, options.loader.sample_timeout_s) == (4, 10.0)
    assert options.loader.workers == RayWorkers(num_cpus=2.0, resources={"decoding": 1})
    assert (recipe.data["path"], options.loader.ledger_path, recipe.data["seq_length"]) == ("7", "5", 8)
    assert options.trainer.skip_steps == [3, "5-6"]


def test_parts_of_the_model_are_of_its_revision() -> None:
    recipe = load_recipe(None, ["model.pretrained=/x", "model.revision=abc"], recipe="qwen2_5_vl")
    assert recipe.image_processor is not None
    assert recipe.tokenizer.revision == recipe.image_processor.revision == "abc"
    other = load_recipe(None, ["model.revision=abc", "tokenizer.pretrained=/y"], recipe="qwen2_5_vl")
    assert other.image_processor is not None
    assert (other.tokenizer.revision, other.image_processor.revision) == (None, "abc")


def test_arguments_come_after_the_yaml_and_the_yaml_after_the_recipe(tmp_path: Path) -> None:
    recipe = load_recipe(DEMO, ["data.seq_length=300", "trainer=lightning", "task_encoder=a.b:C", "encoder.x=1"])
    assert (recipe.data["seq_length"], recipe.trainer) == (300, "lightning")
    assert recipe.encoder == {"x": 1}, "another task encoder begins without arguments"
    assert recipe.data["global_batch_size"] == yaml.safe_load(DEMO.read_text())["data"]["global_batch_size"]
    assert load_recipe(None, [], recipe="llava", tiny=True).data["global_batch_size"] == 2
    (tmp_path / "run.yaml").write_text("recipe: whisper\ntiny: true\ndata: {seed: 5}\n")
    recipe = load_recipe(tmp_path / "run.yaml", [])
    assert (recipe.model.pretrained, recipe.data["seed"]) == ("tiny", 5)
    assert {load_recipe(None, [], recipe=name).family for name in NAMES} == set(FAMILIES)


@pytest.mark.processes
@pytest.mark.parametrize(
    "code",
    [
        # nothing heavy is imported until something is built
        "from recipes.train import main; main(['--recipe', 'qwen2_5_vl', '--print-config'])\n"
        "assert not {'torch', 'lightning', 'transformers', 'megatron'} & set(sys.modules)",
        "import recipes.demo\nassert not {'torch', 'numpy', 'transformers'} & set(sys.modules)",
        # the writers of checkpoints import the command alone
        "before = set(sys.modules); import recipes.train\n"
        "ours = {name for name in set(sys.modules) - before if name.startswith(('bridge_data', 'recipes'))}\n"
        "assert ours == {'recipes', 'recipes.train'}, ours",
    ],
)
def test_commands_import_little(code: str) -> None:
    command = [sys.executable, "-c", f"import sys; {code}"]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL)


WRONG: dict[str, list[tuple[str, str]]] = {
    "llava": [
        ("encoder.patchsize=3", "'encoder.patchsize'; did you mean 'encoder.patch_size'?"),
        ("pad_to_max_length=true", "did you mean 'encoder.conversation.pad_to_max_length'?"),
        ("trainer=keras", "trainer='keras': expected megatron or lightning"),
        ("parallel.tensor_parallel_size=2", "trainer=lightning has data parallelism only"),
        ("training.train_samples=9", "expected one of train_steps, train_samples"),
        ("task_encoder_arguments.limit=9", "no setting 'task_encoder_arguments.limit'"),
        ("loader.options.prefetch_factor=9", "did you mean 'loader.prefetch_factor'"),
        ("loader.options.sample_timeout_s=9", "did you mean 'loader.sample_timeout_s'"),
        ("loader.sample_timeout=9", "no setting 'loader.sample_timeout'"),
        ("loader.seed=9", "loader.seed: a recipe has it as data.seed"),
        ("data.batch_size=4", "no setting 'data.batch_size'; did you mean"),
        ("loader.batch_size=4", "no setting 'loader.batch_size'; did you mean"),
        ("data.dataset=x", "no setting 'data.dataset'"),
        ("loader.dataset=x", "no setting 'loader.dataset'"),
        ("data.worker_config={rank: 0}", "no setting 'data.worker_config.rank'"),
        ("loader.worker_config=x", "no setting 'loader.worker_config'"),
        ("loader.eval_batches=0", "eval_batches=0: expected an integer of at least 1"),
        ("loader.prefetch_factor=0", "prefetch_factor=0: expected"),
        ("encoder.conversation.system=x", "conversation_template_config.system'"),
        ("task_encoder=recipes.task_encoders:lava", "there is none of this name"),
        ("data=crops", "data: got 'crops', expected a mapping of settings, such as data"),
        ("data=3", "data: got 3, expected a mapping of settings, such as data"),
        ("data=[crops]", "data: got ['crops'], expected a mapping of settings, such as data"),
        ("data.seq_lenght=1", "no setting 'data.seq_lenght'; did you mean 'data.seq_length'"),
        ("seq_length=1", "no setting 'seq_length'; did you mean 'data.seq_length'"),
        ("datta.path=1", "no setting 'datta.path'; did you mean 'data.path'"),
        ("trainr=1", "no setting 'trainr'; did you mean 'trainer'"),
        ("num_workers=1", "no setting 'num_workers'; did you mean 'loader.num_workers'"),
        ("model.path=1", "no setting 'model.path'; did you mean 'data.path'"),
        ("zzzzzzzz=1", "data.seq_length"),  # like no other: all are listed
        ("data.seq_length=long", "long"),
        ("data.seq_length=0", "seq_length=0"),
        ("training.learning_rate=fast", "fast"),
        ("training.train_steps=0", "train_steps=0"),
        ("data.seq_length", "expected key=value"),
        ("=5", "expected key=value"),
    ],
    "text_sft": [
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
        ("loader.workers=slurm", "workers='slurm' needs the plug-in 'slurm', which is not installed"),
        (
            "loader.workers={pool: ray, num_cpus: many}",
            "RayWorkers: num_cpus='many': expected a positive number of CPUs",
        ),
        ("loader.workers={pool: ray, num_cpu: 2}", "'num_cpu'; did you mean 'num_cpus'"),
        ("loader.cache_pool=5", "loader.cache_pool=5: expected null"),
        ("loader.ledger_path=[a]", "loader.ledger_path=['a']: expected text or null"),
        ("encoder.conversation=null", "encoder.conversation=None: expected a mapping of the fields of FamilyConfig"),
        ("data.eval_batches=0", "eval_batches=0: expected an integer of at least 1"),
    ],
    "clip": [
        ("encoder.patch_size=3", "there is no setting 'encoder.patch_size'"),
        ("trainer=megatron", "clip cannot be trained by it: it is two encoders"),
    ],
    "qwen2_vl": [
        ("encoder.generation=4", "encoder.generation=4: expected '2' or '2.5' or '3'"),
        ("encoder.video.fps=often", "encoder.video.fps='often'"),
        ("encoder.conversation.policies.empty_answer=never", "empty_answer='never'"),
    ],
    "qwen3_vl": [("trainer=megatron", "qwen3_vl cannot be trained by it: image features enter several layers")],
    "whisper": [("trainer=megatron", "whisper cannot be trained by it: it is an encoder")],
    "siglip": [
        ("model.dtype=int8", "model.dtype='int8': expected float32, bfloat16 or float16"),
        ("family=siglib", "family='siglib': expected one of text, llava"),
    ],
    "qwen2_vl_": [("data.seed=1", "there is no recipe 'qwen2_vl_'; did you mean 'qwen2_vl'?; there are: ")],
}


@pytest.mark.parametrize(
    ("name", "argument", "message"),
    [(name, argument, message) for name, cases in WRONG.items() for argument, message in cases],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(
    name: str, argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--recipe", name, argument, "--print-config"]) == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tiny"], "no recipe is named: give --recipe, or `recipe:` in a YAML; there are: text_sft, "),
        (["--recipe", "llava", "trainer=megatron", "model.dtype=float16"], "trainer=megatron has float32 and bfloat16"),
        (
            ["--recipe", "llava", "training.exit_signal=SIGTERM", "training.checkpoint_dir=x"],
            "only trainer=megatron saves on a signal",
        ),
        (
            ["--recipe", "text_sft", "--tiny", "tokenizer.pretrained=./no/such/one"],
            "'./no/such/one': .*make demo.*or 't",
        ),
        (["--recipe", "whisper", "--tiny", "encoder.language=english"], "knows none; expected Whisper's"),
    ],
)
def test_settings_that_do_not_go_together_are_one_line_too(
    flags: list[str], message: str, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(data)
    assert main(flags) == 2
    printed = capsys.readouterr().err.strip().splitlines()[-1]
    assert printed.startswith("recipes.train: ") and re.search(message, printed)


@pytest.mark.parametrize(
    ("recipe", "argument", "named"),
    [
        ("clip", "data.seq_length=77", "data.seq_length: .*pairs takes none"),
        ("whisper", "data.seq_length=448", "data.seq_length: .*speech takes none"),
        ("text_sft", "image_processor.pretrained=tiny", "image_processor: .*text takes none"),
        ("text_sft", "data.seq_length=null", "data.seq_length=null: .*text needs it"),
        (
            "text_sft",
            "task_encoder=bridge_data.encoders:text_encoder encoder.seq_length=64",
            "data.seq_length=512: .* of 64",
        ),
    ],
)
def test_what_an_encoder_does_not_take_is_refused(recipe: str, argument: str, named: str, data: Path) -> None:
    """And what it needs, or has another value of."""
    with pytest.raises(ConfigError, match=named):
        made = load_recipe(
            None, [*argument.split(), f"data.path={data / 'tiny_data/conversations'}"], recipe=recipe, tiny=True
        )
        made.build_data(None, made.build_tokenizer())


@pytest.mark.parametrize("family", ["llava", "smolvlm", "qwen2_vl"])
def test_parts_come_from_folders(family: str, tmp_path: Path) -> None:
    train_tokenizer(["a grey crop of the cat"], tmp_path / "words", 300)
    tiny_image_processor(family).save_pretrained(tmp_path / "images")
    changes = [f"tokenizer.pretrained={tmp_path / 'words'}", f"image_processor.pretrained={tmp_path / 'images'}"]
    recipe = load_recipe(None, changes, recipe=family, tiny=True)
    tokenizer = recipe.build_tokenizer()
    assert tokenizer.decode(tokenizer("a grey crop").input_ids) == "a grey crop"
    built = recipe.build_image_processor()
    assert built.to_dict() == tiny_image_processor(family).to_dict()
    with pytest.raises(ConfigError, match="transformers has no such class"):
        Pretrained(pretrained="x").load("AutoModelForNothing", "model")


def test_the_weights_of_a_tiny_model_have_the_dtype() -> None:
    recipe = load_recipe(None, ["model.dtype=bfloat16"], recipe="text_sft", tiny=True)
    model = recipe.build_model(recipe.build_tokenizer())
    assert {str(weight.dtype) for weight in model.parameters()} == {"torch.bfloat16"}
