"""Figures of the pictures of the docs."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import pictures


def test_a_blend_stays_near_its_weights() -> None:
    found = pictures.measure_blend()
    assert max(found["off"]) < 8 * 3.4 < max(found["off_at_random"])
    assert found["shares"][0] == pytest.approx(pictures.PHASES[0][1], abs=0.01)
    assert found["shares"][-1] == pytest.approx(pictures.PHASES[1][1], abs=0.01)


def test_pictures_of_the_docs_are_of_the_stored_figures() -> None:
    figures = json.loads(pictures.FIGURES.read_text())
    assert figures.keys() == pictures.PARTS.keys()
    shown = set()
    for page in pictures.IMAGES.parent.glob("*.md"):
        shown |= set(re.findall(r"\(images/(\w+)\.png\)", page.read_text()))
    assert shown == {path.stem for path in pictures.IMAGES.glob("*.png")}
    assert {name for name in shown if not name.startswith("view_")} == figures.keys()  # those are screenshots
    for name, found in figures.items():
        assert all(len(values) for values in found.values() if isinstance(values, list | dict)), name


@pytest.mark.parametrize("name", pictures.PARTS)
def test_stored_figures_can_be_drawn(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: the extra bench has it")
    monkeypatch.setattr(pictures, "IMAGES", tmp_path)
    figures = json.loads(pictures.FIGURES.read_text())
    assert pictures.draw(name, figures[name]).read_bytes().startswith(b"\x89PNG")
