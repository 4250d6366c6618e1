"""`DataConfig`: the data of a run out of YAML, functions, folders and paths, and the DataModule that it builds."""

import dataclasses
import os
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringModel

from bridge_data import ConfigError, DefaultTaskEncoder, EnergonMultiModalDataModule, MultiModalSampleConfig
from bridge_data.configs import DataConfig
from bridge_data.datamodule.bridge import EnergonDatasetConfig
from bridge_data.limits import Limits
from bridge_data.run_options import SECTION_OF
from bridge_data.runs.training_run import TrainingRun
from bridge_data.samples import TextSample
from tests.datamodule.parts import draw, make_module, write_numbers
from tests.encoders.multimodal_parts import image_processor, make_tokenizer


class Adding(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Adds to its numbers."""

    num_made = 0

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        type(self).num_made += 1
        self.number = number

    def encode_sample(self, sample: TextSample) -> TextSample:
        return TextSample.derive_from(sample, text=str(int(sample.text) + self.number))


ADDING, HALVES = "tests.test_configs.Adding", "tests.test_configs.Halves"


class Halves(EnergonMultiModalDataModule):
    """A DataModule with an argument of its own."""

    def __init__(self, path: Any, portion: int = 1, **options: Any) -> None:
        super().__init__(path, **options)
        self.half = portion


@dataclasses.dataclass
class Later:
    """Settings of a task encoder."""

    number: int = 5

    def build(self, dataset: EnergonDatasetConfig, tokenizer: Any) -> Adding:
        assert (dataset.micro_batch_size, tokenizer) == (2, None)
        return Adding(self.number)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    make_tokenizer().save_pretrained(folder)
    image_processor().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("numbers"))


def in_yaml(folder: Path, data: Any, **others: Any) -> Path:
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump({"data": data, **others}))
    return file


def test_a_yaml_is_read_as_it_is_and_builds_the_same_run(path: Path, tmp_path: Path) -> None:
    encoder = {"class_path": ADDING, "init_args": {"number": 1000}}
    given = {"num_workers": 0, "shuffle_buffer_size": 8, "seed": 3}
    file = in_yaml(tmp_path, {"path": str(path), "task_encoder": encoder, **given}, trainer={"max_steps": 3})
    Adding.num_made = 0
    config = DataConfig.read(file)
    assert (config.path, config.task_encoder, config.options) == (str(path), encoder, given)
    assert Adding.num_made == 0, "the task encoder is named, not made"
    expected = draw(make_module(path, **given).train_dataloader(), 6)
    assert draw(config.build().train_dataloader(), 6) == [[number + 1000 for number in batch] for batch in expected]


def test_a_class_with_init_args_is_read_as_well(path: Path, tmp_path: Path) -> None:
    plain = {"path": str(path), "micro_batch_size": 2}
    ours = in_yaml(tmp_path, {"class_path": "bridge_data.EnergonMultiModalDataModule", "init_args": plain})
    assert DataConfig.read(ours) == DataConfig(path=str(path), options={"micro_batch_size": 2})

    own = {
        "class_path": HALVES,
        "init_args": {**plain, "portion": 7, "task_encoder": {"class_path": ADDING}},
    }
    module = DataConfig.read(in_yaml(tmp_path, own)).build()
    assert isinstance(module, Halves)
    assert (module.half, module.micro_batch_size) == (7, 2)


def test_overrides_replace_settings_of_any_depth(path: Path, tmp_path: Path) -> None:
    encoder = {"class_path": ADDING, "init_args": {"number": 1}}
    file = in_yaml(tmp_path, {"path": str(path), "task_encoder": encoder, "shuffle_buffer_size": 8})
    overrides = ["data.num_lanes=16", "shuffle_buffer_size=null", "task_encoder.init_args.number=5", "where=a: b"]
    config = DataConfig.read(file, overrides)
    assert config.options == {"num_lanes": 16, "shuffle_buffer_size": None, "where": "a: b"}
    assert config.build_task_encoder().number == 5  # type: ignore[attr-defined]
    assert DataConfig.read(file, [f"task_encoder={ADDING}"]).build_task_encoder().number == 0  # type: ignore[attr-defined]
    assert DataConfig.read(path, [f"task_encoder={ADDING}"]).build_task_encoder().number == 0  # type: ignore[attr-defined]
    by_name = in_yaml(tmp_path, {"path": str(path), "task_encoder": ADDING})
    assert DataConfig.read(by_name, ["task_encoder.init_args.number=7"]).build_task_encoder().number == 7  # type: ignore[attr-defined]
    assert DataConfig.read(path, ["where=null"]).run_options.get("where") is None
    assert DataConfig.read(path, ["multimodal_sample_config.patch_size=4"]).options["multimodal_sample_config"]


def test_a_tokenizer_is_named_once_for_the_encoder_and_what_it_is_made_of(
    path: Path, parts: Path, tmp_path: Path
) -> None:
    family = {"class_path": "bridge_data.encoders.Llava", "init_args": {"patch_size": 14}}
    encoder = {"class_path": "bridge_data.encoders.FamilyTaskEncoder", "init_args": {"family": family}}
    data = {"path": str(path), "tokenizer": str(parts), "image_processor": str(parts), "seq_length": 64}
    file = in_yaml(tmp_path, {**data, "task_encoder": encoder})
    module = DataConfig.read(file, ["seq_length=96", "task_encoder.init_args.family.init_args.patch_size=16"]).build()
    assert (module.task_encoder.seq_length, module.task_encoder.family.patch_size) == (96, 16)
    assert module.task_encoder.tokenizer is module.tokenizer
    assert module.task_encoder.family.image_processor is module.image_processor

    arguments = ["--config", str(file), "--data.seq_length=80", "--data.task_encoder.config.packer=best_fit"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of arguments that are no command line
        cli = LightningCLI(BoringModel, EnergonMultiModalDataModule, args=arguments, run=False)
    assert (cli.datamodule.task_encoder.seq_length, cli.datamodule.task_encoder.config.packer) == (80, "best_fit")
    assert cli.datamodule.task_encoder.family.image_processor is cli.datamodule.image_processor


def test_a_class_that_jsonargparse_has_read_is_one_by_its_class_path(path: Path) -> None:
    read = Namespace(class_path=ADDING, init_args=Namespace(number=3))
    encoder = DataConfig(path=path).with_options(task_encoder=read, num_workers=0).build().task_encoder
    assert isinstance(encoder, Adding) and encoder.number == 3


def test_a_path_has_the_defaults_of_the_datamodule(path: Path) -> None:
    config = DataConfig.read(path)
    assert config == DataConfig(path=str(path))
    module = EnergonMultiModalDataModule(str(path), task_encoder=DefaultTaskEncoder())
    assert {name: config.run_options.get(name) for name in SECTION_OF} == {
        name: module.options.get(name) for name in SECTION_OF
    }


MINE = """
import bridge_data
from bridge_data.configs import DataConfig

def config():
    return DataConfig(path=PATH, task_encoder=bridge_data.DefaultTaskEncoder(), options={"seed": 3, "num_workers": 0})

def module():
    return config().build()

def bridge():
    encoder = bridge_data.DefaultTaskEncoder()
    return bridge_data.EnergonDatasetConfig(
        path=PATH, seq_length=64, micro_batch_size=1, num_workers=0, task_encoder=encoder, dataset_kwargs={"seed": 3})

class Container:
    def __init__(self):
        self.dataset, self.train = bridge(), Train()

class Train:
    global_batch_size = 12
    rampup_batch_size = None

def needs(argument):
    pass

def other():
    return 3

def nothing_made():
    pass
"""


@pytest.fixture
def mine(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_run.py").write_text(MINE.replace("PATH", repr(str(path))))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_run", raising=False)
    return "my_run"


@pytest.mark.parametrize("name", ["config", "module", "bridge", "Container"])
def test_a_function_gives_the_run_that_it_returns(name: str, mine: str, path: Path) -> None:
    config = DataConfig.read(f"{mine}:{name}")
    assert config.run_options.get("global_batch_size") == (12 if name == "Container" else None)
    expected = draw(make_module(path, seed=3, shuffle_buffer_size=100).train_dataloader(), 6)
    assert draw(config.build().train_dataloader(), 6) == expected
    assert DataConfig.read(f"{mine}:{name}", ["seed=4"]).run_options.get("seed") == 4


def test_the_folder_of_a_run_has_its_config(path: Path, tmp_path: Path) -> None:
    for folder in ("version_1/deeper", "version_1", ".git"):
        (tmp_path / folder).mkdir(exist_ok=True, parents=True)
    in_yaml(tmp_path / "version_1/deeper", {"path": "elsewhere"})
    (tmp_path / "hparams.yaml").write_text("learning_rate: 1e-3\n")
    in_yaml(tmp_path / ".git", {"path": "hidden"})
    in_yaml(tmp_path / "version_1", {"path": str(path), "seed": 3})
    assert DataConfig.read(tmp_path) == DataConfig(path=str(path), options={"seed": 3})
    (tmp_path / "version_2").mkdir()
    in_yaml(tmp_path / "version_2", {"path": str(path)})
    with pytest.raises(ConfigError, match=r"several configs, version_1/run\.yaml, version_2/run\.yaml"):
        DataConfig.read(tmp_path)


def test_of_the_configs_that_each_resume_writes_the_newest_is_taken_and_told(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2, 0):
        folder = tmp_path / f"version_{number}"
        folder.mkdir()
        in_yaml(folder, {"path": str(path), "seed": number}).rename(folder / "config.yaml")
        os.utime(folder / "config.yaml", (100, 100 + number))
    run = TrainingRun.read(tmp_path, states=[])
    assert run.data.options == {"seed": 2}
    assert f"the settings are those of {tmp_path}/version_2/config.yaml, the newest of 3 configs" in run.assumed
    assert not any("newest" in one for one in TrainingRun.read(tmp_path / "version_1", states=[]).assumed)
    with caplog.at_level("INFO", "bridge_data"):
        assert DataConfig.read(tmp_path).options == {"seed": 2}
        DataConfig.read(tmp_path / "version_1")
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"{tmp_path}: the settings are those of {tmp_path}/version_2/config.yaml, the newest of 3 configs"]


def test_a_run_of_ones_own_has_its_settings_in_its_folder(path: Path, tmp_path: Path) -> None:
    family = {"class_path": "bridge_data.encoders.Llava", "init_args": {"patch_size": 14}}
    encoder = {"class_path": "bridge_data.encoders.FamilyTaskEncoder", "init_args": {"family": family}}
    config = DataConfig(path=path, tokenizer="llava", task_encoder=encoder).with_options(
        limits=Limits(max_json_bytes=99),
        memo={"folder": "made", "version": "1"},
        skip_steps=["3-5"],
        shuffle_buffer_size=None,
    )
    assert config.saved_in(tmp_path / "new" / "run", max_steps=70) is config
    found = DataConfig.read(tmp_path / "new" / "run")
    assert found.run_options == config.run_options
    assert (found.path, found.task_encoder, found.options.keys()) == (str(path), encoder, config.options.keys())
    assert TrainingRun.read(tmp_path / "new" / "run").steps == 70
    own = DataConfig(path="/x", options={"portion": 3, "global_error_handler": in_yaml}, data_module=HALVES)
    own.saved_in(tmp_path)
    assert DataConfig.read(tmp_path / "config.yaml") == own
    for wrong in ({"task_encoder": Adding()}, {"options": {"global_error_handler": lambda error: None}}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong.get('options', wrong)))}: a YAML cannot hold a"):
            DataConfig(path="x", **wrong).saved_in(tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be written"):
        config.saved_in(tmp_path / "config.yaml")


class Filed(Adding):
    """Has arguments that are paths, and some that are not."""

    def __init__(self, vocab_file: str = "", prompts: Path | None = None, template: str = "", n: Any = None) -> None:
        super().__init__()
        self.given = (vocab_file, prompts, template, n)


def encoder_with(**arguments: Any) -> dict[str, Any]:
    return {"class_path": "tests.test_configs.Filed", "init_args": arguments}


@pytest.mark.parametrize(
    ("setting", "value", "refused"),
    [
        ("path", "${DATA}/blend.yaml", "path"),
        ("path", "$DATA/blend.yaml", "path"),
        ("path", "my data/${DATA}/a blend.yaml", "path"),
        ("path", "s3://bucket/$DATA", "path"),
        ("path", "costs$", None),
        ("path", "here$now/photos", None),  # a folder that exists
        ("tokenizer", "${oc.env:HOME,here}", "tokenizer"),
        ("columns", "$DATA/own.parquet", "columns"),
        ("where", "key <> '${a}' AND txt.bytes > 3", None),
        ("where", "${WHERE}", None),
        ("split_part", "$PART", None),
        ("ledger_path", "${RUNS}/ledger", None),  # replaced where it is opened
        ("memo", {"folder": "$RUNS/memo", "version": 1}, None),
        ("task_encoder", encoder_with(vocab_file="$HOME/vocab.txt"), "task_encoder.init_args.vocab_file"),
        ("task_encoder", encoder_with(prompts="${HOME}"), "task_encoder.init_args.prompts"),
        ("task_encoder", encoder_with(n={"files": ["a", "/a/${b}"]}), "task_encoder.init_args.n.files"),
        ("task_encoder", encoder_with(template="${caption}"), None),
        ("task_encoder", encoder_with(template="$caption"), None),
        ("task_encoder", encoder_with(n=["${caption}"]), None),
    ],
)
def test_a_variable_that_nobody_replaces_is_refused_in_paths(
    setting: str, value: Any, refused: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNS", str(tmp_path))
    Path("here$now", "photos").mkdir(parents=True)
    file = in_yaml(tmp_path, {"path": "x"} | {setting: value})
    if refused is None:
        DataConfig.read(file)
        return
    with pytest.raises(ConfigError, match=rf"run\.yaml: data\.{re.escape(refused)}: .*variables are not replaced"):
        DataConfig.read(file)
    if isinstance(value, str):
        with pytest.raises(ConfigError, match="variables are not replaced"):
            DataConfig.read("x", [f"{setting}={value}"])


def test_the_folder_of_a_run_can_be_read_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    for name in ("vocab.txt", "llava", "own.parquet"):
        Path(name).touch()
    inner = encoder_with(vocab_file="vocab.txt", prompts="later", template="llava", n={"class_path": ADDING})
    settings = {"columns": "own.parquet", "ledger_path": "$RUNS/ledger", "memo": {"folder": "memo", "version": "1"}}
    DataConfig(path="photos", tokenizer="llava", task_encoder=inner, options=settings).saved_in("run")
    DataConfig(path="s3://bucket/photos", tokenizer="Qwen/Qwen3-8B", options={"columns": None}).saved_in("remote")
    DataConfig(path="x", data_module=HALVES, options={"own_file": "llava", "memo": None}).saved_in("own")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    found, here = DataConfig.read("../run"), str(tmp_path)
    assert (found.path, found.tokenizer) == (f"{here}/photos", f"{here}/llava")
    assert found.options["columns"] == f"{here}/own.parquet"
    assert (found.options["ledger_path"], found.options["memo"].folder) == (f"{here}/runs/ledger", f"{here}/memo")
    in_encoder = {"vocab_file": f"{here}/vocab.txt", "prompts": f"{here}/later", "template": "llava"}
    assert found.task_encoder == encoder_with(**in_encoder, n={"class_path": ADDING})
    found = DataConfig.read("../remote")
    assert (found.path, found.tokenizer) == ("s3://bucket/photos", "Qwen/Qwen3-8B")
    found = DataConfig.read("../own")
    assert (found.path, found.options["own_file"]) == (f"{here}/x", f"{here}/llava")


def test_the_error_of_a_relative_path_that_is_not_here_says_what_to_do(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    run = in_yaml(tmp_path, {"path": path.name})  # as LightningCLI writes it
    assert TrainingRun.read(run).dataset() is not None
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"is not in {re.escape(str(tmp_path))}: go there, or add path=FOLDER/"):
        TrainingRun.read(run)
    assert TrainingRun.read(run, [f"path={path}"]).dataset() is not None


def test_what_is_wrong_is_named_with_its_file(
    path: Path, tmp_path: Path, mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = {"class_path": ADDING, "init_args": {"numbr": 1}}
    (tmp_path / "broken_syntax.py").write_text("class E(:\n")
    (tmp_path / "broken_import.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    for data, expected in (
        ({"path": "x", "micro_batch_sise": 2}, "'micro_batch_sise'; did you mean 'micro_batch_size'"),
        ({"path": "x", "micro_batch_size": "many"}, "micro_batch_size"),
        ({"path": "x", "micro_batch_size": 0}, "micro_batch_size=0"),
        ({"path": "x", "task_encoder": encoder}, "numbr"),
        ({"path": "x", "task_encoder": {"class_path": "nowhere.Encoder"}}, "no module 'nowhere'"),
        ({"path": "x", "task_encoder": {"class_path": "Encoder"}}, "expected package.module.Name"),
        ({"path": "x", "task_encoder": {"class_path": "tests.test_configs.Addin"}}, "did you mean 'Adding'"),
        ({"path": "x", "task_encoder": {"class_path": "tests.test_configs.in_yaml"}}, "has no class 'in_yaml'"),
        ({"path": "x", "task_encoder": {"class_path": "broken_syntax.E"}}, "SyntaxError"),
        ({"path": "x", "task_encoder": {"class_path": "broken_import.E"}}, "it needs no_such_package"),
        ({"path": "x", "task_encoder": {"class_path": "tests.test_configs.Later"}}, "derived from TaskEncoder"),
        ({"path": "x", "task_encoder": {"class_path": ADDING, "init_args": [1]}}, "init_args: expected arguments by"),
        ({"path": "x", "task_encoder": {"clas_path": ADDING}}, "task_encoder: expected class_path"),
        ({"path": "x", "validation_task_encoder": "nowhere.Encoder"}, "no module 'nowhere'"),
        ({"path": "x", "tokenizer": 3}, "tokenizer: expected a folder"),
        ({"class_path": "no.such.Module", "init_args": {"path": "x"}}, "no module 'no'"),
        ({"class_path": ADDING, "init_args": {"path": "x"}}, "derived from it"),
        ({"class_path": "Module", "init_args": {"path": "x"}}, "expected package.module.Name"),
        ({"micro_batch_size": 2}, "data has no path"),
        ({"path": None}, "data has no path"),
        ("photos", "got 'photos'"),
    ):
        file = in_yaml(tmp_path, data)
        with pytest.raises(ConfigError) as caught:
            DataConfig.read(file)
        assert expected in str(caught.value)
        assert str(file) in str(caught.value)
        assert len(str(caught.value)) < 600
    (tmp_path / "empty").mkdir()
    for source, overrides, expected in (
        (str(path), ["sed=3"], "did you mean 'seed'"),
        (str(path), ["seed"], "expected KEY=VALUE"),
        (str(path), ["micro_batch_size="], "micro_batch_size=: has no value"),
        (str(path), ["micro_batch_size=two"], "micro_batch_size=two: data.micro_batch_size: expected int"),
        (str(path), ["task_encoder=3"], "task_encoder=3: data.task_encoder: expected class_path"),
        (str(path), ["task_encoder.init_args.number=3"], "expected class_path"),
        (str(tmp_path / "missing.yaml"), [], "missing.yaml: no such file"),
        (f"{mine}:nothing_made", [], "nothing_made gives None"),
        (f"{mine}:nothing", [], "has no nothing"),
        (f"{mine}:needs", [], "needs() failed"),
        (f"{mine}:other", [], "got a int"),
        ("no.such:config", [], "no module 'no'"),
        (str(tmp_path / "empty"), [], "no YAML in it has data.path"),
    ):
        with pytest.raises(ConfigError) as caught:
            DataConfig.read(source, overrides)
        assert expected in str(caught.value)


def test_a_config_of_bridge_makes_its_encoder_when_it_is_built(path: Path) -> None:
    config = EnergonDatasetConfig(path=str(path), seq_length=64, micro_batch_size=2, pad_to_max_length=True)
    found = DataConfig.of(config)
    assert found.options["multimodal_sample_config"].pad_to_max_length
    assert found.options["seq_length"] == 64
    made = EnergonDatasetConfig(path=str(path), seq_length=64, micro_batch_size=2, task_encoder=Later())
    assert isinstance(DataConfig.of(made).build().task_encoder, Adding)


def test_an_override_in_an_object_keeps_its_other_settings(path: Path) -> None:
    limits = Limits(max_json_bytes=1000)
    sample = MultiModalSampleConfig(patch_size=16)
    config = DataConfig(path=str(path), options={"limits": limits, "multimodal_sample_config": sample})
    found = config.overridden(["limits.max_json_depth=3", "multimodal_sample_config.policies.overlong=skip"]).options
    assert found["limits"] == Limits(max_json_bytes=1000, max_json_depth=3)
    changed = found["multimodal_sample_config"]
    assert (changed.patch_size, changed.policies.overlong) == (16, "skip")


def test_settings_are_read_without_what_trains(path: Path, tmp_path: Path) -> None:
    file = in_yaml(tmp_path, {"path": str(path), "tokenizer": "no/such", "task_encoder": {"class_path": ADDING}})
    code = f"""
        import sys
        sys.modules["tests.test_configs"] = type(sys)("tests.test_configs")
        import bridge_data
        sys.modules["tests.test_configs"].Adding = type("Adding", (bridge_data.DefaultTaskEncoder,), {{}})
        from bridge_data.configs import DataConfig
        DataConfig.read({str(file)!r}, ["seed=3"]).run_options
        print([name for name in ("lightning", "transformers", "megatron") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Sized:
    """Stands for a class of a script."""


Sized.__module__ = "__main__"


def test_saved_settings_replace_no_other_config_and_are_found_beside_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {size: 3}\ndata: {path: texts}\n")
    (tmp_path / "recipe.yaml").write_text("data: {path: others}\n")
    for _ in range(2):
        config = DataConfig(path="/photos", options={"seed": 3}).saved_in(tmp_path, max_steps=5)
    assert (tmp_path / "config.yaml.1").read_text().startswith("model:") and not (tmp_path / "config.yaml.2").exists()
    assert DataConfig.read(str(tmp_path)) == config


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"options": {"where": ("a > 1",)}}, "could not be read again.*where"),
        ({"task_encoder": Sized}, "task_encoder: Sized is of the script itself"),
        (
            {"task_encoder": {"class_path": ADDING, "init_args": {"number": np.float64(1.0)}}},
            "task_encoder.init_args.number: a YAML cannot hold a float64",
        ),
    ],
)
def test_what_could_not_be_read_again_is_not_saved(settings: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        DataConfig(path="photos", **settings).saved_in(tmp_path)
    assert not [*tmp_path.iterdir()]
