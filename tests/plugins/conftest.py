"""Commands of plug-ins are run as those of the core."""

from tests.tools.cli.conftest import raw as raw
from tests.tools.cli.conftest import run as run
from tests.tools.cli.conftest import tars as tars
