"""The messages that docs/troubleshooting.md quotes are still in the source of the package."""

import ast
import re

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
_GAP = "\0"  # stands for what an f-string fills in


def quoted(page: str) -> list[str]:
    """The messages in the first column of the page's tables."""
    return re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)


def messages(source: str) -> list[str]:
    """All strings of a module but docstrings; those of f-strings have a gap for each value."""

    def text(node: ast.expr) -> str:
        return str(node.value) if isinstance(node, ast.Constant) else _GAP

    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = []
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            strings.append("".join(map(text, node.values)))
        elif id(node) in docstrings:
            continue
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.append(node.value)
    return strings


def is_said(quote: str, strings: list[str]) -> bool:
    """Whether one of the strings has the constant parts of `quote`, which are separated by `...`, in their order."""
    parts = [part.strip() for part in quote.split("...")]
    pattern = re.compile(".*?".join(map(re.escape, parts)), re.DOTALL)
    return any(all(part in string for part in parts) and pattern.search(string) for string in strings)


@pytest.fixture(scope="module")
def strings() -> list[str]:
    files = sorted((ROOT / "bridge_data").rglob("*.py"))
    return [string for file in files for string in messages(file.read_text())]


def test_quoted_messages_are_in_the_source(strings: list[str]) -> None:
    quotes = quoted(PAGE.read_text())
    assert len(quotes) >= 35
    assert [quote for quote in quotes if not is_said(quote, strings)] == []
    assert len(quotes) == len(set(quotes)), "each once"


def test_changed_message_is_found_out() -> None:
    strings = messages('"docstring"\nraise ValueError(f"{path}: no such {kind} of folder", "plain")')
    assert is_said("...: no such ... of folder", strings)
    assert is_said("plain", strings)
    assert not any(is_said(quote, strings) for quote in ("...: no such folder", "plain ... text", "docstring"))
