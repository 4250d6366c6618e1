from pathlib import Path

import pytest
import yaml

from bridge_data.errors import ConfigError
from recipes.train import load_recipe, main

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"


def test_arguments_come_after_the_yaml_and_the_yaml_after_the_recipe() -> None:
    recipe = load_recipe(DEMO, ["data.seq_length=512", "trainer=lightning"])
    assert recipe.data.seq_length == 512
    assert recipe.data.global_batch_size == yaml.safe_load(DEMO.read_text())["data"]["global_batch_size"]
    assert recipe.trainer == "lightning"
    assert load_recipe(None, []).data.global_batch_size == 4


def test_every_yaml_of_a_run_in_configs_is_a_recipe() -> None:
    runs = [file for file in DEMO.parent.glob("*.yaml") if "recipe" in yaml.safe_load(file.read_text())]
    assert DEMO in runs
    for file in runs:
        assert load_recipe(file, []).lightning.train_steps


def test_printed_settings_can_be_given_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(DEMO), "--print-config", "megatron.train_steps=7"]) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    assert load_recipe(tmp_path / "printed.yaml", []) == load_recipe(DEMO, ["megatron.train_steps=7"])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("data.seq_lenght=512", "no setting 'data.seq_lenght'; did you mean 'data.seq_length'?"),
        ("num_workers=2", "no setting 'num_workers'; did you mean 'loader.num_workers'?"),
        ("trainer=keras", "trainer='keras': expected megatron or lightning"),
        ("megatron.train_steps=0", "train_steps=0"),
        ("data.seq_length=many", "data.seq_length"),
        ("model.bf16=true", "only trainer=megatron"),
        ("data.seq_length", "expected key=value"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(
    argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(DEMO), "trainer=lightning", argument]) == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed
    assert len(printed.splitlines()) == 1


def test_an_unknown_recipe_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("recipe: clip_gtp\n")
    with pytest.raises(ConfigError, match=r"no recipe 'clip_gtp'; did you mean 'clip_gpt'\?; there are: clip_gpt, "):
        load_recipe(tmp_path / "run.yaml", [])


def test_a_missing_tokenizer_says_where_one_comes_from() -> None:
    with pytest.raises(ConfigError, match="make demo"):
        load_recipe(DEMO, ["tokenizer.path=nowhere"]).tokenizer.build()
