"""Snippets of documents that are not ours: which of their lines are code, and the repair of what copying lost.

Enters: the text of a document. Leaves: its snippets, in order.

The rule. Where a document has fences, its snippets are the fenced blocks. Where it has none, they are the runs of code
lines; a code line has no Chinese outside comments and strings, and is one of these:
  - Python: an import, a decorator, `def`, `class`, an assignment or keyword argument, a call, a statement;
  - YAML, or an answer to a question: `key:` or `some key: word`; in a run also `- item`;
  - shell: `energon ...`, with or without a prompt;
  - a comment, which alone makes no snippet;
  - whatever stands inside open brackets or a docstring, or is indented below a code line.
Blank lines part runs only where prose follows. `- name(...` is the signature of API documentation, and a snippet of its
own with the lines of its arguments.
"""

import ast
import dataclasses
import re
import textwrap
from collections.abc import Iterator

_CJK = re.compile(r"[　-鿿＀-￯]")
_STRING = re.compile(r"'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")

_PYTHON = re.compile(
    r"""(?x) (from\s+[\w.]+\s+)?import\s+[\w(]                      # import
      | @\w
      | (def|class)\s+\w+\s*[(:]
      | (for|while|if|elif|with)\s.*:$ | (else|try|finally):$ | except\b.*:$
      | (pass|break|continue)$ | (assert|raise)\s
      | [A-Za-z_][\w.]*(\s*,\s*\w+)*\s*=(?!=)\s*\S                  # assignment, keyword argument
      | [A-Za-z_][\w.]*\(                                           # call
      | [)\]}]+[,:)\]}]*$                                           # closing brackets
      | ['"].*['"],?$ """,
    re.ASCII,
)
_ENTRY = re.compile(r"(-\s)?([a-z_]\w*:|[A-Za-z_][\w ]*:\s\S+)$", re.ASCII)
_ITEM = re.compile(r"-\s[\w./]+$", re.ASCII)
_SHELL = re.compile(r"([$>]\s)?energon\s\w+", re.ASCII)
_SIGNATURE = re.compile(r"-\s(class\s)?[\w.]+\(", re.ASCII)
_ARGUMENT = re.compile(r"-\s.*,$")
_BLOCK_ENDS = re.compile(r"(pass|break|continue|return|raise)\b")
_FENCE = re.compile(r"\s*```")


@dataclasses.dataclass(frozen=True)
class Snippet:
    """A piece of code of a document: what it says, without common indentation, and the line it begins on."""

    document: str
    line: int
    text: str

    @property
    def first(self) -> str:
        """Its first line."""
        return self.text.partition("\n")[0].strip()

    def __str__(self) -> str:
        return f"{self.document}:{self.line} {self.first}"


def find_snippets(document: str, text: str) -> list[Snippet]:
    """All snippets of a document."""
    lines = text.splitlines()
    spans = _fenced(lines) if any(_FENCE.match(line) for line in lines) else _runs(lines)
    return [
        Snippet(document, start + 1, textwrap.dedent("\n".join(lines[start:stop])).strip("\n")) for start, stop in spans
    ]


def _fenced(lines: list[str]) -> Iterator[tuple[int, int]]:
    fences = [number for number, line in enumerate(lines) if _FENCE.match(line)]
    for opening, closing in zip(fences[::2], fences[1::2], strict=True):
        yield opening + 1, closing


def _runs(lines: list[str]) -> Iterator[tuple[int, int]]:
    number = 0
    while number < len(lines):
        if not _begins(lines[number]):
            number += 1
            continue
        stop = _end_of_run(lines, number)
        if any(line.strip() and not line.strip().startswith("#") for line in lines[number:stop]):
            yield number, stop
        number = stop


def _end_of_run(lines: list[str], start: int) -> int:
    if _SIGNATURE.match(lines[start]):
        stop = start + 1
        while not lines[start].endswith("#") and stop < len(lines) and _ARGUMENT.match(lines[stop]):
            stop += 1
        return stop
    stop = number = start
    depth, in_docstring = 0, False
    while number < len(lines):
        line = lines[number]
        inside = depth > 0 or in_docstring
        if not line.strip() and not inside:
            number += 1
            continue
        is_below = line[:1].isspace() and number == stop and number > start
        if not (inside or is_below or _is_code(line)) or (number > start and _SIGNATURE.match(line)):
            break
        depth, in_docstring = _nesting(line, depth, in_docstring)
        number += 1
        stop = number
    return stop


def _begins(line: str) -> bool:
    return bool(_SIGNATURE.match(line)) or (_is_code(line) and not _ITEM.match(_bare(line)))


def _is_code(line: str) -> bool:
    if line.strip().startswith("#"):
        return True
    bare = _bare(line)
    if not bare or _CJK.search(bare):
        return False
    return any(pattern.match(bare) for pattern in (_PYTHON, _ENTRY, _ITEM, _SHELL))


def _bare(line: str) -> str:
    """A line without its strings' contents, comment and spaces around it."""
    return _STRING.sub("''", line).partition("#")[0].strip()


def _nesting(line: str, depth: int, in_docstring: bool) -> tuple[int, bool]:
    """Open brackets, and whether a docstring is open, after `line`."""
    bare = _STRING.sub("''", line)
    if '"""' in bare:
        return depth, not in_docstring
    if in_docstring:
        return depth, True
    bare = bare.partition("#")[0]
    return max(0, depth + sum(map(bare.count, "([{")) - sum(map(bare.count, ")]}"))), False


def repaired_python(text: str) -> str:
    """`text` with lost indentation put back: a line that ends in a colon opens a block, which the first `pass`,
    `break`, `continue`, `return` or `raise` closes. Text that has its indentation stays as it is."""
    try:
        ast.parse(text)
        return text
    except IndentationError:
        pass
    depth, brackets, lines = 0, 0, []
    for line in text.splitlines():
        lines.append("    " * depth + line)
        brackets, _ = _nesting(line, brackets, False)
        if brackets == 0:
            depth += line.endswith(":") and not line.startswith("#")
            depth -= bool(depth and _BLOCK_ENDS.match(line))
    return "\n".join(lines)


_METADATASET_DEPTHS = {"__module__": 0, "__class__": 0, "splits": 0, "train": 1, "val": 1, "test": 1, "blend": 2}


def repaired_metadataset(text: str) -> str:
    """A metadataset with its indentation put back: the depth of a key is known by its name; `path` and the like belong
    to the item of a blend, if one is open, else to the split."""
    if any(line.startswith(" ") for line in text.splitlines()):
        return text
    lines, in_item = [], False
    for line in text.splitlines():
        key = line.partition(":")[0]
        if line.startswith("#"):
            depth = 0
        elif line.startswith("- "):
            depth, in_item = 3, True
        elif key in _METADATASET_DEPTHS:
            depth, in_item = _METADATASET_DEPTHS[key], False
        else:
            depth = 4 if in_item else 2
        lines.append("  " * depth + line)
    return "\n".join(lines)
