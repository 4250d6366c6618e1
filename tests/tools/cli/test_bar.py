import threading

import pytest

from bridge_data.tools.cli import bar
from bridge_data.tools.cli.bar import progress_bar


def test_it_shows_what_is_done(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bar, "SHOWN_AFTER_S", 0)
    with progress_bar("checking", "samples", shown=True) as show:
        show(0, 8)
        show(8, 8)
    shown = capsys.readouterr().err
    assert "checking: 100%" in shown
    assert "8/8" in shown


def test_it_shows_nothing_of_what_is_soon_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bar, "SHOWN_AFTER_S", 3600)
    with progress_bar("checking", "samples", shown=True) as show:
        show(0, 8)
        show(8, 8)
    assert capsys.readouterr().err == ""


def test_it_starts_nothing_before_the_first_call_and_shows_nothing_unasked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bar, "SHOWN_AFTER_S", 0)
    before = threading.active_count()
    with progress_bar("checking", "samples", shown=False) as show:
        assert threading.active_count() == before
        show(1, None)
    assert capsys.readouterr().err == ""
