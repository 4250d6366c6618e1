"""Read all of a data set, and report all of its faults at once."""

from bridge_data.tools.lint.faults import KINDS, Fault, FaultKind, LintReport
from bridge_data.tools.lint.lint_run import lint
from bridge_data.tools.lint.targets import LintConfig

__all__ = ["KINDS", "Fault", "FaultKind", "LintConfig", "LintReport", "lint"]
