import gzip
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from app.control import Control
from app.data import Collector, Feed
from app.past import Past
from app.server import BUNDLE, COOKIE, HEALTH, Guard, build, plotly_path, routes
from poascope.errors import Misconfigured
from poascope.settings import Settings


def guarded() -> TestClient:
    async def hello(request: Any) -> PlainTextResponse:
        return PlainTextResponse("in")

    return TestClient(Starlette(routes=[Route("/", hello)], middleware=[Middleware(Guard, token="s3cret")]), follow_redirects=True)


def test_nobody_gets_in_without_the_token() -> None:
    """A missing or wrong token is 401, whichever way it comes."""
    client = guarded()
    assert client.get("/").status_code == 401
    assert client.get("/?token=wrong").status_code == 401
    assert client.get("/", headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_the_token_in_the_link_becomes_a_cookie() -> None:
    """It is asked for once, and leaves the address bar."""
    client = guarded()
    answer = client.get("/?token=s3cret")
    assert (answer.status_code, answer.text, str(answer.url)) == (200, "in", "http://testserver/")
    assert client.get("/").text == "in"
    assert guarded().get("/", headers={"Authorization": "Bearer s3cret"}).text == "in"


def test_without_a_token_only_loopback_names_are_answered() -> None:
    """A page whose name was pointed at this machine cannot read the dashboard, nor open the socket that overrides go through."""
    client = TestClient(build(Settings()), headers={"host": "evil.example:8501"})
    assert client.get("/live").status_code == 403
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/_stcore/stream"):
        pass


PATHS = ("/", "/control", "/live", "/log", "/past/moment", plotly_path(), "/operator", "/auth/login", "/oauth2callback", "/static/js/x.js")


@pytest.mark.parametrize("path", [*PATHS, "/_stcore/host-config", "/_stcore/health/", "/media/x", "/component/x"])
def test_every_path_needs_the_token(path: str) -> None:
    """Pages, data, files, Streamlit's own routes and the way back from logging in; only whether it runs may be asked."""
    reached: list[str] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await PlainTextResponse("in")(scope, receive, send)

    client = TestClient(Guard(inner, "s3cret"))
    assert client.get(path).status_code == client.post(path).status_code == 401
    with pytest.raises(WebSocketDisconnect) as closed, client.websocket_connect(path):
        pass
    assert closed.value.code == 4401
    assert client.get(HEALTH).text == "in"
    assert reached == [HEALTH]


def test_other_cookies_of_the_host_do_not_lock_it() -> None:
    """Browsers send the cookies of every server on the same host; one that is not to the letter of the law hides ours from nobody."""
    others = 'theme={"dark": true}; a b=c'
    assert guarded().get("/", headers={"Cookie": f"{others}; {COOKIE}=s3cret"}).text == "in"
    assert guarded().get("/", headers={"Cookie": f"{others}; {COOKIE}=wrong"}).status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_other_addresses_need_a_token(host: str) -> None:
    """Off loopback the dashboard does not start without a token."""
    with pytest.raises(Misconfigured, match="dash_token"):
        build(Settings(dash_host=host))


def test_plotly_is_served_once_and_for_long() -> None:
    """The bundle is the plotly package's own, compressed, under a name that changes with its version."""
    settings = Settings()
    feed = Feed(Collector("http://127.0.0.1:9"), Control(settings), settings)
    client = TestClient(Starlette(routes=list(routes(feed, Past(feed.collector, feed.objectives, settings)))))
    answer = client.get(plotly_path())
    assert answer.content == BUNDLE.read_bytes()
    assert "immutable" in answer.headers["cache-control"]
    assert len(gzip.compress(answer.content)) < len(answer.content) / 2
    for query in ("range=7", "range=x", "range=300&theme=pink", "range=300&after=x", "after=-1", f"after={10**400}"):
        assert client.get(f"/live?{query}").status_code == 400
