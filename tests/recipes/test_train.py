from pathlib import Path

import pytest
import yaml

from bridge_data.errors import ConfigError
from recipes.recipe import load_recipe
from recipes.train import main

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
RUNS = [file for file in sorted(DEMO.parent.glob("*.yaml")) if "recipe" in yaml.safe_load(file.read_text())]


def test_arguments_come_after_the_yaml_and_the_yaml_after_the_recipe() -> None:
    recipe = load_recipe(DEMO, ["data.seq_length=300", "trainer=lightning"])
    assert recipe.data["seq_length"] == 300
    assert recipe.data["global_batch_size"] == yaml.safe_load(DEMO.read_text())["data"]["global_batch_size"]
    assert recipe.trainer == "lightning"
    assert load_recipe(None, [], recipe="llava", tiny=True).data["global_batch_size"] == 2


def test_every_yaml_of_a_run_in_configs_is_a_recipe() -> None:
    assert DEMO in RUNS
    for file in RUNS:
        assert load_recipe(file, []).training.train_steps


@pytest.mark.parametrize("config", RUNS, ids=lambda file: file.stem)
def test_what_is_printed_of_a_yaml_is_printed_again(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(config), "--print-config"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "printed.yaml").write_text(printed)
    assert main(["--config", str(tmp_path / "printed.yaml"), "--print-config"]) == 0
    assert capsys.readouterr().out == printed
    assert load_recipe(tmp_path / "printed.yaml") == load_recipe(config)


def test_printed_settings_can_be_given_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["training.train_steps=7", "task_encoder=a.b:C", "encoder={x: {y: [1, two]}}"]
    assert main(["--config", str(DEMO), "--print-config", *changes]) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    again = load_recipe(tmp_path / "printed.yaml", [])
    assert again == load_recipe(DEMO, changes)
    assert again.encoder == {"x": {"y": [1, "two"]}}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("data.seq_lenght=512", "no setting 'data.seq_lenght'; did you mean 'data.seq_length'?"),
        ("num_workers=2", "no setting 'num_workers'; did you mean 'loader.num_workers'?"),
        ("training.train_steps=0", "train_steps=0"),
        ("data.seq_length=many", "data.seq_length"),
        ("data.seq_length", "expected key=value"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(
    argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(DEMO), argument]) == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed
    assert len(printed.splitlines()) == 1


def test_an_unknown_recipe_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("recipe: lava\n")
    with pytest.raises(ConfigError, match=r"no recipe 'lava'; did you mean 'llava'\?; there are: text_sft, "):
        load_recipe(tmp_path / "run.yaml", [])
