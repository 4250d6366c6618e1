import pytest

from bridge_data.datamodule.settings import sort_settings
from bridge_data.errors import ConfigError


def test_every_setting_goes_where_it_belongs() -> None:
    sorted_settings = sort_settings(
        {"seed": 3, "num_lanes": 4, "prefetch_factor": 7, "virtual_epoch_length": 5, "eval_batches": 2}
    )
    assert sorted_settings.workers == {"seed_offset": 3, "num_lanes": 4}
    assert sorted_settings.loader == {"prefetch_factor": 7}
    assert sorted_settings.dataset == {"virtual_epoch_length": 5}
    assert sorted_settings.eval_batches == 2


def test_what_the_data_are_holds_for_validation_too() -> None:
    given = {"trusted_modules": ("mine",), "auto_decode": False}
    assert sort_settings({**given, "repeat": False}).validation == {**given, "batch_drop_last": False}


@pytest.mark.parametrize(
    ("name", "meant"),
    [("prefech_factor", "prefetch_factor"), ("seeds", "seed"), ("virtual_epoch", "virtual_epoch_length")],
)
def test_an_unknown_name_is_refused_with_the_nearest_right_one(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"no setting '{name}'; did you mean '{meant}'"):
        sort_settings({name: 1})


@pytest.mark.parametrize("name", ["batch_size", "worker_config", "dataset"])
def test_what_the_module_decides_itself_is_no_setting(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no setting '{name}'"):
        sort_settings({name: 1})


def test_an_evaluation_has_at_least_one_batch() -> None:
    with pytest.raises(ConfigError, match="eval_batches=0"):
        sort_settings({"eval_batches": 0})
