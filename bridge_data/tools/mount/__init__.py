"""A prepared data set as a folder of files, without unpacking it."""

from bridge_data.tools.mount.operations import mount
from bridge_data.tools.mount.view import Layout, View

__all__ = ["Layout", "View", "mount"]
