"""Writes `bridge_data/keywords.py`: `bridge_data.run_options` for type checkers, editors and LightningCLI.

Run `python -m tests.write_keywords` after a change of an option.
"""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import bridge_data
from bridge_data import WorkerConfig, run_options
from bridge_data.run_options import DatasetOptions, LoaderConfig, TrainingOptions, option_fields

FILE = Path(bridge_data.__file__).with_name("keywords.py")

HEAD = '''"""The keyword arguments of public functions as types. Written by `python -m tests.write_keywords` out of
`bridge_data.run_options`, which explains them: type checkers cannot read them there. Do not edit it."""

'''
IMPORTS = {
    "collections.abc": "Callable Collection Mapping Sequence",
    "os": "",
    "pathlib": "Path",
    "typing": "Any Literal TypedDict",
    "bridge_data.errors": "ErrorHandler",
    "bridge_data.limits": "Limits",
    "bridge_data.plan.source": "EpochsPerShuffle",
    "bridge_data.run_options": "Ends Memo PoolOptions Share StartMethod",
    "bridge_data.task.stores": "CachePool",
}
FIXED = {
    "DatasetKeywords": "get_val_dataset",
    "TrainingKeywords": "get_train_dataset",
    "LoaderKeywords": "get_loader",
    "DataModuleKeywords": "EnergonMultiModalDataModule.__init__",
}
"""Whose keyword arguments they are, besides its own parameters."""
SHARED = {
    ("DatasetKeywords", "TrainingKeywords", "DataModuleKeywords"): "_OfData",
    ("DatasetKeywords", "TrainingKeywords"): "_OfDatasets",
    ("TrainingKeywords", "DataModuleKeywords"): "_OfTraining",
    ("LoaderKeywords", "DataModuleKeywords"): "_OfLoaders",
}
"""What holds the options that several of them have."""


def annotations() -> dict[str, str]:
    """How the type of each option is written, by the name of its field."""
    sources = [run_options, inspect.getmodule(WorkerConfig)]
    trees = [ast.parse(inspect.getsource(module)) for module in sources if module is not None]
    fields = [
        node
        for tree in trees
        for owner in tree.body
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.AnnAssign)
    ]
    return {ast.unparse(node.target): ast.unparse(node.annotation) for node in fields}


def own_parameters(function: str) -> set[str]:
    """The parameters of a function that are written at it."""
    found = bridge_data
    for name in function.split("."):
        found = getattr(found, name)
    return {*inspect.signature(inspect.unwrap(found), follow_wrapped=False).parameters}  # type: ignore[arg-type]


def written() -> Iterator[str]:
    """The file, formatted but for long lines."""
    yield HEAD
    for module, names in IMPORTS.items():
        yield f"from {module} import {', '.join(names.split())}\n" if names else f"import {module}\n"
    types = annotations()
    parts = option_fields()
    every = {name: field for fields in parts.values() for name, field in fields.items()}
    of_functions = {
        "DatasetKeywords": {name for name in DatasetOptions.__dataclass_fields__ if name in every},
        "TrainingKeywords": {name for name in TrainingOptions.__dataclass_fields__ if name in every},
        "LoaderKeywords": {*LoaderConfig.__dataclass_fields__},
        "DataModuleKeywords": {*every},
    }
    takes = {name: options - own_parameters(FIXED[name]) for name, options in of_functions.items()}
    takers = {option: tuple(name for name in FIXED if option in takes[name]) for option in every}
    shared = {SHARED[several]: several for several in takers.values() if len(several) > 1}

    def fields(several: tuple[str, ...]) -> Iterator[str]:
        yield from (f"    {option}: {types[f.name]}\n" for option, f in every.items() if takers[option] == several)

    for name, several in shared.items():
        yield f"\n\nclass {name}(TypedDict, total=False):\n"
        yield f'    """Options that {" and ".join(several)} share."""\n\n'
        yield from fields(several)
    for name, function in FIXED.items():
        bases = [base for base, several in shared.items() if name in several] or ["TypedDict"]
        yield f"\n\nclass {name}({', '.join(bases)}, total=False):\n"
        yield f'    """Options of `{function.removesuffix(".__init__")}` besides its own parameters."""\n\n'
        yield from fields((name,))


def formatted(text: str) -> str:
    """`text` as ruff writes it."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--select",
        "I,F401",
        "--fix-only",
        "--quiet",
        "--stdin-filename",
        FILE.name,
        "-",
    ]
    sorted_text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", FILE.name, "-"]
    return subprocess.run(command, input=sorted_text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    FILE.write_text(formatted("".join(written())))
