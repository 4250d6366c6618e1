"""Which samples a step of a run sees, and in which steps a sample comes.

`RunOrder` answers both; `open_run` makes one from a config, or from a data path with settings; `first_difference`
compares two.
"""

from bridge_data.tools.oracle.run_order import RunOrder, RunSample, RunStep
from bridge_data.tools.oracle.run_reports import RunDifference, first_difference
from bridge_data.tools.oracle.run_sections import OrderTaskEncoder
from bridge_data.tools.oracle.run_settings import RunSettings, open_run
from bridge_data.tools.run_folder import read_states

__all__ = [
    "OrderTaskEncoder",
    "RunDifference",
    "RunOrder",
    "RunSample",
    "RunSettings",
    "RunStep",
    "first_difference",
    "open_run",
    "read_states",
]
