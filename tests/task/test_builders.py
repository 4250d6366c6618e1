from typing import Any

import pytest

from bridge_data import ConfigError, DefaultTaskEncoder
from bridge_data.task.builders import BUILDERS


@pytest.mark.parametrize("name", BUILDERS)
def test_a_class_that_overrides_what_is_never_called_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"Mine overrides {name}, which is never called here\. Instead: \w+"):
        type("Mine", (DefaultTaskEncoder,), {name: lambda self: None})


def test_so_is_one_that_is_mixed_with_such_a_class() -> None:
    class Mixed:
        def build_batch(self, dataset: Any) -> Any:
            return dataset

    with pytest.raises(ConfigError, match="build_batch"):
        type("Mine", (Mixed, DefaultTaskEncoder), {})


def test_other_methods_of_yours_are_yours() -> None:
    class Mine(DefaultTaskEncoder[Any, Any, Any, Any]):
        def build_prompt(self, text: str) -> str:
            return text

    assert Mine().build_prompt("a") == "a"
