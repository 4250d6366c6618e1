"""Odd arguments of every command: one error that says what is wrong, and no traceback."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.conftest import Run
from tests.prepared import write_texts

COMMANDS = {
    "check": ("check", "PATH", "--no-progress"),
    "check --run": ("check", "--run", "PATH"),
    "checkpoint info": ("checkpoint", "info", "PATH"),
    "checkpoint diff": ("checkpoint", "diff", "PATH", "PATH"),
    "checkpoint skip": ("checkpoint", "skip", "PATH", "--steps", "3"),
    "convert": ("convert", "PATH", "made", "--no-progress"),
    "duplicates": ("duplicates", "PATH", "--no-progress"),
    "forget": ("forget", "PATH", "--keys", "text.txt"),
    "info": ("info", "PATH"),
    "info --samples": ("info", "PATH", "--samples", "1"),
    "mount": ("mount", "PATH", "empty"),
    "order": ("order", "PATH", "--step", "0"),
    "plan": ("plan", "PATH"),
    "prepare": ("prepare", "PATH", "--non-interactive", "--split-ratio", "1,0,0", "--no-progress"),
    "prepare --media": ("prepare", "PATH", "--media", "header", "--no-progress"),
    "view": ("view", "PATH", "--port", "0"),
}
PATHS = {
    "nothing": "",
    "a pattern": "foo[",
    "unicode": "é日本🎉",
    "no text": "\udcff\udcfe",
    "too long": "x" * 5000,
    "a link to itself": "loop",
    "a link to nothing": "dangling",
    "an empty folder": "empty",
    "a folder in itself": "within",
    "an empty file": "nothing.yaml",
    "a binary YAML": "binary.yaml",
    "a text": "text.txt",
    "no bucket": "s3://",
    "no such user": "~nobody-here/x",
    "a variable": "${NOT_SET}/x",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    write_texts(folder / "data", 40, per_shard=10)
    for name in ("empty", "within"):
        (folder / name).mkdir()
    (folder / "within/up").symlink_to("..", target_is_directory=True)
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "nothing.yaml").touch()
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01" * 50)
    (folder / "text.txt").write_text("hello\n")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture
def odd(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command, which must not fail with a traceback, nor write a page."""

    def ran(*arguments: str) -> Result:
        result = run(*arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
        assert len(lines) <= 4 and len(result.stderr) < 6000, result.stderr
        return result

    monkeypatch.chdir(here)
    return ran


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_odd_path_is_an_error_in_a_line(odd: Callable[..., Result], command: str, name: str) -> None:
    result = odd(*(PATHS[name] if word == "PATH" else word for word in COMMANDS[command]))
    assert result.exit_code != 0, result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("prepare", "data", "--media", "foo["), "'foo[' has a [ without its ]"),
        (("prepare", "data", "--media", ""), "expected extension, header, or patterns"),
        (("prepare", "data", "--media", "*.jpg,"), "expected extension, header, or patterns"),
        (("prepare", "data", "--media", "*.nope", "--no-progress"), "note: nothing there is media"),
        (("prepare", "data", "--exclude", "("), "is not a regular expression"),
        (
            ("prepare", "data", "--split-parts", "train:{", "--non-interactive", "--force-overwrite"),
            "split pattern '{'",
        ),
        (("prepare", "data", "--split-ratio", "nan", "--non-interactive", "--force-overwrite"), "nan"),
        (("prepare", "data", "--split-ratio", "-1,1,1", "--non-interactive", "--force-overwrite"), "-1,1,1"),
        (("prepare", "data", "--dataset-config", "../x"), "expected the name of a file"),
        (("prepare", "data", "--task", "3/2"), "3/2"),
        (("check", "data", "--num-workers", "99999999999999999999999"), "not in the range x<=4096"),
        (("check", "data", "--num-workers", "0"), "--num-workers 0: expected at least 1"),
        (("check", "data", "--limit", "0"), "not in the range x>=1"),
        (("check", "data", "--limits", "max_shards=-1"), "expected NAME=NUMBER"),
        (("info", "data", "--samples", "0"), "expected a count from 1 on"),
        (("info", "data", "--samples", "5..1"), "expected a count from 1 on"),
        (("info", "data", "--html", "."), "--html .: cannot be written: Is a directory"),
        (("info", "data", "--html", "/"), "--html /: cannot be written: Is a directory"),
        (("info", "data", "--html", "pipe"), "--html pipe: cannot be written: is a device, a pipe or a socket"),
        (("plan", "data", "--html", "pipe"), "--html pipe: cannot be written: is a device, a pipe or a socket"),
        (("info", "data", "--html", "/sys/page.html"), "--html /sys/page.html: cannot be written"),
        (("info", "data", "--dataset-config", "x" * 5000), "(5,014 characters): File name too long"),
        (("info", "data", "--where", "("), "("),
        (("order", "data", "--steps", "0..nan"), "expected A..B"),
        (("order", "data", "--steps", "5..1"), "expected A..B"),
        (("order", "data", "--steps", "0..1", "--out", "/sys/o.jsonl"), "/sys/o.jsonl: cannot be written"),
        (("order", "data", "--steps", "0..1", "--out", "empty"), "expected a file named .jsonl or .parquet"),
        (("order", "data", "--key", ""), "no sample has the key ''"),
        (("order", "data", "--step", "-1"), "not in the range"),
        (("plan", "data", "--epochs", "1e400"), "epochs inf: expected the number of epochs"),
        (("plan", "data", "--epochs", "-1"), "expected a positive number"),
        (("plan", "data", "=3"), "expected KEY=VALUE"),
        (("convert", "data", "/sys/made"), "/sys/made: cannot be written to"),
        (("convert", "data", "made", "--max-samples", "0"), "0"),
        (("convert", "data", "data"), "data"),
        (("duplicates", "data", "--out", "/sys/o.jsonl", "--no-progress"), "/sys: cannot be written to"),
        (("duplicates", "data", "--limit", "0"), "not in the range"),
        (("forget", "data", "--keys", "loop"), "'loop'"),
        (("view", "data", "--port", "99999"), "not in the range"),
        (("checkpoint", "redist", "empty", "/sys/made", "--world-size", "0"), "not in the range"),
    ],
)
def test_an_odd_option_is_an_error_that_names_it(
    odd: Callable[..., Result], arguments: tuple[str, ...], told: str
) -> None:
    result = odd(*arguments)
    assert told in result.stderr, result.output
    assert (result.exit_code == 0) == told.startswith("note: ")


def test_what_the_user_may_not_read_or_write_is_an_error_in_a_line(odd: Callable[..., Result], here: Path) -> None:
    secret = here / "secret.yaml"
    secret.write_text("a: 1")
    secret.chmod(0)
    if os.access(secret, os.R_OK):
        pytest.skip("this user may read and write everything")
    readonly = here / "readonly"
    readonly.mkdir(mode=0o500)
    for name in set(COMMANDS) - {"prepare --media"}:
        result = odd(*("secret.yaml" if word == "PATH" else word for word in COMMANDS[name]))
        assert result.exit_code != 0, result.output
    for arguments in (("order", "data", "--steps", "0..1", "--out"), ("info", "data", "--html")):
        assert "cannot be written" in odd(*arguments, "readonly/out.jsonl").stderr


@pytest.mark.parametrize(
    "wrong",
    [
        ("check", "--measure", "0"),
        ("check", "--measure", "nan"),
        ("check", "--step-seconds", "-1"),
        ("check", "--run-steps", "0"),
        ("check", "--ranks-per-node", "0"),
        ("plan", "--measure", "inf"),
        ("plan", "--run-steps", "99999999999999999"),
        ("order", "--step", "99999999999999999999"),
        ("order", "--step", "-1"),
        ("checkpoint redist", "--step", "-1"),
        ("checkpoint redist", "--world-size", "4000000"),
        ("plan", "--world-size", "4000000"),
    ],
)
def test_numbers_that_no_run_has(run: Run, tmp_path: Path, wrong: tuple[str, str, str]) -> None:
    command, option, value = wrong
    result = run(*command.split(), *(("--run",) if command == "check" else ()), tmp_path, option, value)
    assert (result.exit_code, f"Invalid value for '{option}': {value}" in result.stderr) == (2, True), result.stderr
