"""Joined samples such as a user has in a module of his own."""

from typing import Any

from bridge_data.errors import SkipSample
from bridge_data.samples import CrudeSample, Sample, TextSample, edataclass


@edataclass
class Told(Sample):
    """Fields of `TextSample` and one more, by the joiner that all samples have."""

    text: str
    note: str | None = None


@edataclass
class Noted(Sample):
    """What a data set of notes holds."""

    note: str


@edataclass
class Both(Sample):
    """A joiner of its own, which takes its members by name."""

    left: str
    right: str | None

    @classmethod
    def from_joined(cls, left: TextSample, right: TextSample | None) -> "Both":  # type: ignore[override]
        """The two texts."""
        if left.text == "skip me":
            raise SkipSample
        return cls.derive_from(left, left=left.text, right=None if right is None else right.text)


def swap(left: TextSample, right: TextSample) -> Any:
    """A function that joins."""
    if left.text == "nothing":
        return None
    if left.text == "crude":
        return CrudeSample(__key__=left.__key__, txt=right.text)
    return Both.derive_from(left, left=right.text, right=left.text)


NOT_A_FUNCTION = 5
