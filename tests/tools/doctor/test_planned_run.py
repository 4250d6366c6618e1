from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from bridge_data.tools.doctor import Finding, Level, in_order_of_gain
from bridge_data.tools.runs import PlannedRun, read_config
from tests.tools.doctor.machines import planned

RECIPE = """
recipe: llava
data: {path: blend.yaml, seq_length: 256, global_batch_size: 8, micro_batch_size: 2, packing_buffer_size: 24}
loader: {num_workers: 3, num_lanes: 4, wait_for_workers: true}
training: {train_steps: 40, learning_rate: 3.0e-3}
"""
BRIDGE = """
dataset: {path: photos, micro_batch_size: 1, max_samples_per_sequence: null, dataset_kwargs: {num_lanes: 64}}
train: {train_iters: 1000, global_batch_size: 128}
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "run.yaml"
    file.write_text(text)
    return file


def test_the_config_of_a_recipe(tmp_path: Path) -> None:
    run = PlannedRun.of({"num_workers": 1}, write(tmp_path, RECIPE))
    assert (
        run.to_dict()
        == planned(
            num_workers=1, num_lanes=4, micro_batch_size=2, global_batch_size=8, packing_buffer_size=24, steps=40
        ).to_dict()
    )
    assert run.step_size == 8


def test_the_config_of_megatron_bridge(tmp_path: Path) -> None:
    found = read_config(write(tmp_path, BRIDGE))
    assert found == {
        "num_lanes": 64,
        "micro_batch_size": 1,
        "max_samples_per_sequence": None,
        "steps": 1000,
        "global_batch_size": 128,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {layers: 3}", "has no setting of a run at its top level or in data, dataset"),
        ("[1, 2]", "expected a mapping of settings"),
        (
            "data: {micro_batch_size: '${size}'}",
            r"run.yaml, or an option: micro_batch_size='\$\{size\}': expected an int",
        ),
        ("train: {train_iters: 0}", "run.yaml, or an option: steps=0: expected an integer of at least 1"),
        ("data: {", "run.yaml"),
    ],
)
def test_what_is_wrong_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PlannedRun.of({}, write(tmp_path, text))


def test_a_config_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing.yaml: cannot be read: No such file"):
        read_config(tmp_path / "nothing.yaml")


@pytest.mark.parametrize("setting", [{"num_ranks": 0}, {"later_ranks": (8, 0)}, {"step_s": 0.0}, {"steps": 1.5}])
def test_numbers_out_of_range(setting: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        planned(**setting)


def finding(code: str, level: Level, factor: float = 1.0) -> Finding:
    return Finding(code=code, level=level, what="", change="", factor=factor)


def test_what_stops_comes_first_and_then_what_gains_most() -> None:
    found = [
        finding("note", Level.NOTE, 100),
        finding("little", Level.SLOWS, 1.1),
        finding("much", Level.SLOWS, 3),
        finding("stop", Level.STOPS),
    ]
    assert [each.code for each in in_order_of_gain(found)] == ["stop", "much", "little", "note"]


def test_the_level_of_plain_data_is_a_word() -> None:
    assert finding("a", Level.MIXES).to_dict()["level"] == "mixes"
