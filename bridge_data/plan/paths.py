"""Where something lies that a YAML file names: paths relative to the file, with `~` and environment variables.

Enters: the text of a YAML value. Leaves: an absolute path, or a URL. What a file at a URL names by a relative path is
in the same store.
"""

import os
import posixpath
import re

from bridge_data.errors import ConfigError
from bridge_data.plan.document import Node
from bridge_data.storage import RemotePath, is_remote
from bridge_data.storage.object_stores import split_url

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_LOCAL = "file://"


def absolute(path: str) -> str:
    """`path` where the caller of a function meant it, as a worker may be started elsewhere; a URL as it is.

    Raises:
        ConfigError: for a URL of an unknown kind.
    """
    path = path.removeprefix(_LOCAL)
    return str(RemotePath(path)) if is_remote(path) else os.path.abspath(os.path.expanduser(path))


def located(node: Node, what: str, file: str) -> str:
    """The location that the text at `node`, in the YAML file `file`, names.

    Raises:
        ConfigError: naming file and line, if it is no text, or names an environment variable that is not set.
    """
    return located_text(node.text(what), node, file)


def located_text(text: str, node: Node, file: str) -> str:
    """The location that `text` names, which was found at `node` in the YAML file `file`.

    Raises:
        ConfigError: naming file and line, for an environment variable that is not set.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in os.environ:
            raise node.error(f"{text}: the environment variable {name} is not set; set it, or write the path itself")
        return os.environ[name]

    path = os.path.expanduser(_VARIABLE.sub(value, text).removeprefix(_LOCAL))
    try:
        if is_remote(path):
            return str(RemotePath(path))
        if is_remote(file) and not os.path.isabs(path):
            base, key = split_url(file)
            return f"{base}{posixpath.normpath(posixpath.join('/', posixpath.dirname(key), path))}"
    except ConfigError as error:
        raise node.error(str(error)) from None
    return os.path.normpath(os.path.join(os.path.dirname(file), path))
