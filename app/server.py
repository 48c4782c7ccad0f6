"""The dashboard's process: Streamlit's app and our own routes beside it, on one origin, under uvicorn.

`/live` and `/log` answer what the components poll; `/assets/` serves plotly.js as the plotly package ships it. st.App has limits: one
app a process, no routes under Streamlit's own (`/_stcore`, `/media`, `/component`, `/static`), and options are set before it is made.
"""

import asyncio
import contextlib
import gc
import gzip
import hmac
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

import plotly
import streamlit as st
import uvicorn
from starlette.middleware import Middleware
from starlette.requests import Request, cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from streamlit import config
from streamlit.runtime.pages_manager import PagesManager

from app import here, oidc, payload, theme
from app.control import Control
from app.data import Collector, Feed
from app.desk import Desk
from app.file import File, NoControl
from app.panels import PAGES
from app.past import LONGEST_S, Past
from poascope import ending
from poascope.addresses import OwnHost, is_loopback
from poascope.errors import Misconfigured, PoascopeError
from poascope.settings import Settings

COOKIE = "poascope_dash"
HEALTH = "/_stcore/health"  # says ok and nothing else, to whoever keeps the process running and has no token
BUNDLE = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
MAX_AFTER_MS = 10**13  # the year 2286
FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Guard:
    """Lets nobody in without the token: once as `?token=`, then as a cookie, or as a bearer. HTTP and WebSocket alike, save HEALTH."""

    app: ASGIApp
    token: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        query = parse_qs(scope["query_string"].decode("latin-1"))
        asked = query.get("token", [""])[0]
        # Starlette's parser: the standard one gives up at a cookie it does not like, and any server of this host may have set that.
        held = cookie_parser(headers.get("cookie", "")).get(COOKIE) or headers.get("authorization", "").removeprefix("Bearer ")
        if self._is(held) or scope["path"] == HEALTH:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 4401})
        elif self._is(asked):
            answer: Response = RedirectResponse(scope["path"], status_code=303)
            # Lax, not strict: who comes back from logging in elsewhere is let in. Another site cannot make a browser send more than that.
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="lax", secure=scope["scheme"] in ("https", "wss"))
            await answer(scope, receive, send)
        else:
            answer = PlainTextResponse(
                "poascope: this dashboard needs its token - open it once with ?token=<dash_token>\n", status_code=401
            )
            await answer(scope, receive, send)

    def _is(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


def plotly_path() -> str:
    return f"/assets/plotly-{plotly.__version__}.min.js"


def routes(feed: Feed, past: Past) -> list[Route]:
    """`/live`, `/log`, `/past/moment`, `/past/span`, and the plotly.js bundle, compressed once."""
    packed = gzip.compress(BUNDLE.read_bytes(), 9)

    async def live(request: Request) -> Response:
        asked = request.query_params
        try:
            range_s, after = int(asked.get("range", "300")), int(asked["after"]) if asked.get("after") else None
        except ValueError:
            return JSONResponse({"error": "range and after: whole numbers"}, status_code=400)
        if after is not None and not 0 <= after < MAX_AFTER_MS:
            return JSONResponse({"error": "after: the cursor of an answer, in Unix milliseconds"}, status_code=400)
        look = asked.get("theme", "light")
        page = PAGES.get(asked.get("page", "live"))
        if page is None or range_s not in payload.RANGES or look not in theme.THEMES:
            ranges, pages = ", ".join(map(str, payload.RANGES)), ", ".join(PAGES)
            return JSONResponse({"error": f"page: one of {pages}; range: one of {ranges}; theme: light or dark"}, status_code=400)
        body = await feed.answer(asked.get("deployment"), range_s, look, after, points=asked.get("points") != "0", page=page)
        return Response(body, media_type="application/json", headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})

    async def then(request: Request) -> Response:
        asked, what = request.query_params, request.url.path.rpartition("/")[2]
        try:
            page, deployment = PAGES[asked["page"]], asked["deployment"]
            moments = [float(asked[name]) for name in (("at",) if what == "moment" else ("start", "end"))]
            if not all(0 <= moment < MAX_AFTER_MS / 1e3 for moment in moments) or asked.get("theme", "light") not in theme.THEMES:
                raise ValueError
        except (KeyError, ValueError):
            return JSONResponse({"error": "page, deployment, and at, or start, end and theme: missing or not so"}, status_code=400)
        if what == "moment":
            body = await past.moment(page, deployment, moments[0])
        elif not 0 < moments[1] - moments[0] <= LONGEST_S:
            return JSONResponse({"error": "start and end: at least a moment and at most a year apart"}, status_code=400)
        else:
            body = await past.span(page, deployment, moments[0], moments[1], asked.get("theme", "light"), asked.get("anew") == "1")
        return Response(body, media_type="application/json", headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})

    async def log(request: Request) -> Response:
        asked = request.query_params
        deployment = feed.choose(asked.get("deployment"))
        try:
            since_s = float(asked["since"]) if asked.get("since") else None
        except ValueError:
            since_s = -1.0
        if deployment is None or (since_s is not None and not 0 < since_s < 1e10):
            return JSONResponse({"error": "deployment: none heard yet; since: seconds back from now"}, status_code=400)
        body = await feed.log(deployment, since_s)
        return Response(body, media_type="application/json", headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})

    async def bundle(request: Request) -> Response:
        headers = {"Cache-Control": FOREVER, "Content-Encoding": "gzip", "Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff"}
        return Response(packed, media_type="text/javascript", headers=headers)

    return [Route("/live", live), Route("/log", log), Route("/past/moment", then), Route("/past/span", then), Route(plotly_path(), bundle)]


def build(settings: Settings, file: File | None = None) -> st.App:
    """The ASGI app, over the collector or over a closed file. Raises Misconfigured when others could reach it without a token."""
    if not is_loopback(settings.dash_host) and not settings.dash_token:
        raise Misconfigured(f"dash_host: {settings.dash_host} - not loopback, so dash_token must be set")
    if settings.oidc_url and not settings.dash_url and not is_loopback(settings.dash_host):
        raise Misconfigured("dash_url: empty - the provider of oidc_url must know the address at which browsers open the dashboard")
    # What st.navigation sets at its first call: before it, a deep link would find Streamlit's own pages, by the name of our folder.
    PagesManager.uses_pages_directory = False
    for option, value in theme.streamlit_options().items():
        config.set_option(option, value)
    host = f"[{settings.api_host}]" if ":" in settings.api_host else settings.api_host
    reached = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    control: Control | NoControl = NoControl() if file else Control(settings)
    source = file or Collector(f"http://{reached}:{settings.api_port}", settings.api_token)
    feed = Feed(source, control, settings, file.clock if file else time.time)
    past = Past(feed.collector, feed.objectives, settings)
    desk = Desk(settings, feed.choose)
    here.use(here.Here(settings, feed, control, plotly_path(), desk, file.said if file else ""))

    @contextlib.asynccontextmanager
    async def lifespan(_: st.App) -> AsyncIterator[None]:
        import app.pages.watch  # noqa: F401 - loaded before the freeze, so that no viewer pays for it

        # Streamlit runs a full collection after every script run: without this it walks every module's objects each time (70 ms).
        gc.collect()
        gc.freeze()
        tasks = [asyncio.create_task(feed.run()), asyncio.create_task(control.run(feed.watched))]
        try:
            yield None
        finally:
            await ending.end(tasks)
            await feed.collector.client.aclose()

    token = settings.dash_token
    guard = Middleware(Guard, token=token) if token else Middleware(OwnHost, remedy="set dash_token and open it with ?token=")
    paths = [*routes(feed, past), *desk.routes()]
    script = Path(__file__).parent / "main.py"
    handlers, auth = {405: desk.unwritable}, oidc.section(settings)
    return st.App(script, routes=paths, middleware=[guard], lifespan=lifespan, secrets=auth, exception_handlers=handlers)


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._listening()


def serve(settings: Settings, listening: Callable[[], None], file: File | None = None) -> None:
    """Run until told to stop; `listening` is called once it can be opened. Raises PoascopeError when the port is taken."""
    logging.getLogger("httpx").setLevel(logging.WARNING)
    ours, told = logging.getLogger("poascope"), logging.StreamHandler()
    told.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    ours.addHandler(told)
    ours.setLevel(logging.INFO)
    ours.propagate = False
    server = _Server(
        uvicorn.Config(
            build(settings, file),
            host=settings.dash_host,
            port=settings.dash_port,
            log_level="warning",
            timeout_graceful_shutdown=2,
            ws_ping_interval=20,
        ),
        listening,
    )
    try:
        server.run()
    except SystemExit as stopped:
        raise PoascopeError(
            f"dash: {settings.dash_host}:{settings.dash_port} - cannot be bound, is another dashboard running?"
        ) from stopped
