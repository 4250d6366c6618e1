"""A plugin of pytest for targets whose tests need more than Python: a run in which all were skipped fails.

pytest -p tests.faults.executed ...
"""

import pytest

_SKIPPED_ALL = 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"{num_executed(terminalreporter.config)} tests were executed")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if num_executed(session.config) == 0 and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = _SKIPPED_ALL


def num_executed(config: pytest.Config) -> int:
    """The tests that have passed or failed so far."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return sum(len(reporter.stats.get(outcome, ())) for outcome in ("passed", "failed", "xfailed", "error"))
