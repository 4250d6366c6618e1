"""`python -m tests.compat` on a checkout made up here, of which nothing is Energon's."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.__main__ import ROOT, not_applicable

TESTS = """
import unittest

import megatron.energon.flavors.webdataset.config as config
from megatron.energon import BlendDataset, WorkerConfig
from megatron.energon.edataclass import edataclass
from megatron.energon.rng import SystemRng


def test_names_are_ours():
    assert WorkerConfig(0, 2, 3).num_lanes == 6 and WorkerConfig.__mro__[1].__module__ == "bridge_data.topology"
    assert config.MAIN_FOLDER_NAME == ".nv-meta"


def test_blending():
    BlendDataset(SystemRng)


class TestOther(unittest.TestCase):
    def test_sub_tests(self):
        for number in range(3):
            with self.subTest(number=number):
                assert number != 1
"""


@pytest.mark.processes
def test_a_table_tells_what_passed_and_what_should_have(tmp_path: Path) -> None:
    (tmp_path / "src/megatron/energon").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_dataset.py").write_text(TESTS)  # `test_blending` of that file is listed as not applicable
    command = [sys.executable, "-m", "tests.compat", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    assert table[1] == ["test_dataset.py", "1", "1", "1", "0"]
    assert done.stdout.splitlines()[3:] == ["  test_dataset.py::test_sub_tests fails"]


def test_every_test_that_cannot_apply_has_a_reason() -> None:
    reasons = not_applicable()
    assert ("test_dataset.py", "test_blending") in reasons
    assert all(len(reason) > 10 for reason in reasons.values())


def test_a_folder_that_is_no_checkout_is_an_error(tmp_path: Path) -> None:
    for arguments, message in (([], "the folder of a checkout"), ([str(tmp_path)], "expected a checkout of Megatron")):
        done = subprocess.run(
            [sys.executable, "-m", "tests.compat", *arguments], capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 1 and message in done.stderr
