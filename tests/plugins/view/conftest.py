"""Fixtures of the tests of pages and of commands."""

from tests.tools.cli.conftest import raw as raw
from tests.tools.cli.conftest import run as run
from tests.tools.cli.conftest import tars as tars
from tests.tools.view.conftest import blend_yaml as blend_yaml
from tests.tools.view.conftest import page as page
from tests.tools.view.conftest import photos_page as photos_page
