"""The data of the tests of the DataModule."""

from tests.datamodule.conftest import path as path
