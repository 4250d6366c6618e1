import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge_data.configs import DataConfig
from bridge_data.loader.checkpoint import save_states
from tests.cli.conftest import Run
from tests.prepared import write_texts


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of ten texts."""
    return write_texts(tmp_path_factory.mktemp("view") / "texts", 10, lambda number: f"text number {number}")


@contextlib.contextmanager
def served(path: Path, *options: str) -> Iterator[int]:
    """The port of a server that shows `path`."""
    command = [sys.executable, "-m", "bridge_data.cli", "view", str(path), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            told = server.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", told)
            assert found is not None, told
            yield int(found[1])
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def port(texts: Path) -> Iterator[int]:
    """The port of a server that asks for a token."""
    with served(texts, "--token", "t" * 20) as found:
        yield found


def asked(port: int, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    """(status, text, headers) of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), dict(answer.getheaders())


@pytest.mark.processes
def test_serves_pages_to_who_has_the_token(port: int) -> None:
    assert asked(port, "/samples")[0] == 401
    status, _, headers = asked(port, f"/samples?token={'t' * 20}")
    assert status == 303
    cookie = headers["set-cookie"].partition(";")[0]
    status, html, headers = asked(port, "/samples", cookie=cookie)
    assert status == 200 and "text number 9" in html
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert asked(port, "/batches", cookie=cookie)[0] == 200
    assert asked(port, "/samples", cookie=cookie, host="evil.example")[0] == 421


@pytest.mark.processes
def test_serves_tars_that_nobody_has_prepared(tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    with served(tars / "data-00000*.tar") as port:
        status, html, _ = asked(port, "/samples")
        assert status == 200 and "picture number 12" in html
        found = asked(port, "/samples?q=000012")[1]
        assert "picture number 12" in found and "picture number 11" not in found


def test_what_cannot_be_shown_is_told(run: Run, tars: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tars.parent / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints/step=2.ckpt").write_bytes(b"half")
    for arguments, told in (
        ([folder / "none"], "no such folder or file"),
        (["no_such_module:make"], "no module 'no_such_module'"),
        ([folder], "neither data nor the folder of a run: no YAML in it has data.path"),
        ([texts, "num_lane=3"], "did you mean 'num_lanes'"),
        ([texts, "--host", "0.0.0.0", "--port", 0], "--host 0.0.0.0: others could look at the data: give --token auto"),
    ):
        result = run("view", *arguments)
        assert (result.exit_code, told in result.stderr) == (1, True), result.stderr
    for name in ("gatekeeper", "pages"):
        monkeypatch.delitem(sys.modules, f"bridge_data.plugins.view.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "starlette.requests", None)
    result = run("view", texts)
    assert result.exit_code == 1 and "pip install " in result.stderr


@pytest.mark.processes
def test_the_folder_of_a_run_is_shown_with_its_data(texts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "third-try"
    folder.mkdir()
    settings = {"path": str(texts), "micro_batch_size": 3, "shuffle_buffer_size": 8, "num_lanes": 2}
    (folder / "config.yaml").write_text(json.dumps({"data": {**settings, "global_batch_size": 6}}))
    encoder = ["num_workers=0", "task_encoder=bridge_data.DefaultTaskEncoder"]
    loader = DataConfig.read(folder, encoder).build().train_dataloader()
    keys = [list(next(loader).__key__) for _ in range(8)]
    save_states(folder / "iter_0000004", loader.save_state(), step=4, world_size=1)
    with served(folder) as port:
        status, _, headers = asked(port, "/")
        assert (status, headers["location"]) == (303, "/run")
        html = asked(port, "/run")[1]
        assert "<h1>third-try</h1>" in html and "<title>third-try" in html
        assert asked(port, "/steps?step=3")[2]["location"] == "/steps/3"
        html = asked(port, "/steps/3")[1]
        assert re.findall(r'class="key"[^>]*>([^<]*)<', html) == keys[6] + keys[7]


def test_a_port_that_is_taken_is_told(run: Run, texts: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("view", texts, "--port", taken.getsockname()[1])
    assert result.exit_code == 1 and "give another one" in result.stderr
