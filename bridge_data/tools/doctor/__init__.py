"""Checking a planned run before it starts: this machine, the data, the order, the speed; and what to change."""

from bridge_data.tools.doctor.checkup import Checkup, CheckupConfig, examine
from bridge_data.tools.doctor.planned_run import Finding, Level, PlannedRun

__all__ = ["Checkup", "CheckupConfig", "Finding", "Level", "PlannedRun", "examine"]
