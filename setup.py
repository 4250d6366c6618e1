"""The build of the wheel, which pyproject.toml describes: always from nothing.

setuptools copies the package to build/lib and leaves it there; the next build would ship modules that are gone since.
"""

import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class FromNothing(build_py):
    """Copies the package into an empty folder."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": FromNothing})
