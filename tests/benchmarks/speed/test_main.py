"""The command line of the benchmark."""

import pytest

from benchmarks.speed.__main__ import main


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "texts"])
    assert "there are text, jpeg" in capsys.readouterr().err
