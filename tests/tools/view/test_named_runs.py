from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from bridge_data.tools.runs import configured_run
from bridge_data.tools.view.pages import BatchSequence
from tests.prepared import write_texts

MODULE = """
from bridge_data import DefaultTaskEncoder, EnergonMultiModalDataModule

def make(**more):
    return EnergonMultiModalDataModule(
        "texts", micro_batch_size=2, num_workers=0, **{"num_lanes": 4, **more}, seed=3, max_samples_per_sequence=10,
        task_encoder=DefaultTaskEncoder(),
    )

def without_lanes():
    return EnergonMultiModalDataModule("texts", num_workers=0, task_encoder=DefaultTaskEncoder())

def with_sizes():
    return make(global_batch_size=8, rampup_batch_size=[4, 4, 8])

other = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, and a module that makes DataModules."""
    write_texts(tmp_path / "texts", 60)
    (tmp_path / "shown_run.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.slow  # imports Lightning
def test_batches_are_those_of_the_data_module(folder: Path) -> None:
    import shown_run

    run = configured_run("shown_run:with_sizes")
    sequence = BatchSequence(run.dataset)
    loader = shown_run.with_sizes().train_dataloader()
    for number, batch in zip(range(8), loader, strict=False):
        assert sequence.get(number).__key__ == batch.__key__
    loader.close()
    assert run.path == "texts" and run.schedule is not None
    assert (run.schedule.size_after(0), run.schedule.size_after(1000)) == (4, 8)
    assert "for 4 lanes" in run.told
    assert "for 6 lanes" in configured_run("shown_run:with_sizes", num_lanes=6, saved_lanes=9).told
    assert "for 4 lanes" in configured_run("shown_run:with_sizes", saved_lanes=9).told
    assert "for 9 lanes" in configured_run("shown_run:without_lanes", saved_lanes=9).told
    assert "for 8 lanes" in configured_run("shown_run:without_lanes").told
    assert configured_run("shown_run:make").schedule is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("nothing", "expected the YAML of a recipe or of a LightningCLI, or package.module:name"),
        ("no_such_module_here:make", "no module 'no_such_module_here': it is neither in"),
        ("shown_run:none", "shown_run.py has no none"),
    ],
)
def test_what_is_no_run_is_told(folder: Path, config: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured_run(config)


@pytest.mark.slow
def test_another_object_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="shown_run:other: got int, expected an EnergonMultiModalDataModule"):
        configured_run("shown_run:other")
