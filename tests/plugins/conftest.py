"""Commands of plug-ins are run as those of the core."""

from tests.cli.conftest import raw as raw
from tests.cli.conftest import run as run
from tests.cli.conftest import tars as tars
