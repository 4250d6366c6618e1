"""Where something lies that a YAML file names: paths relative to the file, with `~` and environment variables.

Enters: the text of a YAML value. Leaves: an absolute path, or the URL of an object store as it stands.
"""

import os
import re

from bridge_data.plan.document import Node

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_LOCAL = "file://"


def is_url(path: str) -> bool:
    """Whether `path` is in an object store."""
    return "://" in path


def absolute(path: str) -> str:
    """`path` where the caller of a function meant it, as a worker may be started elsewhere; a URL as it is."""
    path = path.removeprefix(_LOCAL)
    return path if is_url(path) else os.path.abspath(os.path.expanduser(path))


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
    return path if is_url(path) else os.path.normpath(os.path.join(os.path.dirname(file), path))
