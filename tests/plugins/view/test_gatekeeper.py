import pytest
from starlette.testclient import TestClient

from bridge_data.errors import ConfigError
from bridge_data.plugins.view.gatekeeper import Gatekeeper, checked_token
from tests.plugins.view.conftest import ADDRESS

TOKEN = "a-token-of-some-length"


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"secret"})


def asked(token: str | None = None) -> TestClient:
    return TestClient(Gatekeeper(app, token, ["desk.example"]), base_url=ADDRESS, follow_redirects=False)


def test_tokens_are_made_or_given_and_needed_where_others_could_look() -> None:
    made = checked_token("0.0.0.0", "auto")
    assert made and len(made) >= 24 and made != checked_token("0.0.0.0", "auto")
    assert checked_token("0.0.0.0", TOKEN) == TOKEN
    open_hosts = [(host, None) for host in ("0.0.0.0", "::", "192.168.1.4", "desk.example")]
    bad_tokens = [("127.0.0.1", token) for token in ("short", "with spaces in it all", "zeichen-äöü-äöü")]
    for host, token in (*open_hosts, *bad_tokens):
        with pytest.raises(ConfigError, match="at least 12 letters" if token else "give --token auto"):
            checked_token(host, token)


HOSTS = {
    **dict.fromkeys(["127.0.0.1:8750", "localhost", "LOCALHOST:1", "[::1]:8750", "10.0.0.2", "desk.example"], True),
    **dict.fromkeys(["evil.example", "127.0.0.1.evil.example:8750", "localhost.evil.example", ""], False),
}


@pytest.mark.parametrize("host", HOSTS)
def test_addresses_and_known_names_are_answered_and_no_others(host: str) -> None:
    answer = asked().get("/", headers={"host": host})
    assert (answer.status_code, "secret" in answer.text) == ((200, True) if HOSTS[host] else (421, False))


def test_only_reading_of_short_addresses_is_answered_and_every_answer_has_the_headers() -> None:
    answers = [asked().request(method, "/") for method in ("POST", "PUT", "DELETE", "OPTIONS")]
    assert [answer.status_code for answer in answers] == [405] * 4
    assert asked().get("/" + "1" * 5000).status_code == 414
    for answer in (asked().get("/"), asked(TOKEN).get("/"), answers[0]):
        assert answer.headers["content-security-policy"].startswith("default-src 'self'; object-src 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_the_token_is_asked_for_once_kept_in_a_cookie_and_leads_to_no_other_site() -> None:
    browser = asked(TOKEN)
    assert [browser.get(path).status_code for path in ("/samples", "/samples?token=wrong")] == [401, 401]
    first = browser.get(f"/samples?page=2&token={TOKEN}")
    assert (first.status_code, first.headers["location"]) == (303, "/samples?page=2")
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert browser.get("/samples").text == "secret"
    assert asked(TOKEN).get("/", headers={"cookie": "bridge_view=wrong"}).status_code == 401
    location = asked(TOKEN).get(f"//evil.example/?token={TOKEN}").headers["location"]
    assert location.startswith("/") and not location.startswith("//")
