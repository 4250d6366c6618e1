import dataclasses
import inspect
import pydoc
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args

import pytest

from bridge_data import (
    DefaultTaskEncoder,
    EnergonMultiModalDataModule,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    ignored,
)
from bridge_data.errors import ConfigError
from bridge_data.options import takes_options
from bridge_data.plugins.sharing.assignment import COSTS
from bridge_data.run_options import (
    SECTION_OF,
    DatasetOptions,
    LoaderConfig,
    RunOptions,
    TrainerOptions,
    TrainingOptions,
    option_fields,
)
from tests import write_keywords
from tests.prepared import write_texts

TAKEN = [
    (get_train_dataset, TrainingOptions),
    (get_val_dataset, DatasetOptions),
    (get_val_datasets, DatasetOptions),
    (get_loader, LoaderConfig),
    (get_savable_loader, LoaderConfig),
]
NEEDED = {"batch_size", "shuffle_buffer_size", "max_samples_per_sequence"}
"""Options without a default in Energon's functions."""


@dataclasses.dataclass
class Options:
    size: int = 3
    name: str | None = None


@takes_options(Options)
def show(first: str, *, key: int = 1, **options: Any) -> tuple[Any, ...]:
    """Show them."""
    return first, key, options


def test_a_function_gets_the_options_that_are_given_and_shows_all() -> None:
    assert show("a") == ("a", 1, {})
    assert show("a", name="b", key=2) == ("a", 2, {"name": "b"})
    assert str(inspect.signature(show)).startswith(
        "(first: str, *, key: int = 1, size: int = 3, name: str | None = None)"
    )
    assert show.__doc__ == "Show them."


def test_unknown_options_are_type_errors_with_the_nearest_name() -> None:
    with pytest.raises(TypeError, match=r"show\(\) got an unexpected keyword argument 'sise'; did you mean 'size'\?"):
        show("a", sise=3)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        show(size=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(("function", "part"), TAKEN)
def test_signatures_show_each_option_with_its_type_and_default(function: Callable[..., Any], part: type) -> None:
    parameters = inspect.signature(function).parameters
    for field in dataclasses.fields(part):
        shown = parameters[field.name]
        assert (shown.kind, shown.annotation) == (shown.KEYWORD_ONLY, field.type), field.name
        needed = field.name in NEEDED and (part is TrainingOptions or field.name == "batch_size")
        assert shown.default == (shown.empty if needed else field.default), field.name


def test_the_data_module_shows_all_options_with_their_types_and_defaults() -> None:
    shown = inspect.signature(EnergonMultiModalDataModule).parameters
    of_the_job = {"rank", "world_size", "data_parallel_group", "num_lanes_given"}
    of_bridge = {"num_workers", "micro_batch_size", "pin_memory"}
    for part in (TrainingOptions, WorkerConfig, LoaderConfig, TrainerOptions):
        for field in dataclasses.fields(part):
            name = {"batch_size": "micro_batch_size", "seed_offset": "seed"}.get(field.name, field.name)
            if name not in of_the_job | of_bridge:
                assert (shown[name].annotation, shown[name].default) == (field.type, field.default), name
    told = pydoc.render_doc(EnergonMultiModalDataModule, renderer=pydoc.plaintext)
    assert "prefetch_factor: int = " in told.partition("Training and validation data at")[0]


def test_types_of_keyword_arguments_are_written_anew_after_a_change_of_an_option() -> None:
    text = write_keywords.formatted("".join(write_keywords.written()))
    assert write_keywords.FILE.read_text() == text, "run `python -m tests.write_keywords`"


@pytest.mark.parametrize("part", [DatasetOptions, TrainingOptions, LoaderConfig, TrainerOptions])
def test_each_option_says_what_it_means(part: type) -> None:
    keys = re.findall(r'^    [a-z_]+: [^\n]+\n(    """)?', inspect.getsource(part), re.MULTILINE)
    assert keys and all(keys)


def test_options_change_alone() -> None:
    run = RunOptions.of(num_lanes=4, seed=3, where="txt.bytes < 9").with_options(num_workers=2, prefetch_factor=5)
    assert (run.worker.num_lanes, run.worker.seed_offset, run.worker.num_workers) == (4, 3, 2)
    assert (run.data.where, run.loader.prefetch_factor, run.get("seed")) == ("txt.bytes < 9", 5, 3)
    assert RunOptions.of(num_workers=9).worker.changed(num_workers=1).num_lanes == 8, "the default follows"


WITHOUT_EFFECT = sorted({*ignored.IGNORED} - {"max_samples_per_sequence"})
"""Arguments of Energon's functions without effect; that one has none in factories alone."""


def test_ignored_arguments_are_warned_of_once_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored, "_warned", set())
    write_texts(tmp_path / "data", 4)
    of_data: dict[str, Any] = {"parallel_shard_iters": 16, "handler": print, "ignore_decoder_errors": False}
    of_loader: dict[str, Any] = {"checkpoint_every_sec": 60, "n_checkpoints": 5}
    of_loader |= {"checkpoint_every_min_n_samples": 2, "gc_collect_every_n_steps": 10}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            config = WorkerConfig(0, 1, 0, worker_log_level=1, worker_debug_path="log")
            for make in (get_val_datasets, get_val_dataset):
                data = make(tmp_path / "data", split_part="train", worker_config=config, batch_size=2, **of_data)
            get_savable_loader(data, **of_loader).close()
    told = [str(warning.message) for warning in caught]
    assert sorted(text.split()[0] for text in told) == WITHOUT_EFFECT
    assert all(ignored.IGNORED[text.split()[0]] in text for text in told)
    assert {warning.filename for warning in caught} == {__file__}, "the warning shows the caller's line"


def test_no_option_of_a_run_is_without_effect() -> None:
    assert SECTION_OF.keys().isdisjoint(WITHOUT_EFFECT)
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_checkpoints'"):
        get_loader(None, n_checkpoints=5)  # type: ignore[call-arg]


KINDS = {
    name: set(get_args(field.type) if isinstance(field.type, UnionType) else (field.type,))
    for fields in option_fields().values()
    for name, field in fields.items()
}


@pytest.mark.parametrize("value", ["false", "true", 0, 1.0])
@pytest.mark.parametrize("name", [name for name, kinds in KINDS.items() if bool in kinds])
def test_a_flag_is_true_or_false_and_nothing_that_python_takes_for_it(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name}={value!r}.*: expected True"):
        RunOptions.of(**{name: value})


@pytest.mark.parametrize("name", [name for name, kinds in KINDS.items() if kinds <= {int, float, NoneType}])
def test_a_number_is_no_text_and_no_flag(name: str) -> None:
    for value in ("1", True):
        with pytest.raises(ConfigError, match=rf"{name}(=|: got ){value!r}"):
            RunOptions.of(**{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefech_factor": 3}, "no setting 'prefech_factor'; did you mean 'prefetch_factor'"),
        # what a front decides itself, or calls otherwise
        *(({name: 1}, f"no setting '{name}'") for name in ("batch_size", "seed_offset", "worker_config", "rank")),
        ({"data_parallel_group": 1}, "no setting 'data_parallel_group'"),
        ({"virtual_epoch_length": -1}, "virtual_epoch_length=-1: expected an integer of at least 0"),
        ({"virtual_epoch_length": None}, "virtual_epoch_length=None: expected an integer of at least 0"),
        ({"balance": "nothing"}, f"balance='nothing'. Known: {', '.join(sorted(COSTS))}: expected True"),
        ({"balance": "token"}, "balance='token'; did you mean 'tokens'? Known: "),
        ({"balance": None}, "balance=None: expected True"),
        ({"rampup_batch_size": "abc"}, "rampup_batch_size='abc': expected [first global batch size, increment"),
        ({"rampup_batch_size": [2, "2", 12]}, "rampup_batch_size=[2, '2', 12]: expected [first global"),
        ({"eval_batches": 0}, "eval_batches=0: expected an integer of at least 1, or None"),
        ({"start_method": 3}, "loader: start_method=3: expected one of 'server', 'spawn'"),
        ({"start_method": ["fork"]}, "start_method=['fork']"),
        ({"start_method": "fork"}, "start_method='fork'"),
        ({"ends": None}, "loader: ends=None: expected one of 'uneven', 'even'"),
        ({"share": ["replicate"]}, "share=['replicate']: expected one of 'replicate', 'broadcast'"),
        ({"share": "nobody"}, "share='nobody'"),
        ({"video_decode_audio": "no"}, "video_decode_audio='no': expected True or False, or None"),
        ({"micro_batch_size": 0}, "micro_batch_size=0"),
        ({"shuffle_buffer_size": -1}, "shuffle_buffer_size=-1"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"seed": "one"}, "seed='one'"),
        ({"max_open_bytes": "many"}, "max_open_bytes='many'"),
        ({"prefetch_factor": 0}, "prefetch_factor=0"),
        ({"max_worker_restarts": -1}, "max_worker_restarts=-1"),
        ({"restart_window_batches": 0}, "restart_window_batches=0"),
        ({"watchdog_timeout_seconds": 0}, "watchdog_timeout_seconds=0"),
        ({"sample_timeout_s": -1.0}, "sample_timeout_s=-1.0"),
    ],
)
def test_options_are_checked_when_they_are_made_by_the_names_that_were_given(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        RunOptions.of(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"planning_window": 7}, "planning_window=7: only planned packs .* add packing='planned', or leave"),
        ({"planning_window": 0}, "planning_window=0: expected an integer of at least 1"),
        ({"planning_window": 7, "packing_buffer_size": 7}, "planning_window=7: only planned packs"),
        ({"memo": {"folder": "memo", "version": 1, "max_disk_bytes": 9}}, "max_disk_bytes=9: .* disk, which is None"),
    ],
)
def test_an_option_without_the_one_that_it_depends_on_is_refused_with_what_to_set(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        RunOptions.of(**options)


def test_the_window_of_planned_packs_holds_with_them_and_goes_with_them() -> None:
    run = RunOptions.of(packing="planned", planning_window=7)
    left = run.data.without_packing()
    assert (run.data.packing_buffer_size, left.packing, left.packing_buffer_size) == (7, "online", None)


MODULE: dict[str, Any] = {"num_workers": 0, "pin_memory": False}


@pytest.mark.parametrize("name", ["handler", "n_checkpoints", "worker_log_level", "worker_debug_path"])
def test_a_warning_shows_the_line_of_who_changes_options(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {name: print if name == "handler" else "log" if name == "worker_debug_path" else 3}
    for make in (
        lambda: RunOptions.of(**settings),
        lambda: EnergonMultiModalDataModule(str(tmp_path), task_encoder=DefaultTaskEncoder(), **MODULE, **settings),
    ):
        monkeypatch.setattr(ignored, "_warned", set())
        with pytest.warns(UserWarning, match=f"{name} has no effect") as caught:
            make()
        assert [warning.filename for warning in caught if "no effect" in str(warning.message)] == [__file__]
