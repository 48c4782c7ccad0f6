"""The read API: named queries over the collector's own store, and what the collector says of itself."""

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, TypeVar

import duckdb
import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from poascope.addresses import OwnHost, is_loopback
from poascope.errors import Misconfigured, PoascopeError
from queries import named
from queries.render import arrow_chunks, csv_chunks, json_chunks
from store import Store

log = logging.getLogger("poascope.collect")
_T = TypeVar("_T")

THREADS = 8
ANSWER_WITHIN_S = 30.0
SENT_WITHIN_S = 300.0
FORMS = {
    "arrow": ("application/vnd.apache.arrow.stream", arrow_chunks),
    "json": ("application/json", json_chunks),
    "csv": ("text/csv; charset=utf-8", csv_chunks),
}


def application(
    store: Store,
    readiness: Callable[[], Mapping[str, Any]],
    counters: Callable[[], Mapping[str, float]],
    token: str = "",
    refused: Callable[[str], None] = log.warning,
) -> Starlette:
    """Routes /query/{name}, /query, /healthz, /readyz, /metrics. `readiness`: the body of /readyz; `counters`: the samples of /metrics;
    `refused` is told of each attempt to write."""
    queries = Queries(store)
    registry = CollectorRegistry()
    registry.register(_Own(counters))

    def guarded(handle: Callable[[Request], Response | Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def check(request: Request) -> Response:
            given = request.headers.get("authorization", "")
            if token and not secrets.compare_digest(given.encode("latin-1"), f"Bearer {token}".encode()):
                return _error(401, "api_token: missing or wrong - send it as `Authorization: Bearer TOKEN`")
            answer = handle(request)
            return answer if isinstance(answer, Response) else await answer

        return check

    def readyz(request: Request) -> Response:
        body = readiness()
        return Response(msgspec.json.encode(body), 200 if body["ready"] else 503, media_type="application/json")

    def unwritable(request: Request, error: Exception) -> Response:
        asked = f"{request.method} {request.url.path[:100]}"
        refused(f"read API: {asked} - it only answers questions, from {request.client.host if request.client else 'unknown'}")
        return _error(405, f"{asked} - the read API only answers GET; overrides are sent by operators: the page, or `poascope intent set`")

    return Starlette(
        exception_handlers={405: unwritable},
        routes=[
            Route("/query/{name}", guarded(queries.answer)),
            Route("/query", guarded(lambda request: Response(msgspec.json.encode(_catalogue()), media_type="application/json"))),
            Route("/healthz", lambda request: JSONResponse({"status": "ok"})),
            Route("/readyz", guarded(readyz)),
            Route("/metrics", guarded(lambda request: Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST))),
        ],
        middleware=[] if token else [Middleware(OwnHost, remedy="set api_token and send it")],
    )


class Queries:
    """Runs queries on threads with a cursor each, streams their rows, and bounds how many, how long and how much at once."""

    def __init__(
        self, store: Store, threads: int = THREADS, answer_within_s: float = ANSWER_WITHIN_S, sent_within_s: float = SENT_WITHIN_S
    ):
        self._store, self._answer_within_s, self._sent_within_s = store, answer_within_s, sent_within_s
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="query")
        self._open = asyncio.Semaphore(threads)

    async def answer(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in named.catalogue():
            return _error(404, f"query: {name} - no such query; known: {', '.join(named.catalogue())}")
        pairs = request.query_params.multi_items()
        given = dict(pairs)
        if len(given) < len(pairs):
            return _error(400, f"query {name}: a parameter is given twice")
        form = given.pop("format", None) or _accepted(request.headers.get("accept", ""))
        if form not in FORMS:
            return _error(400, f"format: {form} - must be one of {', '.join(FORMS)}")
        try:
            named.bind(named.catalogue()[name], given)
            await asyncio.wait_for(self._open.acquire(), self._answer_within_s)
        except Misconfigured as error:
            return _error(400, str(error))
        except TimeoutError:
            return _error(503, f"query {name}: {THREADS} queries are open already - try again")
        try:
            reading = _Reading(self._store.cursor(), self._pool, self._open.release)
        except duckdb.Error as error:
            self._open.release()
            return _error(503, f"query {name}: {str(error).splitlines()[0]}")
        try:
            return await self._start(name, given, form, reading)
        except TimeoutError:
            says = f"took longer than {self._answer_within_s:g} s - narrow `from` and `to`, or use a larger `step_s`"
        except duckdb.Error as error:
            says = str(error).splitlines()[0]
        except BaseException:
            await reading.close()
            raise
        await reading.close()
        return _error(503, f"query {name}: {says}")

    async def _start(self, name: str, given: Mapping[str, str], form: str, reading: "_Reading") -> Response:
        media_type, chunks = FORMS[form]

        def begin() -> tuple[Iterator[bytes], bytes]:
            rows = named.read(reading.cursor, name, given)
            # The first batch comes after the sort: with it in hand, what can fail has failed before the status line is sent.
            pieces = chunks(rows.schema, chain([batch for batch in [next(rows, None)] if batch is not None], rows))
            return pieces, next(pieces)

        pieces, first = await asyncio.wait_for(reading.on_thread(begin), self._answer_within_s)

        async def body() -> AsyncIterator[bytes]:
            piece: bytes | None = first
            while piece is not None:
                yield piece
                piece = await reading.on_thread(lambda: next(pieces, None))

        return _Rows(body(), media_type, self._sent_within_s, reading.close)


class _Reading:
    """A cursor, and the thread that may be in it. DuckDB refuses to close a cursor that is being read, so closing waits for the thread."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, pool: ThreadPoolExecutor, release: Callable[[], None]) -> None:
        self.cursor, self._pool, self._release = cursor, pool, release
        self._step: asyncio.Future[Any] | None = None

    async def on_thread(self, step: Callable[[], _T]) -> _T:
        """What `step` returns. Who is cancelled meanwhile leaves the thread in the cursor; `close` knows."""
        running = asyncio.get_running_loop().run_in_executor(self._pool, step)
        self._step = running
        return await asyncio.shield(running)

    async def close(self) -> None:
        """Stop what runs, and give cursor and place to the next query, also when the caller is cancelled meanwhile."""
        await asyncio.shield(asyncio.ensure_future(self._closed()))

    async def _closed(self) -> None:
        try:
            if self._step and not self._step.done():
                self.cursor.interrupt()
                await asyncio.wait([self._step])
                self._step.exception()  # looked at, so that asyncio does not complain of it
            self.cursor.close()
        finally:
            self._release()


class _Rows(StreamingResponse):
    """A stream that gives its cursor back however it ends; a reader that stops reading is cut off."""

    def __init__(self, body: AsyncIterator[bytes], media_type: str, within_s: float, close: Callable[[], Awaitable[None]]) -> None:
        super().__init__(body, media_type=media_type)
        self._within_s, self._close = within_s, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._within_s):
                await super().__call__(scope, receive, send)
        finally:
            await self._close()


class _Own:
    """Samples of /metrics: a name that ends in _total is a counter, any other a gauge."""

    def __init__(self, counters: Callable[[], Mapping[str, float]]) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("poascope_up", "The collector runs.", value=1)
        for name, value in sorted(self._counters().items()):
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(f"poascope_{name}", name.replace("_", " "), value=value)


def listen(host: str, port: int, token: str) -> socket.socket:
    """A listening socket for the API. Raises Misconfigured off loopback without a token, PoascopeError when the port is taken."""
    if not token and not is_loopback(host):
        raise Misconfigured(f"api_host: {host} - not loopback, so anyone there could read; set api_token (POASCOPE_API_TOKEN) as well")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # Listening from now on: who connects before the server is up waits a moment, and a second collector finds the port taken.
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise PoascopeError(f"api_port: {host}:{port} - {error.strerror}; choose another with --api-port") from error
    return listener


def _accepted(accept: str) -> str:
    return "json" if "application/json" in accept else "csv" if "text/csv" in accept else "arrow"


def _error(status: int, says: str) -> Response:
    return JSONResponse({"error": says}, status)


def _catalogue() -> Mapping[str, Any]:
    return {name: {"purpose": query.purpose, "parameters": query.parameters} for name, query in named.catalogue().items()}
