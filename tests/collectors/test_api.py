import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pyarrow as pa
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from collectors.api import Queries, application, listen
from poascope.errors import Misconfigured, PoascopeError
from queries import named
from store import Store

BIG = [16882743587675780000, 16882743587675780001, 2**64 - 1]
READY: dict[str, Any] = {"ready": True, "now": 1.0, "sources": [], "counters": {}}


@pytest.fixture
def store() -> AsyncIterator[Store]:
    with Store.open(":memory:") as store:
        n = len(BIG)
        store.append(
            "workers",
            pa.table(
                {
                    "ts": pa.array([i * 1_000_000 for i in range(n)], pa.timestamp("us")),
                    "deployment": ["d"] * n,
                    "component": ["backend"] * n,
                    "source": ["events"] * n,
                    "worker_id": pa.array(BIG, pa.uint64()),
                }
            ),
        )
        yield store


def client(app: Starlette, **given: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", **given)


async def test_rows_come_as_arrow_json_or_csv(store: Store) -> None:
    """Arrow by default and exactly the query's table; JSON by Accept or format; csv on request; u64 in full in each."""
    async with client(application(store, lambda: READY, dict)) as http:
        arrow = await http.get("/query/workers")
        with store.cursor() as cursor:
            assert pa.ipc.open_stream(arrow.content).read_all().equals(named.workers(cursor))
        by_accept = await http.get("/query/workers", headers={"accept": "application/json"})
        by_format = await http.get("/query/workers?format=json")
        assert by_accept.content == by_format.content
        at = by_format.json()["columns"].index("worker_id")
        assert [row[at] for row in by_format.json()["rows"]] == [str(i) for i in BIG]
        lines = (await http.get("/query/workers?format=csv&from=1")).text.splitlines()
        assert lines[0].startswith("ts,deployment,")
        assert len(lines) == 3
        empty = await http.get("/query/signals")
        assert pa.ipc.open_stream(empty.content).read_all().num_rows == 0
        assert set((await http.get("/query")).json()) == set(named.catalogue())


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/query/nonsense", 404, "no such query"),
        ("/query/workers?form=csv", 400, "form - no such parameter"),
        ("/query/workers?from=noon", 400, "from: 'noon'"),
        ("/query/workers?from=1&from=2", 400, "given twice"),
        ("/query/workers?format=xml", 400, "arrow, json, csv"),
        ("/query/signals_binned", 400, "step_s - missing"),
        ("/query/..%2F0001_init", 404, None),
        ("/query/signals%3B%20DROP%20TABLE%20signals", 404, "no such query"),
    ],
)
async def test_what_cannot_be_answered_is_said(store: Store, path: str, status: int, says: str | None) -> None:
    """A wrong name or parameter is a 4xx that names it."""
    async with client(application(store, lambda: READY, dict)) as http:
        answer = await http.get(path)
        assert answer.status_code == status
        assert says is None or says in answer.json()["error"]


async def test_a_token_guards_all_but_liveness(store: Store) -> None:
    """With a token set, only /healthz answers without it."""
    async with client(application(store, lambda: READY, dict, token="sésame")) as http:
        for path in ("/query/workers", "/query", "/readyz", "/metrics"):
            assert (await http.get(path)).status_code == 401
            assert (await http.get(path, headers={"authorization": "Bearer wrong"})).status_code == 401
            assert (await http.get(path, headers={"authorization": "Bearer sésame".encode()})).status_code == 200
        assert (await http.get("/healthz")).status_code == 200


async def test_without_a_token_only_loopback_names_are_answered(store: Store) -> None:
    """A page whose name was pointed at this machine reads nothing; behind a token its name does not matter."""
    for token, status in (("", 403), ("t", 200)):
        async with client(application(store, lambda: READY, dict, token), headers={"authorization": "Bearer t"}) as http:
            assert (await http.get("/query", headers={"host": "evil.example"})).status_code == status


async def test_readiness_and_counters_are_what_the_collector_says(store: Store) -> None:
    """/readyz is 503 while not ready and carries its reasons; /metrics exposes each counter under the poascope_ prefix."""
    body = {**READY, "ready": False, "sources": [{"name": "nats", "state": "down", "age_s": None, "detail": "no answer"}]}
    async with client(application(store, lambda: body, lambda: {"messages_total": 7, "queue_rows": 3})) as http:
        answer = await http.get("/readyz")
        assert (answer.status_code, answer.json()["sources"][0]["detail"]) == (503, "no answer")
        text = (await http.get("/metrics")).text
        assert "poascope_messages_total 7.0" in text
        assert "# TYPE poascope_queue_rows gauge" in text


async def test_a_query_over_its_time_is_stopped_and_the_next_one_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runaway query is interrupted and answered 503; its thread and cursor serve the next."""
    slow = named.Query("slow", "", "SELECT count(*) AS n FROM range(100000) a, range(1000000) b WHERE a.range * b.range % 7 = 3", ())
    monkeypatch.setattr(named, "catalogue", lambda: {"slow": slow, "quick": named.Query("quick", "", "SELECT 1 AS n", ())})
    queries = Queries(store, threads=1, answer_within_s=0.2)
    async with client(Starlette(routes=[Route("/query/{name}", queries.answer)])) as http:
        answer = await http.get("/query/slow")
        assert (answer.status_code, "took longer" in answer.json()["error"]) == (503, True)
        assert (await http.get("/query/quick?format=json")).json()["rows"] == [[1]]


async def test_a_viewer_who_reads_slowly_is_cut_off(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that stops reading holds its cursor for a bounded time only; others are answered 503 meanwhile, then served."""
    many = named.Query("many", "", "SELECT range AS n FROM range(200000)", ())
    monkeypatch.setattr(named, "catalogue", lambda: {"many": many})
    queries = Queries(store, threads=1, answer_within_s=0.1, sent_within_s=0.5)
    app = Starlette(routes=[Route("/query/{name}", queries.answer)])
    stuck = asyncio.Event()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            stuck.set()
            await asyncio.sleep(60)

    async def receive() -> Any:
        await asyncio.sleep(60)

    scope = {"type": "http", "method": "GET", "path": "/query/many", "query_string": b"", "headers": [], "root_path": ""}
    reading = asyncio.create_task(app(scope, receive, send))  # type: ignore[arg-type]
    await stuck.wait()
    async with client(app) as http:
        assert (await http.get("/query/many")).status_code == 503
        with pytest.raises(TimeoutError):
            await reading
        assert json.loads((await http.get("/query/many?format=json")).content)["rows"][-1] == [199999]


async def test_a_viewer_who_leaves_gives_its_place_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever goes away while a thread is in the middle of the rows stops that thread, and the next query is answered."""
    endless = "SELECT range AS n FROM range(1000000000000) WHERE range < 50000 OR hash(range) % 1000000 = 7"
    catalogue = {"endless": named.Query("endless", "", endless, ()), "quick": named.Query("quick", "", "SELECT 1 AS n", ())}
    monkeypatch.setattr(named, "catalogue", lambda: catalogue)
    queries = Queries(store, threads=1, answer_within_s=20)
    app = Starlette(routes=[Route("/query/{name}", queries.answer)])
    pieces = 0
    left = asyncio.Event()

    async def send(message: Any) -> None:
        nonlocal pieces
        pieces += message["type"] == "http.response.body"
        if pieces == 2:
            asyncio.get_running_loop().call_later(0.3, left.set)

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/query/endless", "query_string": b"", "headers": [], "root_path": ""}
    await asyncio.wait_for(app(scope, receive, send), 20)  # type: ignore[arg-type]
    assert pieces >= 2
    async with client(app) as http:
        assert (await http.get("/query/quick?format=json")).json()["rows"] == [[1]]


def test_off_loopback_needs_a_token() -> None:
    """An address that others reach is refused without a token; a taken port is named."""
    with pytest.raises(Misconfigured, match="api_token"):
        listen("0.0.0.0", 0, "")
    listen("0.0.0.0", 0, "secret").close()
    with listen("127.0.0.1", 0, "") as first, pytest.raises(PoascopeError, match=str(first.getsockname()[1])):
        listen("127.0.0.1", first.getsockname()[1], "")
