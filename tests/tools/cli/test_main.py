import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import click
import pytest

from bridge_data.tools.cli import main
from tests.shards.tars import write_tar
from tests.tools.cli.conftest import Run

COMMANDS = main.list_commands(click.Context(main))


def test_help_names_the_commands(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)
    assert run("--version").output.startswith("bridge-data, version ")
    assert run("-V").output == run("--version").output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(run: Run, command: str) -> None:
    assert run(command, "--help").exit_code == 0
    found = main.get_command(click.Context(main), command)
    assert found is not None
    assert all(option.help for option in found.params if isinstance(option, click.Option))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_of_commands_says_what_they_say_themselves(run: Run, command: str) -> None:
    found = main.get_command(click.Context(main), command)
    assert found is not None
    help = (found.help or "").partition("\n\n")[0].replace("\n", " ")
    assert " ".join(run("--help").output.split()).count(" ".join(help.split())) == 1


def test_errors_are_one_line_with_exit_code_1(run: Run, tmp_path: Path) -> None:
    for command in (["prepare"], ["info"], ["preview"], ["lint"]):
        result = run(*command, tmp_path / "no")
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: {tmp_path}/no: no such folder")
        assert result.stderr.count("\n") == 1
    result = run("info", tmp_path)
    assert result.exit_code == 1
    assert f"run `bridge-data convert {tmp_path} DST`" in result.stderr


def test_wrong_usage_has_exit_code_2(run: Run) -> None:
    assert run("prepare").exit_code == 2
    assert run("frobnicate").exit_code == 2


def test_runs_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bridge_data.tools.cli", "info", str(tmp_path / "no")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


FLAGS = ("--non-interactive", "--split-ratio=1,0,0", "--sample-type=TextSample", "--field-map", '{"text": "txt"}')
NEEDLESS = ("torch", "numpy", "PIL", "av", "cloudpickle", "webdataset", "transformers", "lightning", "megatron")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["prepare", "TARS", *FLAGS, "--force-overwrite", "--num-workers=2"],
        ["info", "PREPARED"],
    ],
)
def test_starts_without_what_it_does_not_need(run: Run, tars: Path, arguments: list[str]) -> None:
    if "PREPARED" in arguments:
        assert run("prepare", tars, *FLAGS, "--no-progress").exit_code == 0
    arguments = [str(tars) if argument in ("TARS", "PREPARED") else argument for argument in arguments]
    code = (
        "import sys\nfrom bridge_data.tools.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print([name for name in {NEEDLESS} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_errors_name_options_and_not_arguments_of_python(run: Run, tars: Path) -> None:
    assert run("prepare", tars, "--num-workers", 0).stderr == "error: --num-workers 0: expected at least 1\n"
    run("prepare", tars, "--non-interactive", "--split-ratio", "1,0,0")
    assert run("bench", tars, "--workers", -1).stderr.endswith("--workers -1: expected an integer of at least 0\n")
    (tars / ".nv-meta/dataset.yaml").write_text("{sample_type: {__module__: mine, __class__: A}, field_map: {a: txt}}")
    assert "pass --trusted-module 'mine' if it is yours" in run("preview", tars).stderr
    assert "pass --trusted-module 'mine' if it is yours" in run("lint", tars, "--no-progress").output


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
    result = run("preview", tars, "--count", 1, "--trusted-module", "my_own_types")
    assert "→ Note" in result.output, result.stderr
    assert run("lint", tars, "--no-progress", "--trusted-module", "my_own_types").exit_code == 0


@pytest.mark.processes
def test_names_that_are_not_utf8_are_shown_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "caf set"
    write_tar(folder / "a.tar", {"caf\udce9.txt": b"a", "x": b""}, tarfile.GNU_FORMAT)
    flags = [
        "--non-interactive",
        "--split-ratio",
        "1,0,0",
        "--sample-type",
        "TextSample",
        "--field-map",
        '{"text": "txt"}',
    ]
    for command in (["prepare", folder, *flags], ["preview", folder], ["lint", folder], ["lint", folder, "--json"]):
        ended = subprocess.run(
            [sys.executable, "-m", "bridge_data.tools.cli", *map(str, command)],
            capture_output=True,
            env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        )
        assert b"Traceback" not in ended.stderr and b"caf\\udce9" in ended.stdout + ended.stderr
    assert json.loads(ended.stdout)["notes"][0]["shown"][0]["key"] == "caf\udce9"
