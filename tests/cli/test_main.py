import collections
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import click
import pytest

from bridge_data.cli import main, terminal
from tests.cli.conftest import Run
from tests.data.tars import write_tar
from tests.prepared import write_texts

COMMANDS = main.list_commands(click.Context(main))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained_and_the_list_of_commands_says_what_they_say(run: Run, command: str) -> None:
    assert run(command, "--help").exit_code == 0
    found = main.get_command(click.Context(main), command)
    assert found is not None
    assert all(option.help for option in found.params if isinstance(option, click.Option))
    help = (found.help or "").partition("\n\n")[0]
    assert " ".join(run("--help").output.split()).count(" ".join(help.split())) == 1


def options_of(command: click.Command, name: str) -> list[tuple[str, click.Option]]:
    """(command, option) of a command and of those in it."""
    found = [(name, option) for option in command.params if isinstance(option, click.Option)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            found += options_of(command.get_command(context, inner) or command, f"{name} {inner}")
    return found


ALL_OPTIONS = [
    pair for name in COMMANDS for pair in options_of(main.get_command(click.Context(main), name) or main, name)
]
DIFFERENT_THINGS = {
    "--key": "of convert: a column; of info and order: the key of a sample",
    "--state": "of view: one; else several",
    "--keys": "of forget: also standard input",
    "--step": "of checkpoint: that of a state; of order: that to show",
    "--steps": "of checkpoint: several ranges; of order: one",
    "--out": "of checkpoint: a state; of order: a file on a disk",
    "--html": "of info: samples; of plan: charts",
}


def test_an_option_has_the_same_type_in_every_command() -> None:
    kinds: dict[str, dict[tuple[object, ...], str]] = {}
    for command, option in ALL_OPTIONS:
        for name in option.opts:
            kind = (
                option.type.name.replace("directory", "path"),
                getattr(option.type, "min", None),
                option.is_flag,
                option.nargs,
                option.multiple,
            )
            kinds.setdefault(name, {})[kind] = command
    assert {name: found for name, found in kinds.items() if len(found) > 1 and name not in DIFFERENT_THINGS} == {}


EIGHT = {"convert": 28, "prepare": 24, "info": 11, "check": 20, "plan": 11, "order": 11, "checkpoint": 18, "forget": 7}
"""The commands that everyone sees, and how many options each may have: 130 in all."""

TO_CUT = set[str]()
"""Those that still have more."""


def test_the_eight_commands_have_few_options() -> None:
    counts = collections.Counter(command.partition(" ")[0] for command, _ in ALL_OPTIONS)
    assert sum(EIGHT.values()) == 130
    assert {name for name, most in EIGHT.items() if counts[name] > most} == TO_CUT


def test_an_option_of_several_commands_is_defined_once() -> None:
    users: dict[str, set[str]] = {}
    for command, option in ALL_OPTIONS:
        if command.partition(" ")[0] in EIGHT.keys() - TO_CUT:
            users.setdefault("/".join((*option.opts, *option.secondary_opts)), set()).add(command.partition(" ")[0])
    several = {name for name, commands in users.items() if len(commands) > 1}
    assert several - terminal.OPTIONS.keys() == DIFFERENT_THINGS.keys() & several


ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("bridge_data/**/*.py"), *ROOT.glob("recipes/**/*.py")]
CALL = re.compile(r"[`$] ?bridge-data\s+((?:checkpoint )?[a-z]+)((?:[^\n`]|\\\n)*)")


def test_pages_and_messages_name_commands_and_options_that_there_are() -> None:
    options: dict[str, set[str]] = {name: {"--help"} for name in COMMANDS}
    for command, option in ALL_OPTIONS:
        options.setdefault(command, {"--help"}).update((*option.opts, *option.secondary_opts))
    calls = [(page.name, call) for page in PAGES for call in CALL.findall(page.read_text())]
    assert len(calls) > 100
    for page, (command, rest) in calls:
        assert command in options, page
        given = re.findall(r"(?<![\w-])--[a-z][\w-]+", rest)
        assert {*given} <= options[command], (page, command)


WITHOUT_JSON = {
    "convert": "makes data",
    "mount": "makes files",
    "prepare": "makes data",
    "view": "serves pages",
}


def test_a_command_that_reports_has_json() -> None:
    with_json = [(command, option) for command, option in ALL_OPTIONS if option.opts == ["--json"]]
    assert all(option.is_flag for _, option in with_json)
    assert {command.partition(" ")[0] for command, _ in with_json} ^ WITHOUT_JSON.keys() == {*COMMANDS}
    assert {command for command, _ in with_json} >= {"checkpoint info", "checkpoint diff"}


def test_errors_are_one_line_with_exit_code_1(run: Run, tmp_path: Path) -> None:
    for command in ("prepare", "info", "check"):
        result = run(command, tmp_path / "no")
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert result.stderr.startswith(f"error: {tmp_path}/no: no such folder")
    result = run("info", tmp_path)
    assert (result.exit_code, f"run `bridge-data convert {tmp_path} DST`" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("info no", "no: no such folder or file"),
        ("plan no.yaml", "no.yaml: no such file"),
        ("check --run no.yaml", "no.yaml: no such file"),
        ("check no --limit 0", "Invalid value for '--limit'"),
        ("checkpoint info no", "no: no such file or folder"),
        ("checkpoint diff no", "Missing argument 'B'"),
        ("forget no --list", "no: no such folder or file"),
        ("duplicates no", "no: no such folder or file"),
    ],
)
def test_errors_are_json_too_if_asked_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*words.split(), "--json")
    (error,) = json.loads(result.stdout).values()
    assert result.exit_code in (1, 2) and told in error and error in result.stderr


def test_wrong_usage_has_exit_code_2_and_the_version_is_told(run: Run) -> None:
    assert run("prepare").exit_code == run("frobnicate").exit_code == 2
    assert run("--version").output.startswith("bridge-data, version ")
    assert run("-V").output == run("--version").output


def test_runs_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bridge_data.cli", "info", str(tmp_path / "no")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_an_output_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", 400)
    with open("/dev/full", "w") as full:
        for words in (["info", texts, "--samples", 400], ["info", texts]):
            command = [sys.executable, "-m", "bridge_data.cli", *map(str, words)]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            assert done.returncode == 1 and "No space left on device" in done.stderr
            assert done.stderr.count("\n") == 1, done.stderr


FLAGS = ("--non-interactive", "--split-ratio=1,0,0", "--sample-type=TextSample", "--field-map", '{"text": "txt"}')
NEEDLESS = ("torch", "PIL", "av", "cloudpickle", "webdataset", "transformers", "lightning", "megatron")


@pytest.mark.parametrize(
    ("arguments", "needless"),
    [
        (["--help"], (*NEEDLESS, "numpy")),
        (["prepare", "TARS", *FLAGS, "--force-overwrite", "--num-workers=2"], NEEDLESS),
        (["info", "PREPARED"], NEEDLESS),
    ],
)
def test_starts_without_what_it_does_not_need(
    run: Run, tars: Path, arguments: list[str], needless: tuple[str, ...]
) -> None:
    if "PREPARED" in arguments:
        assert run("prepare", tars, *FLAGS, "--no-progress").exit_code == 0
    arguments = [str(tars) if argument in ("TARS", "PREPARED") else argument for argument in arguments]
    code = (
        "import sys\nfrom bridge_data.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print([name for name in {needless} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_errors_name_options_and_not_arguments_of_python(run: Run, tars: Path) -> None:
    assert run("prepare", tars, "--num-workers", 0).stderr == "error: --num-workers 0: expected at least 1\n"
    run("prepare", tars, "--non-interactive", "--split-ratio", "1,0,0")
    (tars / ".nv-meta/dataset.yaml").write_text("{sample_type: {__module__: mine, __class__: A}, field_map: {a: txt}}")
    assert "pass --trust 'mine' if it is yours" in run("info", tars, "--samples", 3).stderr
    assert "pass --trust 'mine' if it is yours" in run("check", tars, "--no-progress").output


def test_a_trusted_module_may_be_in_the_current_folder(
    run: Run, tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("prepare", tars, "--non-interactive", "--split-ratio", "1,0,0")
    (tmp_path / "my_own_types.py").write_text(
        "from dataclasses import dataclass\nfrom bridge_data import TextSample\n\n"
        "@dataclass\nclass Note(TextSample):\n    pass\n"
    )
    definition = "{sample_type: {__module__: my_own_types, __class__: Note}, field_map: {text: txt}}"
    (tars / ".nv-meta/dataset.yaml").write_text(definition)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    result = run("info", tars, "--samples", 1, "--trust", "my_own_types")
    assert "→ Note" in result.output, result.stderr
    assert run("check", tars, "--no-progress", "--trust", "my_own_types").exit_code == 0


@pytest.mark.processes
def test_names_that_are_not_utf8_are_shown_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "caf set"
    write_tar(folder / "a.tar", {"caf\udce9.txt": b"a", "x": b""}, tarfile.GNU_FORMAT)
    for command in (
        ["prepare", folder, *FLAGS],
        ["info", folder, "--samples", "3"],
        ["check", folder],
        ["check", folder, "--json"],
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "bridge_data.cli", *map(str, command)],
            capture_output=True,
            env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        )
        assert b"Traceback" not in ended.stderr and b"caf\\udce9" in ended.stdout + ended.stderr
    assert json.loads(ended.stdout)["notes"][0]["shown"][0]["key"] == "caf\udce9"
