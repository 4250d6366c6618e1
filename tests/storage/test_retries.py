import pytest

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.storage import retries
from bridge_data.storage.retries import Denied, Missing, RequestError, persist


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 1e-4)


def failing(*errors: RequestError):
    left = list(errors)

    def action() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return action


def test_passing_faults_pass() -> None:
    assert persist(failing(*[RequestError("busy", passing=True)] * 5), "it") == "done"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Missing("404"), r"it: no such object.*\(404\)"),
        (Denied("403"), r"it: access denied.*\(403\)"),
        (RequestError("odd"), "it: cannot be read: odd"),
    ],
)
def test_others_are_said_at_once(fault: RequestError, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        persist(failing(fault), "it")


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", "0.02")
    with pytest.raises(DatasetError, match=r"it: cannot be read: \d+ attempts in 0 s failed, the last one with: busy"):
        persist(failing(*[RequestError("busy", passing=True)] * 1000), "it")


@pytest.mark.parametrize("text", ["soon", "-1", ""])
def test_patience_is_a_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", text)
    with pytest.raises(ConfigError, match="expected a number of seconds"):
        persist(failing(RequestError("busy", passing=True)), "it")
