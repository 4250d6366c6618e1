"""Numbers in requests, and media in answers: all of a content, or a range of it."""

import re

from starlette.requests import Request
from starlette.responses import Response

from bridge_data.tools.view.sample_cards import MediaContent

_RANGE = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)


def number_in(request: Request, name: str, default: int | None) -> int | None:
    """The number in a query; the default if there is none, or it is no number."""
    text = request.query_params.get(name, "")
    return int(text) if re.fullmatch(r"-?\d{1,15}", text, re.ASCII) else default


def ranged(found: MediaContent, asked: str | None) -> Response:
    """The content, or the range of it that a `Range` header asks for: one range, as players do."""
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
