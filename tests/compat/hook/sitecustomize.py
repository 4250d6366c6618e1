"""`megatron.energon` is ours as in any program that calls `replace_energon()`, in every Python process that finds this
file; trusted are the tests' own modules and code beside data."""

import sys
from pathlib import Path

from bridge_data.energon import replace_energon

sys.path.append(str(Path(__file__).parents[1] / "alias"))
import stand_ins  # noqa: F401 - installs itself

replace_energon(trusted_modules=["tests", "megatron.bridge"], trust_dataset_code=True)
