"""Addresses: which are this machine's own, what a browser may ask of them, and how one is shown."""

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_password(url: str) -> str:
    """The address as it may be logged, shown and exported: user and password left out."""
    return re.sub(r"//[^/]*@", "//", url)


@dataclass(frozen=True, slots=True)
class OwnHost:
    """Answers only what was asked of a loopback name, for a server that asks for no token.

    A page elsewhere whose name is pointed at 127.0.0.1 (DNS rebinding) is of the same origin to a browser, which would let it read
    everything, and steer; but the name it asked for stays in Host. `remedy`: what to do for those who come by another name.
    """

    app: "ASGIApp"
    remedy: str

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] not in ("http", "websocket") or all(_is_own(value) for name, value in scope["headers"] if name == b"host"):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 4403})
        else:
            text = f"poascope: asked for under a name that is not loopback - {self.remedy}\n".encode()
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": text})


def _is_own(host: bytes) -> bool:
    try:
        name = urlsplit(f"//{host.decode('latin-1')}").hostname or ""
    except ValueError:
        return False
    return is_loopback(name) or name.endswith(".localhost")
