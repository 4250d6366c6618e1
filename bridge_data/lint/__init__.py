"""Reading everything of a data set, and reporting all that is wrong with it at once."""

from bridge_data.lint.faults import KINDS, Fault, FaultKind
from bridge_data.lint.report import LintReport
from bridge_data.lint.run import LintConfig, lint

__all__ = ["KINDS", "Fault", "FaultKind", "LintConfig", "LintReport", "lint"]
