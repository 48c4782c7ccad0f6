from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.desk import PATH, SIGNED_IN_S, Desk
from poascope.settings import Settings


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def desk(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Without NATS: what would be published is kept in `said`."""
    settings = Settings(operators_file=str(tmp_path / "operators.json"), nats_url="nats://127.0.0.1:9")
    desk = Desk(settings, lambda asked: asked or "dynamo", clock)
    monkeypatch.setattr("app.desk.bus.call", lambda *_: None)
    return desk


def client(desk: Desk) -> TestClient:
    return TestClient(Starlette(routes=desk.routes()), base_url="http://127.0.0.1:8501", follow_redirects=False)


def test_the_cookie_is_out_of_reach(desk: Desk) -> None:
    """No script reads it, no other site makes the browser send it, and it is not the token."""
    token = desk.tokens.add("ann")
    answer = client(desk).post(PATH, data={"token": token}, headers={"Referer": "http://127.0.0.1:8501/control?range=1"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/control?range=1")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Max-Age" in cookie
    assert token.partition(":")[2] not in cookie
    assert desk.operator(dict(answer.cookies)) == "ann"
    assert (
        "Secure"
        in TestClient(Starlette(routes=desk.routes()), base_url="https://p", follow_redirects=False)
        .post(PATH, data={"token": token})
        .headers["set-cookie"]
    )


def test_it_ends(desk: Desk, clock: Clock) -> None:
    """By time, by signing out (in every tab), by another token in its place."""
    browser = client(desk)
    browser.post(PATH, data={"token": desk.tokens.add("ann")})
    held = dict(browser.cookies)
    clock.now += SIGNED_IN_S
    assert desk.operator(held) is None
    browser.post(PATH, data={"token": desk.tokens.add("ann", renew=True)})
    held = dict(browser.cookies)
    assert desk.operator(held) == "ann"
    desk.tokens.add("ann", renew=True)
    assert desk.operator(held) is None
    browser.post(PATH, data={"token": desk.tokens.add("ann", renew=True)})
    held = dict(browser.cookies)
    browser.post(f"{PATH}/out")
    assert desk.operator(held) is None
    assert desk.operator({}) is None


def test_locked_out_whatever_the_token(desk: Desk, clock: Clock) -> None:
    """During a lock the right token is not even looked at; afterwards it is."""
    token, browser = desk.tokens.add("ann"), client(desk)
    assert [browser.post(PATH, data={"token": "ann:no"}).status_code for _ in range(3)] == [401, 401, 401]
    assert browser.post(PATH, data={"token": token}).status_code == 429
    clock.now += 1
    assert browser.post(PATH, data={"token": token}).status_code == 303


@pytest.mark.parametrize("back", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)", "/operator"])
def test_it_leads_back_to_this_dashboard_only(desk: Desk, back: str) -> None:
    """Where to go on is a path of ours, whatever the form says."""
    answer = client(desk).post(PATH, data={"token": desk.tokens.add("ann"), "back": back})
    assert answer.headers["location"] == "/"


def test_what_is_typed_is_text(desk: Desk) -> None:
    """Fields of the form come back as text; one far too large is no token."""
    answer = client(desk).post(PATH, data={"token": "x", "deployment": '"><script>', "back": '/"><script>'})
    assert answer.status_code == 401 and "<script>" not in answer.text
    assert client(desk).post(PATH, data={"token": "x" * 100_000}).status_code == 401
