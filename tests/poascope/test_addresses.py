import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from poascope.addresses import OwnHost, is_loopback, without_password


def asked(host: str) -> TestClient:
    async def hello(_: object) -> PlainTextResponse:
        return PlainTextResponse("in")

    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    app = Starlette(routes=[Route("/", hello), WebSocketRoute("/ws", socket)], middleware=[Middleware(OwnHost, remedy="set the token")])
    return TestClient(app, headers={"host": host})


def test_loopback_is_known_by_address_and_name() -> None:
    """Every loopback address, and no other."""
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""))


@pytest.mark.parametrize("host", ["127.0.0.1:8501", "localhost", "[::1]:8501", "LOCALHOST:1", "poascope.localhost:8501"])
def test_a_loopback_name_is_answered(host: str) -> None:
    """However a person on this machine spells it."""
    assert asked(host).get("/").text == "in"
    with asked(host).websocket_connect("/ws"):
        pass


@pytest.mark.parametrize("host", ["evil.example:8501", "127.0.0.1.evil.example", "localhost.evil.example", "[", "10.0.0.1"])
def test_a_name_pointed_at_loopback_is_not(host: str) -> None:
    """A page whose name was rebound to this machine reads nothing and opens no socket; a person is told what to do."""
    answer = asked(host).get("/")
    assert answer.status_code == 403 and "set the token" in answer.text
    with pytest.raises(WebSocketDisconnect), asked(host).websocket_connect("/ws"):
        pass


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://user:pass@nats:4222", "nats://nats:4222"),
        ("nats://us@er:p@ss@nats:4222,nats://t0ken@b:4222", "nats://nats:4222,nats://b:4222"),
        ("http://prometheus:9090/a@b", "http://prometheus:9090/a@b"),
        ("poascope.duckdb", "poascope.duckdb"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    """An address on a screen, in a log or in a bundle says where, never with what."""
    assert without_password(url) == shown
