import dataclasses
import inspect
import pydoc
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, get_type_hints

import pytest

import bridge_data
from bridge_data import (
    EnergonMultiModalDataModule,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    options,
)
from bridge_data.datamodule.settings import DataModuleOptions
from bridge_data.errors import ConfigError
from bridge_data.lanes.datasets import DATASET_DEFAULTS, DatasetOptions
from bridge_data.loader.loader_config import LOADER_DEFAULTS, LoaderConfig, LoaderOptions
from bridge_data.options import check_at_least, check_choice, takes_options
from tests.prepared import write_texts

TAKEN = [
    (get_train_dataset, DatasetOptions, DATASET_DEFAULTS),
    (get_val_dataset, DatasetOptions, DATASET_DEFAULTS),
    (get_val_datasets, DatasetOptions, DATASET_DEFAULTS),
    (get_loader, LoaderOptions, LOADER_DEFAULTS),
    (get_savable_loader, LoaderOptions, LOADER_DEFAULTS),
]


class Options(TypedDict, total=False):
    size: int
    name: str | None


@takes_options(Options, {"size": 3})
def show(first: str, *, key: int = 1, **options: Unpack[Options]) -> tuple[Any, ...]:
    """Show them."""
    return first, key, options


def test_a_function_gets_all_options_with_their_defaults() -> None:
    assert show("a") == ("a", 1, {"size": 3, "name": None})
    assert show("a", name="b", key=2) == ("a", 2, {"size": 3, "name": "b"})
    assert str(inspect.signature(show)).startswith(
        "(first: str, *, key: int = 1, size: int = 3, name: str | None = None)"
    )
    assert show.__doc__ == "Show them."


def test_unknown_options_are_type_errors_with_the_nearest_name() -> None:
    with pytest.raises(TypeError, match=r"show\(\) got an unexpected keyword argument 'sise'; did you mean 'size'\?"):
        show("a", sise=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        show(size=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(("function", "options", "defaults"), TAKEN)
def test_signatures_show_each_option_with_its_type_and_default(
    function: Callable[..., Any], options: type, defaults: dict[str, Any]
) -> None:
    parameters = inspect.signature(function).parameters
    assert list(parameters)[-len(options.__annotations__) :] == list(options.__annotations__)
    for name, hint in get_type_hints(options).items():
        shown = parameters[name]
        assert (shown.kind, shown.annotation) == (shown.KEYWORD_ONLY, hint)
        assert shown.default == defaults.get(name)


def test_the_data_module_shows_all_options_with_their_types_and_defaults() -> None:
    (*fixed, kwargs) = list(inspect.signature(EnergonMultiModalDataModule.__init__).parameters)[1:]
    shown = inspect.signature(EnergonMultiModalDataModule).parameters
    assert kwargs == "kwargs" and [*shown] == [*fixed, *DataModuleOptions.__annotations__]
    hints = get_type_hints(DataModuleOptions)
    assert {name: shown[name].annotation for name in hints} == hints
    assert {name: shown[name].default for name in ("seed", "prefetch_factor", "share", "split_part")} == {
        "seed": 0,
        "prefetch_factor": inspect.signature(get_savable_loader).parameters["prefetch_factor"].default,
        "share": "replicate",
        "split_part": "train",
    }
    told = pydoc.render_doc(EnergonMultiModalDataModule, renderer=pydoc.plaintext)
    assert "prefetch_factor: int = " in told.partition("Training and validation data at")[0]


def test_a_class_derived_from_the_data_module_shows_its_own_signature() -> None:
    class Same(EnergonMultiModalDataModule):
        pass

    class Other(EnergonMultiModalDataModule):
        def __init__(self, folder: str) -> None:
            super().__init__(folder)

    assert inspect.signature(Same) == inspect.signature(EnergonMultiModalDataModule)
    assert [*inspect.signature(Other).parameters] == ["folder"]


def test_loader_options_are_fields_of_the_loader_config() -> None:
    hints = get_type_hints(LoaderConfig)
    assert get_type_hints(LoaderOptions).items() <= hints.items()
    assert {field.name for field in dataclasses.fields(LoaderConfig)} <= inspect.signature(get_loader).parameters.keys()


@pytest.mark.parametrize("module", ["lanes/datasets.py", "loader/loader_config.py", "datamodule/settings.py"])
def test_each_option_says_what_it_means(module: str) -> None:
    text = (Path(bridge_data.__file__).parent / module).read_text()
    for written in re.findall(
        r"^class (?:Dataset|Loader|Own)Options\(TypedDict.*?(?=^\S)", text, re.MULTILINE | re.DOTALL
    ):
        keys = re.findall(r'^    \w+: [^\n]+\n(    """)?', written, re.MULTILINE)
        assert keys and all(keys)


def test_every_ignored_argument_is_taken_by_something_public_and_falsy_unless_given() -> None:
    public = [getattr(bridge_data, name) for name in bridge_data.__all__]
    taken = [parameters(value) for value in public if callable(value)]
    for name in options.IGNORED:
        assert any(name in arguments and not arguments[name].default for arguments in taken), name


def parameters(value: Any) -> Any:
    try:
        return inspect.signature(value).parameters
    except ValueError:  # an exception class
        return {}


def test_ignored_arguments_are_warned_of_once_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_warned", set())
    write_texts(tmp_path / "data", 4)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for make in (get_val_dataset, get_val_datasets):
                make(
                    tmp_path / "data",
                    split_part="train",
                    worker_config=config,
                    batch_size=2,
                    parallel_shard_iters=16,
                    handler=print,
                    ignore_decoder_errors=False,
                )
    told = [str(warning.message) for warning in caught]
    assert sorted(text.split()[0] for text in told) == ["handler", "ignore_decoder_errors", "parallel_shard_iters"]
    assert all(options.IGNORED[text.split()[0]] in text for text in told)
    assert {warning.filename for warning in caught} == {__file__}, "the warning shows the caller's line"


def test_nothing_is_warned_of_that_was_not_given() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options.warn_ignored(**dict.fromkeys(options.IGNORED))


@dataclasses.dataclass
class Settings:
    size: int | None = None
    share: float = 0.5
    kind: str = "skip"


def test_fields_are_at_least_a_number_or_none() -> None:
    check_at_least(Settings(share=2), 2, "size", "share")
    with pytest.raises(ConfigError, match=r"^Settings\(share=0\.5\): expected at least 1$"):
        check_at_least(Settings(), 1, "size", "share")


def test_fields_are_one_of_the_choices_of_a_literal() -> None:
    choices = Literal["skip", "error"]
    check_choice(Settings(), "kind", choices)
    with pytest.raises(ConfigError, match=r"^Settings\(kind='keep'\): expected one of 'skip', 'error'$"):
        check_choice(Settings(kind="keep"), "kind", choices)
