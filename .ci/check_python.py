"""Whether this Python can run bridge_data; `make setup` asks before it installs anything. Runs on any Python."""

import sys

OLDEST, NEWEST = (3, 11), (3, 13)

version = ".".join(map(str, sys.version_info[:3]))
problem = None
if not OLDEST <= sys.version_info[:2] <= NEWEST:
    problem = "is Python %s, and bridge_data needs 3.%d to 3.%d (megatron-core and torch are tried on these)" % (
        version,
        OLDEST[1],
        NEWEST[1],
    )
elif not sys.platform.startswith("linux"):
    problem = "runs on %s, and bridge_data needs Linux (memfd, pidfd)" % sys.platform
else:
    try:
        import ensurepip  # noqa: F401
        import ssl  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        problem = "has no %s, which a virtual environment needs (Debian: apt install python3-venv)" % error.name
if problem:
    sys.exit("%s %s. Name another one: make setup PYTHON=python3.12" % (sys.executable, problem))
print(version)
