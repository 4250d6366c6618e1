import subprocess
import sys
from pathlib import Path

import click
import pytest

from bridge_data.tools.cli import main
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
    assert f"run `bridge-data prepare {tmp_path}`" in result.stderr


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
