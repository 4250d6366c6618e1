import threading

import pytest

from bridge_data.cli.bar import progress_bar


def test_it_shows_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("checking", "samples", shown=True) as show:
        show(0, 8)
        show(8, 8)
    shown = capsys.readouterr().err
    assert "checking: 100%" in shown
    assert "8/8" in shown


def test_it_starts_nothing_before_the_first_call_and_shows_nothing_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with progress_bar("checking", "samples", shown=False) as show:
        assert threading.active_count() == before
        show(1, None)
    assert capsys.readouterr().err == ""
