import subprocess
import sys
from pathlib import Path

import click
import pytest

from bridge_data.cli import main
from tests.cli.conftest import Run


def test_help_names_the_commands(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(name in result.output for name in main.commands)
    assert run("--version").output.startswith("bridge-data, version ")


@pytest.mark.parametrize("command", main.commands)
def test_every_option_is_explained(run: Run, command: str) -> None:
    assert run(command, "--help").exit_code == 0
    options = [parameter for parameter in main.commands[command].params if isinstance(parameter, click.Option)]
    assert all(option.help for option in options)


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
    command = [sys.executable, "-m", "bridge_data.cli", "info", str(tmp_path / "no")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
