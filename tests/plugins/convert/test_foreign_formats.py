"""A format of `convert` that another package offers is used as ours are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

POEMS = """
from bridge_data.prepare.record_source import RecordSource, SourceRecord, digest_of_files

class Poems(RecordSource):
    title = "poems"

    def __init__(self, path, config):
        self.path, self.poems = path, path.read_text().split("\\n\\n")

    def __len__(self):
        return len(self.poems)

    def read(self, numbers):
        return (SourceRecord(number, f"poem {number}", {"text": self.poems[number]}) for number in numbers)

    def fingerprint(self):
        return digest_of_files([self.path])
"""


@pytest.mark.processes
def test_a_package_offers_a_format(tmp_path: Path) -> None:
    about = tmp_path / "poems-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: poems\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[bridge_data.converters]\npoems = poems:Poems\n")
    (tmp_path / "poems.py").write_text(POEMS)
    (tmp_path / "all.txt").write_text("A rose\nis a rose\n\nThe owl and the pussycat\n\nTyger")

    def run(*arguments: object) -> str:
        words = [sys.executable, "-m", "bridge_data.cli", "convert", *map(str, arguments)]
        paths = os.pathsep.join([str(tmp_path), *sys.path])
        environment = os.environ | {"PYTHONPATH": paths}
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.stdout

    printed = run("--format", "poems", tmp_path / "all.txt", tmp_path / "made", "--non-interactive", "--num-workers", 1)
    assert "all.txt: poems, 3 records" in printed and "sample type: TextSample" in printed
    assert "made: 3 samples" in printed
    assert "'poems'" in run("--format", "verses", tmp_path / "all.txt", tmp_path / "other"), "it is among the formats"
