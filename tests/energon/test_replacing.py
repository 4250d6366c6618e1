"""In processes of their own, as an import cannot be taken back."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else done.stderr


def test_imports_of_energon_get_the_names_of_this_package() -> None:
    code = """
from bridge_data.energon import replace_energon
replace_energon()
replace_energon()
import bridge_data, megatron.energon
from megatron.energon import DefaultTaskEncoder, TextWebdataset, WorkerConfig
assert DefaultTaskEncoder is bridge_data.DefaultTaskEncoder and WorkerConfig is bridge_data.WorkerConfig
assert TextWebdataset is bridge_data.energon.TextWebdataset
assert megatron.energon.get_loader is bridge_data.get_loader
"""
    assert run(code) == ""


def test_a_star_imports_the_public_names_of_energon() -> None:
    code = """
import sys
from bridge_data.energon import replace_energon
replace_energon()
from megatron.energon import *
from pathlib import Path
missing = {*Path("tests/energon_7_4_1.txt").read_text().split()} - {*globals()}
from bridge_data.energon.module_paths import LEFT_OUT
print(sorted(missing - {*LEFT_OUT}), "lightning" in sys.modules)
"""
    assert run(code) == "[] False\n"


def test_what_has_no_counterpart_is_an_import_error() -> None:
    code = "from bridge_data.energon import replace_energon; replace_energon(); "
    assert "cannot import name 'Nothing' from 'megatron.energon'" in run(code + "from megatron.energon import Nothing")
    assert "no counterpart of megatron.energon.nothing" in run(code + "import megatron.energon.nothing")


def test_energon_that_has_been_imported_cannot_be_replaced() -> None:
    code = """
import sys
from types import ModuleType
sys.modules["megatron.energon"] = ModuleType("megatron.energon")
from bridge_data.energon import replace_energon
replace_energon()
"""
    assert "call bridge_data.energon.replace_energon() before the imports that need it" in run(code)
