"""Where a field's value is: which part of a sample, and what inside it.

Enters: a text of a field map: `"jpg"`, `"json[caption]"`, `"json[turns][0][text]"`, or alternatives separated by
commas, of which the first that exists is used; and the decoded parts of a sample. Leaves: the value.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bridge_data.errors import ConfigError, SampleError

_OPTION = re.compile(r"(?P<part>[^\[\],]+)(?P<path>(?:\[[^\[\]]+\])*)")
_MISSING = object()


@dataclasses.dataclass(frozen=True, slots=True)
class FieldAccess:
    """Takes one value out of a sample's decoded parts: from `part`, along `path`, or else from an alternative."""

    part: str
    path: tuple[str, ...] = ()
    alternatives: tuple[FieldAccess, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """Every part that may be needed: that of this access and those of its alternatives."""
        return tuple(dict.fromkeys((self.part, *(other.part for other in self.alternatives))))

    def get(self, parts: Mapping[str, Any]) -> Any:
        """The value in `parts`, a mapping of part names to decoded contents with the sample's key as `__key__`.

        Raises:
            SampleError: naming the sample, the part or step that is absent and what there is instead.
        """
        if not self.path and not self.alternatives:
            try:
                return parts[self.part]
            except KeyError:
                raise SampleError(self._complaint(parts)) from None
        for access in (self, *self.alternatives):
            value = access._find(parts)
            if value is not _MISSING:
                return value
        raise SampleError(self._complaint(parts))

    def _find(self, parts: Mapping[str, Any]) -> Any:
        value: Any = parts.get(self.part, _MISSING)
        for step in self.path:
            value = _take(value, step)
        return value

    def _complaint(self, parts: Mapping[str, Any]) -> str:
        reasons = [access._reason(parts) for access in (self, *self.alternatives)]
        return f"sample {parts.get('__key__', '(no key)')!r}: {'; '.join(reasons)}"

    def _reason(self, parts: Mapping[str, Any]) -> str:
        if self.part not in parts:
            return f"part {self.part!r} is absent; {_offer(self.part, (p for p in parts if not p.startswith('__')))}"
        value, walked = parts[self.part], self.part
        for step in self.path:
            inner = _take(value, step)
            if inner is _MISSING:
                return f"{walked} has no [{step}]; {_contents(value, step)}"
            value, walked = inner, f"{walked}[{step}]"
        return f"{walked} is there"

    def __str__(self) -> str:
        own = self.part + "".join(f"[{step}]" for step in self.path)
        return ",".join((own, *map(str, self.alternatives)))


def parse_access(text: str) -> FieldAccess:
    """The access that `text` describes, such as `"jpg"`, `"json[caption]"` or `"png,jpg"`.

    Raises:
        ConfigError: if `text` is not of that form.
    """
    options = [_OPTION.fullmatch(option.strip()) for option in text.split(",")]
    accesses = []
    for option in options:
        if option is None:
            raise ConfigError(
                f"field access {text!r}: expected a part, optionally followed by what to take from it in brackets, "
                'such as "jpg", "json[caption]" or "json[turns][0]", and commas between alternatives'
            )
        accesses.append(FieldAccess(option["part"], tuple(re.findall(r"\[([^\[\]]+)\]", option["path"]))))
    return dataclasses.replace(accesses[0], alternatives=tuple(accesses[1:]))


def _take(value: Any, step: str) -> Any:
    """`value[step]`, or `_MISSING`."""
    if isinstance(value, dict):
        return value.get(step, _MISSING)
    if isinstance(value, list):
        try:
            return value[int(step)]
        except (ValueError, IndexError):
            return _MISSING
    return _MISSING


def _contents(value: Any, step: str) -> str:
    if isinstance(value, dict):
        return _offer(step, map(str, value))
    if isinstance(value, list):
        return f"it is a list of {len(value)}"
    return f"it is a {type(value).__name__}"


def _offer(wanted: str, present: Iterable[str]) -> str:
    """What there is instead, the nearest first."""
    names = sorted(present)
    near = difflib.get_close_matches(wanted, names, n=1)
    shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return f"there is {shown or 'nothing'}" + (f"; did you mean {near[0]!r}?" if near else "")
