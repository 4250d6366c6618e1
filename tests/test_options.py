import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_type_hints

import pytest

import bridge_data
from bridge_data import get_loader, get_savable_loader, get_train_dataset, get_val_dataset, get_val_datasets
from bridge_data.lanes.datasets import DATASET_DEFAULTS, DatasetOptions
from bridge_data.loader.loader_config import LOADER_DEFAULTS, LoaderConfig, LoaderOptions
from bridge_data.options import takes_options

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


def test_loader_options_are_fields_of_the_loader_config() -> None:
    hints = get_type_hints(LoaderConfig)
    assert get_type_hints(LoaderOptions).items() <= hints.items()
    assert {field.name for field in dataclasses.fields(LoaderConfig)} <= inspect.signature(get_loader).parameters.keys()


@pytest.mark.parametrize("module", ["lanes/datasets.py", "loader/loader_config.py", "datamodule/settings.py"])
def test_each_option_says_what_it_means(module: str) -> None:
    text = (Path(bridge_data.__file__).parent / module).read_text()
    for options in re.findall(
        r"^class (?:Dataset|Loader|Own)Options\(TypedDict.*?(?=^\S)", text, re.MULTILINE | re.DOTALL
    ):
        keys = re.findall(r'^    \w+: [^\n]+\n(    """)?', options, re.MULTILINE)
        assert keys and all(keys)
