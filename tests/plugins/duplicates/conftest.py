"""Fixtures of the tests of commands."""

from tests.tools.cli.conftest import run as run
from tests.tools.cli.conftest import tars as tars
