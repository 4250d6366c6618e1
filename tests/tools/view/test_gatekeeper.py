import pytest
from starlette.testclient import TestClient

from bridge_data.errors import ConfigError
from bridge_data.tools.view.gatekeeper import Gatekeeper, checked_token
from tests.tools.view.conftest import ADDRESS

TOKEN = "a-token-of-some-length"


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"secret"})


def asked(token: str | None = None) -> TestClient:
    return TestClient(Gatekeeper(app, token, ["desk.example"]), base_url=ADDRESS, follow_redirects=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "desk.example"])
def test_other_interfaces_without_a_token_are_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="others could look at the data: give --token auto"):
        checked_token(host, None)


def test_tokens_are_made_or_given() -> None:
    made = checked_token("0.0.0.0", "auto")
    assert made and len(made) >= 24 and made != checked_token("0.0.0.0", "auto")
    assert checked_token("0.0.0.0", TOKEN) == TOKEN
    for bad in ("short", "with spaces in it all", "zeichen-äöü-äöü"):
        with pytest.raises(ConfigError, match="at least 12 letters"):
            checked_token("127.0.0.1", bad)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8750", "localhost", "LOCALHOST:1", "[::1]:8750", "10.0.0.2", "desk.example"]
)
def test_addresses_and_known_names_are_answered(host: str) -> None:
    assert asked().get("/", headers={"host": host}).text == "secret"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8750", "localhost.evil.example", ""])
def test_other_names_are_refused(host: str) -> None:
    answer = asked().get("/", headers={"host": host})
    assert answer.status_code == 421 and "secret" not in answer.text


def test_only_reading_is_answered() -> None:
    assert [asked().request(method, "/").status_code for method in ("POST", "PUT", "DELETE", "OPTIONS")] == [405] * 4


def test_long_addresses_are_refused() -> None:
    assert asked().get("/" + "1" * 5000).status_code == 414


def test_every_answer_has_the_headers() -> None:
    for answer in (asked().get("/"), asked().post("/"), asked(TOKEN).get("/")):
        assert answer.headers["content-security-policy"].startswith("default-src 'self'; object-src 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_the_token_is_asked_for_once_and_kept_in_a_cookie() -> None:
    browser = asked(TOKEN)
    assert browser.get("/samples").status_code == 401
    assert browser.get("/samples?token=wrong").status_code == 401
    first = browser.get(f"/samples?page=2&token={TOKEN}")
    assert (first.status_code, first.headers["location"]) == (303, "/samples?page=2")
    assert (
        "httponly" in first.headers["set-cookie"].lower() and "samesite=strict" in first.headers["set-cookie"].lower()
    )
    assert browser.get("/samples").text == "secret"
    assert asked(TOKEN).get("/", headers={"cookie": "bridge_view=wrong"}).status_code == 401


def test_the_token_leads_to_no_other_site() -> None:
    answer = asked(TOKEN).get(f"//evil.example/?token={TOKEN}")
    assert answer.headers.get("location", "/").startswith("/") and not answer.headers["location"].startswith("//")
