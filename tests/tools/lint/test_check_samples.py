from typing import Any, Literal, Optional

import pytest
import torch

from bridge_data.tools.lint_checks import is_of_type


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("a", str),
        (1, float),
        (None, Optional[str]),  # noqa: UP045
        (None, None),
        ("a", str | None),
        (torch.ones(1), torch.Tensor),
        (["a", "b"], list[str]),
        ([], list[int]),
        ([1, "a"], tuple[int, str]),
        ([1, 2, 3], tuple[int, ...]),
        ({"a": 1}, dict[str, int]),
        ({"a": [1]}, dict[str, list[int] | None]),
        ("x", Literal["x", "y"]),
        (object(), Any),
        ("what", "NotAType"),
    ],
)
def test_what_fits(value: object, hint: object) -> None:
    assert is_of_type(value, hint)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (1, str),
        (True, int),
        (1.5, int),
        ("a", torch.Tensor),
        ("a", list[str]),
        (["a", 1], list[str]),
        ([1], tuple[int, str]),
        ({"a": "b"}, dict[str, int]),
        (None, str),
        (b"a", str | None),
        ("z", Literal["x", "y"]),
    ],
)
def test_what_does_not(value: object, hint: object) -> None:
    assert not is_of_type(value, hint)
