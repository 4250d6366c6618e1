import dataclasses
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from recipes.overrides import override, parse_arguments, read_yaml, to_yaml


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    seq_length: int = 256
    path: str | None = None

    def __post_init__(self) -> None:
        if self.seq_length < 1:
            raise ConfigError(f"Data(seq_length={self.seq_length}): expected at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    data: Data = Data()
    trainer: str = "megatron"
    rate: float = 1e-3


def test_overrides_reach_nested_settings_with_their_types() -> None:
    run = override(Run(), parse_arguments(["data.seq_length=512", "data.path=x/y", "rate=2"]), "arguments")
    assert run == Run(data=Data(seq_length=512, path="x/y"), rate=2.0)
    assert isinstance(run, Run)
    assert isinstance(run.data, Data)


@pytest.mark.parametrize("value", ["crops", 3, ["crops"]])
def test_a_section_is_a_mapping(value: object) -> None:
    with pytest.raises(ConfigError, match=r"run.yaml: data: got .*, expected a mapping of settings, such as data.path"):
        override(Run(), {"data": value}, "run.yaml")


def test_nothing_changed_is_the_same_config() -> None:
    assert override(Run(), {}, "nothing") == Run()


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    run = Run(data=Data(seq_length=64, path="somewhere"), trainer="lightning")
    file.write_text(to_yaml(run))
    assert override(Run(), read_yaml(file), str(file)) == run


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("data.seq_lenght", "data.seq_length"),
        ("seq_length", "data.seq_length"),
        ("datta.path", "data.path"),
        ("trainr", "trainer"),
        ("model.path", "data.path"),
    ],
)
def test_an_unknown_key_names_the_nearest_right_one(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"no setting '{key}'; did you mean '{nearest}'"):
        override(Run(), parse_arguments([f"{key}=1"]), "arguments")


def test_an_unknown_key_like_no_other_lists_them_all() -> None:
    with pytest.raises(ConfigError, match=r"data\.seq_length, data\.path, trainer, rate"):
        override(Run(), {"zzzzzzzz": 1}, "arguments")


@pytest.mark.parametrize("argument", ["data.seq_length=long", "data.seq_length=0", "data=5", "rate=fast"])
def test_wrong_values_are_config_errors(argument: str) -> None:
    with pytest.raises(ConfigError, match="arguments: "):
        override(Run(), parse_arguments([argument]), "arguments")


@pytest.mark.parametrize("argument", ["data.seq_length", "=5"])
def test_an_argument_without_a_key_or_value_is_an_error(argument: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_arguments([argument])


def test_a_missing_or_broken_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_yaml(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(ConfigError, match="got a list"):
        read_yaml(tmp_path / "list.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_yaml(tmp_path / "bad.yaml")
