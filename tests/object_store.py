"""A real S3 server for tests, whose buckets are folders, and a proxy before it that makes faults on demand."""

import collections
import contextlib
import http.client
import http.server
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ACCESS_KEY, SECRET_KEY = "tester", "a-secret-of-tests"

_SERVE = """
import ctypes, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: it ends with the thread that started it
from nanio.cli import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Bucket:
    """A bucket: put a file into `folder`, and it is an object below `url`."""

    folder: Path
    url: str


class Server:
    """An S3 server with its buckets in `folder`, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Serve, at the port of the last time if there was one."""
        for _ in range(20):
            port = self.port or _free_port()
            if self._serves(port):
                self.port = port
                return
        raise RuntimeError("the S3 server does not start")

    def _serves(self, port: int) -> bool:
        arguments = ["serve", "--data-dir", str(self.folder), "--host", "127.0.0.1", "--port", str(port)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, *arguments, "--log-level", "error", "--no-access-log"],
            env=os.environ | {"NANIO_ACCESS_KEY": ACCESS_KEY, "NANIO_SECRET_KEY": SECRET_KEY},
        )
        while self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                return True
            time.sleep(0.02)
        return False

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def environment(port: int) -> dict[str, str]:
    """What a client of the server at `port` needs in its environment."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


class FaultyProxy:
    """Passes requests on to `server`. The next ones meet `faults`, one each: a status to answer with; `cut`, to break
    off in the middle of the content; `whole`, to answer a range with the whole object; `hang`, to answer nothing;
    `trickle`, to send a byte of the content every tenth of a second. Of the others, `share` meet `shared_fault`."""

    def __init__(self, server: Server) -> None:
        self.faults: collections.deque[int | str] = collections.deque()
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and range of each request."""
        self.shared_fault, self.share = "hang", 0.0
        self.latency_s = 0.0
        """How long a request waits, as it does in a store that is not on this machine."""
        chance = random.Random(0)
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy.requests.append((self.command, self.path, self.headers["Range"]))
                fault = proxy.faults.popleft() if proxy.faults else None
                if fault is None and chance.random() < proxy.share:
                    fault = proxy.shared_fault
                time.sleep(proxy.latency_s)
                if fault == "hang":
                    self.connection.recv(1)  # until the client gives up
                    self.close_connection = True
                    return
                if isinstance(fault, int):
                    self.send_response(fault)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if fault == "whole":
                    whole = (server.folder / self.path.lstrip("/")).read_bytes()
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(whole)))
                    self.end_headers()
                    self.wfile.write(whole)
                    return
                upstream = http.client.HTTPConnection("127.0.0.1", server.port)
                content = self.rfile.read(int(self.headers["Content-Length"] or 0))
                upstream.request(self.command, self.path, body=content or None, headers=dict(self.headers))
                answer = upstream.getresponse()
                content = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("date", "server", "connection", "transfer-encoding"):
                        self.send_header(name, value)
                self.end_headers()
                if fault == "trickle":
                    with contextlib.suppress(OSError):  # the client has given up
                        for byte in content:
                            self.wfile.write(bytes([byte]))
                            time.sleep(0.1)
                    self.close_connection = True
                    return
                self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
                if fault == "cut":
                    self.close_connection = True
                upstream.close()

            do_HEAD = do_PUT = do_DELETE = do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def faulty_proxy(server: Server) -> Iterator[FaultyProxy]:
    """A proxy before `server`."""
    proxy = FaultyProxy(server)
    try:
        yield proxy
    finally:
        proxy.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
