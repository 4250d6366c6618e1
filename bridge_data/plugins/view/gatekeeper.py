"""Requests and responses: access control, numbers in queries, media and ranges of them, headers of every response.

Reads a request. Returns a refusal, or the application's response with headers that forbid foreign scripts, guessing of
content types, and use by other sites. Another site cannot read from here by resolving its own name to
this machine's address (DNS rebinding), since only addresses and known names are accepted as `Host`; with a token,
every request must have it.
"""

import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bridge_data.errors import ConfigError
from bridge_data.plugins.view.contents import MediaContent

HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}

MIN_TOKEN = 12
"""Minimum characters of a token that a user sets."""

GENERATED = "auto"

MAX_PATH = 1000
"""Maximum characters of a URL before its query."""


def checked_token(host: str, token: str | None) -> str | None:
    """The token to require (None: none) when listening on `host`; a new one for `auto`.

    Raises:
        ConfigError: if others could connect without one, or it is too short.
    """
    if token == GENERATED:
        return secrets.token_urlsafe(24)
    if token is not None:
        if not re.fullmatch(rf"[\w-]{{{MIN_TOKEN},}}", token, re.ASCII):
            raise ConfigError(f"--token: expected at least {MIN_TOKEN} letters, digits, - or _; or {GENERATED}")
        return token
    if not _is_loopback(host):
        raise ConfigError(
            f"--host {host}: others could look at the data: give --token {GENERATED} (one is made and printed), or "
            "--token with one of your own"
        )
    return None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Gatekeeper:
    """Refuses untrusted requests before `app` sees them. `names` are accepted host names besides addresses and
    localhost; `cookie` is the name of the cookie that stores the token."""

    def __init__(self, app: ASGIApp, token: str | None, names: Iterable[str] = (), cookie: str = "bridge_view") -> None:
        self._app, self._token, self._cookie = app, token, cookie
        self._names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no web sockets
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        answer: ASGIApp = self._refusal(scope) or self._app
        await answer(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("only GET is answered here\n", 405)
        if len(scope["path"]) > MAX_PATH:
            return PlainTextResponse("this address is too long\n", 414)
        if not self._knows(headers.get("host", "")):
            return PlainTextResponse("this host name is not known here: start with --allow-host NAME\n", 421)
        if self._token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given and self._is_token(given[0]):
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            path = "/" + scope["path"].lstrip("/\\")  # //name would redirect to another host
            answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return answer
        if self._is_token(cookie_parser(headers.get("cookie", "")).get(self._cookie, "")):
            return None
        return PlainTextResponse("open the address that `bridge-data view` has printed: it has the token\n", 401)

    def _is_token(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())

    def _knows(self, host: str) -> bool:
        """Whether a `Host` header, with or without a port, is an address or a known name."""
        name = host.strip().lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") <= 1:
            name = name.partition(":")[0]
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


_RANGE = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)


def number_in(request: Request, name: str, default: int | None) -> int | None:
    """The number in a query; the default if it is missing or not a number."""
    text = request.query_params.get(name, "")
    return int(text) if re.fullmatch(r"-?\d{1,15}", text, re.ASCII) else default


def ranged(found: MediaContent, asked: str | None) -> Response:
    """The content, or the range of it in a `Range` header: a single range, as players request."""
    headers = {"accept-ranges": "bytes", "content-type": found.content_type, "cache-control": "private, max-age=600"}
    if not found.inline:
        headers["content-disposition"] = "attachment"
    size, match = len(found.data), _RANGE.fullmatch(asked or "")
    if match is None or match.groups() == ("", ""):
        return Response(found.data, headers=headers)
    first, last = match.groups()
    if first:
        start, end = int(first), min(int(last) + 1 if last else size, size)
    else:
        start, end = max(0, size - int(last)), size
    if start >= end:
        return Response(status_code=416, headers={"content-range": f"bytes */{size}"})
    headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
    return Response(found.data[start:end], 206, headers)
