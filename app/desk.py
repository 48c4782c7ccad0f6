"""The desk where operators sign in: a token once, then a cookie that no script can read and no other site can send.

Signing in is an HTML form and two routes, since a Streamlit script can set no cookie. What the cookie stands for is kept here, in memory:
a restart of the dashboard signs everybody out.
"""

import asyncio
import hashlib
import html
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from app.tokens import Record, Throttle, Tokens
from controller import bus
from controller.protocol import Decision
from poascope.errors import PoascopeError
from poascope.settings import Settings

log = logging.getLogger("poascope.dash")

PATH = "/operator"
SIGNED_IN_S = 8 * 3600.0
MAX_FORM_BYTES = 16_384
TOLD_S, TOLD_MOST = 3600.0, 1000
NOWHERE = "-"  # the deployment of what was refused while none was known
PAGE = (Path(__file__).parent / "live" / "operator.html").read_text()


@dataclass(frozen=True, slots=True)
class _Ticket:
    name: str
    record: Record
    until: float


class Desk:
    """`deployment(asked)`: one that exists, for the audit trail of what names none."""

    def __init__(self, settings: Settings, deployment: Callable[[str | None], str | None], clock: Callable[[], float] = time.time) -> None:
        self.settings, self.clock, self._deployment = settings, clock, deployment
        self.tokens, self.throttle = Tokens(settings.operators_path), Throttle()
        self.cookie = f"poascope_operator_{settings.dash_port}"  # cookies know no ports: two dashboards of one host keep theirs apart
        self._tickets: dict[str, _Ticket] = {}
        self._one = asyncio.Lock()
        self._turned_away = 0
        self._told: dict[tuple[str, str], float] = {}

    def operator(self, cookies: Mapping[str, str]) -> str | None:
        """The name behind the cookie, as long as it lasts and the token is still the one that was shown."""
        held = self._tickets.get(_digest(cookies.get(self.cookie, "")))
        if held is None or held.until <= self.clock():
            return None
        try:
            return held.name if self.tokens.records().get(held.name) == held.record else None
        except PoascopeError as error:
            log.warning("%s", error)
            return None

    def refused(self, deployment: str | None, actor: str, why: str) -> None:
        """Say it in the log and, on NATS, to the audit trail."""
        log.warning("refused: %s: %s", actor, why)
        decision = Decision(kind="refusal", at=self.clock(), actor=actor, why=why)
        where = self._deployment(deployment) or NOWHERE
        try:
            bus.call(self.settings.nats, lambda b: b.publish(where, decision))
        except PoascopeError as error:
            log.error("refused: not in the audit trail: %s", error)

    def refused_once(self, deployment: str | None, actor: str, why: str) -> None:
        """The same, once an hour for the same thing: for what a reload of the page repeats."""
        now, key = self.clock(), (actor, why)
        self._told = {told: at for told, at in self._told.items() if now - at < TOLD_S}
        if key not in self._told and len(self._told) < TOLD_MOST:
            self._told[key] = now
            self.refused(deployment, actor, why)

    @property
    def has_tokens(self) -> bool:
        try:
            return bool(self.tokens.records())
        except PoascopeError:
            return True  # what is wrong with the file is told to whoever tries

    @staticmethod
    def text(name: str) -> str:
        return html.escape(name)

    def routes(self) -> list[Route]:
        return [
            Route(PATH, self._ask, methods=["GET"]),
            Route(PATH, self._sign_in, methods=["POST"]),
            Route(f"{PATH}/out", self._sign_out, methods=["POST"]),
        ]

    def form(self, deployment: str | None, name: str | None, said: str = "", back: str = "") -> str:
        """The form, or who is signed in and the way out."""
        said = f'<p class="po-note po-bad">{html.escape(said)}</p>' if said else ""
        if name:
            return (
                f'<form method="post" action="{PATH}/out" class="po-operator"><span class="po-note">Signed in as '
                f"<b>{html.escape(name)}</b></span><button>sign out</button></form>"
            )
        fields = "".join(
            f'<input type="hidden" name="{key}" value="{html.escape(value)}">'
            for key, value in (("deployment", deployment or ""), ("back", back))
        )
        return (
            f'{said}<form method="post" action="{PATH}" class="po-operator"><label>Operator token'
            f'<input name="token" type="password" autocomplete="current-password" placeholder="name:secret" required></label>{fields}'
            '<button>Sign in</button><span class="po-note">from: poascope operator add NAME</span></form>'
        )

    async def unwritable(self, request: Request, error: Exception) -> Response:
        """The answer to a method that a route does not have."""
        asked = f"{request.method} {request.url.path[:100]}"
        address = request.client.host if request.client else "unknown"
        await asyncio.to_thread(self.refused_once, None, "viewer", f"dashboard: {asked} - there is nothing to write, from {address}")
        return JSONResponse({"error": f"{asked} - only GET; overrides are sent by operators on the page"}, 405)

    async def _ask(self, request: Request) -> Response:
        return self._page(request, None, "", 200)

    async def _sign_in(self, request: Request) -> Response:
        if not _own(request):
            log.warning("refused: sign-in sent by another site, %s", request.headers.get("origin", "")[:200])
            return HTMLResponse("poascope: asked for by another site\n", 403)
        token, deployment, back = await _fields(request, "token", "deployment", "back")
        address = request.client.host if request.client else "unknown"
        async with self._one:
            if wait_s := self.throttle.wait_s(address, self.clock()):
                self._turned_away += 1
                log.warning("refused: sign-in from %s: locked out for another %.0f s", address, wait_s)
                return self._page(request, deployment, f"Too many wrong tokens. Try again in {wait_s:.0f} s.", 429, back)
            try:
                name = await asyncio.to_thread(self.tokens.verify, token)
                record = self.tokens.records().get(name) if name else None
            except PoascopeError as error:
                return self._page(request, deployment, str(error), 500, back)
            if name is None or record is None:
                self.throttle.failed(address, self.clock())
                more = f", after {self._turned_away} more during the lock-out" if self._turned_away else ""
                self._turned_away = 0
        if name is None or record is None:
            await asyncio.to_thread(self.refused, deployment, "viewer", f"sign-in: wrong operator token, from {address}{more}")
            return self._page(request, deployment, "This is no operator's token.", 401, back)
        self.throttle.succeeded(address)
        now = self.clock()
        self._tickets = {key: ticket for key, ticket in self._tickets.items() if ticket.until > now}
        ticket = secrets.token_urlsafe(32)
        self._tickets[_digest(ticket)] = _Ticket(name, record, now + SIGNED_IN_S)
        log.info("operator: %s signed in from %s", name, address)
        answer = RedirectResponse(_back(request, back), 303)
        secure = request.url.scheme == "https"
        answer.set_cookie(self.cookie, ticket, max_age=int(SIGNED_IN_S), httponly=True, samesite="strict", secure=secure)
        return answer

    async def _sign_out(self, request: Request) -> Response:
        if not _own(request):
            return HTMLResponse("poascope: asked for by another site\n", 403)
        held = self._tickets.pop(_digest(request.cookies.get(self.cookie, "")), None)
        if held:
            log.info("operator: %s signed out", held.name)
        answer = RedirectResponse(_back(request, ""), 303)
        answer.delete_cookie(self.cookie, httponly=True, samesite="strict")
        return answer

    def _page(self, request: Request, deployment: str | None, said: str, status: int, back: str = "") -> Response:
        name = self.operator(request.cookies)
        body = self.form(deployment, name, said, back or _back(request, ""))
        return HTMLResponse(PAGE.replace("{form}", body), status, headers={"Cache-Control": "no-store"})


async def _fields(request: Request, *names: str) -> list[str]:
    """Fields of a form, empty where it does not have them or is far larger than ours."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            return [""] * len(names)
    sent = parse_qs(body.decode(errors="replace"))
    return [sent.get(name, [""])[0] for name in names]


def _digest(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()


def _own(request: Request) -> bool:
    """Whether a browser sent this from one of our own pages; who is no browser names no origin."""
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def _back(request: Request, asked: str) -> str:
    """Where on this dashboard to go on: the page that the form was on, with its query."""
    came = urlsplit(asked or request.headers.get("referer", ""))
    here = came.path.startswith("/") and not came.path.startswith(("//", PATH)) and came.netloc in ("", request.headers.get("host", ""))
    return (came.path + (f"?{came.query}" if came.query else "")) if here and "\\" not in came.path else "/"
