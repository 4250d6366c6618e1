"""Serving the pages: the socket, the address to open, and the server."""

import socket
from collections.abc import Callable, Collection

from bridge_data.errors import ConfigError
from bridge_data.tools.view.gatekeeper import checked_token
from bridge_data.tools.view.site import Site


def serve(
    site: Site, host: str, port: int, token: str | None, names: Collection[str], tell: Callable[[str], None]
) -> None:
    """Serve `site` until it is interrupted; `tell` gets the address to open, with the token. Port 0: any free one.

    Raises:
        ConfigError: if others could ask without a token, the address cannot be listened on, or a package is missing.
    """
    token = checked_token(host, token)
    try:
        import uvicorn

        from bridge_data.tools.view.pages import application
    except ImportError as error:
        raise ConfigError(f'`bridge-data view` needs a package ({error}): pip install "bridge-data[view]"') from error
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror}; give another one") from error
    with listening:
        bound = listening.getsockname()[1]
        everywhere = host in ("0.0.0.0", "::")
        shown = socket.gethostname() if everywhere else f"[{host}]" if ":" in host else host
        known = {*names, host, *([socket.gethostname(), socket.getfqdn()] if everywhere else [])}
        app = application(site, token=token, names=known, cookie=f"bridge_view_{bound}")
        tell(f"http://{shown}:{bound}/" + (f"?token={token}" if token else ""))
        config = uvicorn.Config(app, log_level="warning", access_log=False, ws="none", lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])
