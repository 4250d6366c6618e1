"""Pages of documentation as programs: their code blocks, run from top to bottom in one folder and one namespace.

`python` and `bash` blocks run, and the new side of a `diff`, as Python. One with `title="..."` is written to that file
instead, whatever its language. An `output` block is what the block before it printed, with `...` for anything. Other
blocks (`text`, `mermaid`, `console`) are only shown. A shell block of nothing but calls of `bridge-data` runs in this
process, which has imported torch; in others `python` and `bridge-data` are forked from one that has.
"""

import contextlib
import dataclasses
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from bridge_data import SavableDataLoader
from bridge_data.cli import main
from tests import ranks

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?$")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block and the line of its first line."""

    language: str
    title: str | None
    text: str
    line: int


def read_blocks(markdown: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = iter(enumerate(markdown.splitlines(), 1))
    for number, line in lines:
        fence = _FENCE.match(line)
        if fence is None:
            assert not line.startswith("```"), f"line {number}: a fence of an unknown form: {line}"
            continue
        body = []
        for _, inner in lines:
            if inner == "```":
                break
            body.append(inner)
        yield Block(fence["language"], fence["title"], "\n".join(body) + "\n", number + 1)


def is_shown_as(printed: str, shown: str) -> bool:
    """Whether a page may show `shown` for what was printed."""
    pattern = ".*?".join(re.escape(piece) for piece in shown.strip().split("..."))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def plain_calls(script: str) -> list[list[str]] | None:
    """The arguments of each call of `bridge-data`, if a script has nothing else, and nothing that takes a shell."""
    script = script.replace("\\\n", " ")
    if re.search(r"[^\w\s./:=,@%+-]", re.sub(r"'[^']*'|\"[^\"$]*\"", "", script)):
        return None
    calls = [shlex.split(line) for line in script.splitlines()]
    return [arguments for _, *arguments in calls] if all(call[:1] == ["bridge-data"] for call in calls) else None


class PageRun:
    """Runs the blocks of a page in the current folder, but for the shell blocks `done`, which have been run there."""

    def __init__(self, page: Path, done: Sequence[Block] = ()) -> None:
        self.page = page
        self.scope: dict[str, Any] = {"__name__": "__main__"}
        self._done = {block.text for block in done if block.language == "bash"}
        self._folder = str(Path.cwd())
        sys.path.insert(0, self._folder)  # as for a script in this folder: a block may import what another has written

    def run(self, block: Block) -> str:
        """Run one block; what it printed."""
        if block.title is not None:
            Path(block.title).write_text(block.text)
        elif block.language == "python":
            return self._python(block)
        elif block.language == "diff":
            lines = ("" if line.startswith("-") else line[1:] for line in block.text.splitlines())
            return self._python(dataclasses.replace(block, text="\n".join(lines)))
        elif block.language == "bash" and block.text not in self._done:
            return self._bash(block)
        return ""

    def check(self) -> None:
        """Run all blocks, and compare what they print with the outputs shown."""
        printed = ""
        try:
            for block in read_blocks(self.page.read_text()):
                if block.language == "output":
                    where = f"{self.page.relative_to(ROOT)}:{block.line}"
                    assert is_shown_as(printed, block.text), f"{where}: shown\n{block.text}\nprinted\n{printed}"
                else:
                    printed = self.run(block)
        finally:
            self.close()

    def close(self) -> None:
        """End the workers of the loaders that the page has made, and forget the modules that it has written."""
        sys.path.remove(self._folder)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(f"{self._folder}{os.sep}"):
                del sys.modules[name]
        for value in self.scope.values():
            if isinstance(value, SavableDataLoader):
                value.close()

    def _python(self, block: Block) -> str:
        # As many empty lines before it as in the page, so that a traceback names the line.
        code = compile("\n" * (block.line - 1) + block.text, str(self.page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, self.scope)
        return printed.getvalue()

    def _bash(self, block: Block) -> str:
        calls = plain_calls(block.text)
        if calls is not None:
            return "".join(self._call(arguments, block) for arguments in calls)
        with tempfile.TemporaryDirectory() as programs:
            ranks.write_program(Path(programs, "python"))
            ranks.write_program(Path(programs, "bridge-data"), "bridge_data.cli")
            search = os.pathsep.join([programs, str(Path(sys.executable).parent), os.environ["PATH"]])
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text],
                env={**os.environ, "PATH": search},
                capture_output=True,
                text=True,
                timeout=300,
            )
        assert done.returncode == 0, f"{self.page.name}:{block.line}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def _call(self, arguments: list[str], block: Block) -> str:
        done = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert done.exit_code == 0, f"{self.page.name}:{block.line}: {done.output}"
        return done.stdout
