"""How much the tests notice: how many small random changes of the code of a room make a test fail.

    make mutants ROOM=order SAMPLE=30

prints each change that no test noticed, and the score. Changes are those of Cosmic Ray (another operator, number,
condition or loop exit) but for annotations and error texts. The tests are the room's own and those of its seams, in a
copy of the repository; they start no processes, so that workers, ranks and kills are not part of the score.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).parents[1]
SEAMS = {"order": ["tests/lanes"], "lanes": ["tests/loader"], "loader": ["tests/lanes"], "task": ["tests/lanes"]}
"""What else notices a fault of a room, besides its own tests and the golden files."""
MARKS = " and not ".join(
    ("not slow", "peer", "gpu", "machine", "browser", "data", "long", "processes"),
)
LEFT_OUT = (
    "core/ReplaceBinaryOperator_BitOr",
    "core/RemoveDecorator",
    "core/VariableReplacer",
    "core/VariableInserter",
)
"""Operators that change annotations, dataclasses, or need arguments."""


def changes_of(file: Path) -> Iterator[tuple[str, int]]:
    """The (operator, occurrence) of each change of a module, without those in annotations, raises and default texts."""
    code = file.read_text()
    quiet = set(quiet_lines(ast.parse(code)))
    nodes = list(ast_nodes(get_ast(code)))
    for name in cosmic_ray.plugins.operator_names():
        if name.startswith(LEFT_OUT):
            continue
        operator = cosmic_ray.plugins.get_operator(name)()
        positions = [position for node in nodes for position in operator.mutation_positions(node)]
        for occurrence, ((line, _), _) in enumerate(positions):
            if line not in quiet:
                yield name, occurrence


def quiet_lines(tree: ast.Module) -> Iterator[int]:
    """Lines whose change no test should notice: annotations, and what errors say."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from range(node.lineno, node.body[0].lineno)
        elif isinstance(node, ast.AnnAssign) and node.value is None:
            yield node.lineno
        elif isinstance(node, ast.Raise):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def fails(folder: Path, tests: list[str], timeout_s: float) -> bool:
    """Whether a test fails, or all of them take too long."""
    command = [
        os.environ.get("BRIDGE_DATA_PYTHON", "python"),
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n",
        "0",
        "-m",
        MARKS,
        *tests,
    ]
    environment = os.environ | {
        "BRIDGE_DATA_PROFILE": "fast",
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def copied(folder: Path) -> None:
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("room", help="a folder of bridge_data")
    parser.add_argument("--sample", type=int, default=20, help="how many changes are tried")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tests = ["tests/test_golden_order.py", "tests/test_golden_states.py", f"tests/{options.room}"]
    tests += SEAMS.get(options.room, [])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copied(folder)
        files = sorted((folder / "bridge_data" / options.room).rglob("*.py"))
        changes = [(file, *change) for file in files for change in changes_of(file)]
        begin = time.monotonic()
        if fails(folder, tests, 3_600):
            raise SystemExit(f"{options.room}: tests fail without any change")
        timeout_s = 30 + 3 * (time.monotonic() - begin)
        drawn = random.Random(options.seed).sample(changes, min(options.sample, len(changes)))
        noticed = 0
        for file, operator, occurrence in drawn:
            code = file.read_text()
            changed = mutate_code(code, cosmic_ray.plugins.get_operator(operator)(), occurrence)
            file.write_text(changed)
            if fails(folder, tests, timeout_s):
                noticed += 1
            else:
                pairs = zip(code.splitlines(), changed.splitlines(), strict=False)
                number, (old, new) = next((n, pair) for n, pair in enumerate(pairs, 1) if pair[0] != pair[1])
                print(f"{file.relative_to(folder)}:{number}:\n- {old.strip()}\n+ {new.strip()}", flush=True)
            file.write_text(code)
    print(
        f"{options.room}: {noticed} of {len(drawn)} changes noticed, of {len(changes)} possible (seed {options.seed})"
    )


if __name__ == "__main__":
    main()
