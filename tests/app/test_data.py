import asyncio
import json
from typing import Any

import pytest

from app.control import Control
from app.data import Collector, Feed
from poascope.errors import PoascopeError, Unreachable
from poascope.settings import Settings
from tests.app.conftest import Api
from tests.conftest import free_port

NOW = 1_767_268_800.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def feed(port: int, clock: Clock) -> Feed:
    settings = Settings()
    return Feed(Collector(f"http://127.0.0.1:{port}"), Control(settings), settings, clock)


async def ask(feed: Feed, after: int | None = None, range_s: int = 300, **more: Any) -> dict[str, Any]:
    return json.loads(await feed.answer("dynamo", range_s, "light", after, **more))  # type: ignore[no-any-return]


def series(body: dict[str, Any], panel: str, uid: str) -> dict[int, float | None]:
    points = body["points"][panel][uid]
    return dict(zip(body["xs"][points["x"]], points["y"], strict=True))


async def test_only_new_points_travel(api: Api) -> None:
    """After a whole answer, the next brings the rows from its cursor on, and no figures."""
    clock = Clock()
    for i in range(100):
        api.signal(NOW - 100 + i, ttft_p99_s=0.001 * i)
    dash = feed(api.port, clock)
    await dash.tick()
    first = await ask(dash)
    assert len(series(first, "ttft", "ttft_p99")) == 100
    assert set(first["figures"]) == {"poa", "ttft", "lost", "itl", "kv", "workers", "throughput"}
    clock.now += 1
    api.signal(NOW, ttft_p99_s=0.5)
    await dash.tick()
    second = await ask(dash, first["cursor"])
    assert "figures" not in second
    assert series(second, "ttft", "ttft_p99") == {int(NOW - 1) * 1000: 0.099, int(NOW) * 1000: 0.5}
    assert (second["from"], second["cursor"]) == (first["cursor"], int(NOW) * 1000)
    await dash.collector.client.aclose()


async def test_a_second_is_read_once_for_all_viewers(api: Api) -> None:
    """Fifty viewers cost the collector what one does."""
    clock = Clock()
    api.signal(NOW - 1)
    dash = feed(api.port, clock)
    await dash.tick()
    await ask(dash)
    before = len(api.asked)
    await dash.tick()
    bodies = await asyncio.gather(*[ask(dash, int(NOW - 1) * 1000) for _ in range(50)])
    assert len({json.dumps(b["points"]) for b in bodies}) == 1
    assert len(api.asked) - before <= 6
    await dash.collector.client.aclose()


async def test_long_ranges_come_binned(api: Api) -> None:
    """A day is drawn in bins of two minutes, and the growing bin is sent again."""
    clock = Clock()
    for i in range(0, 3600, 10):
        api.signal(NOW - 3600 + i, ttft_p99_s=0.1)
    dash = feed(api.port, clock)
    await dash.tick()
    day = await ask(dash, range_s=86400)
    assert len(series(day, "ttft", "ttft_p99")) == 30
    clock.now += 1
    api.signal(NOW - 1, ttft_p99_s=9.0)
    await dash.tick()
    again = await ask(dash, day["cursor"], range_s=86400)
    assert series(again, "ttft", "ttft_p99") == {day["cursor"]: 9.0}
    await dash.collector.client.aclose()


async def test_a_tab_that_slept_gets_what_its_range_shows(api: Api) -> None:
    """A cursor from long ago asks for no more than a new viewer does."""
    clock = Clock()
    for i in range(900):
        api.signal(NOW - 900 + i, ttft_p99_s=0.1)
    dash = feed(api.port, clock)
    await dash.tick()
    woken = await ask(dash, int(NOW - 900) * 1000)
    assert "figures" not in woken and len(series(woken, "ttft", "ttft_p99")) == 300
    await dash.collector.client.aclose()


async def test_a_viewer_who_leaves_takes_no_answer_along(api: Api) -> None:
    """Two wait for the same answer and one goes away: the other still gets it."""
    api.signal(NOW - 1)
    dash = feed(api.port, Clock())
    await dash.tick()
    await ask(dash)
    await dash.tick()
    first, second = (asyncio.create_task(ask(dash, int(NOW - 1) * 1000)) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    assert (await second)["source"]["state"] == "ok"
    await dash.collector.client.aclose()


async def test_a_dead_collector_is_said_and_the_page_recovers(api: Api) -> None:
    """While the collector is away the last numbers stay with their time; afterwards data come again."""
    clock = Clock()
    api.signal(NOW - 1)
    dash = feed(api.port, clock)
    await dash.tick()
    await ask(dash)
    api.stop()
    clock.now += 2
    await dash.tick()
    away = await ask(dash, int(NOW - 1) * 1000)
    assert (away["source"]["state"], away["down_since"]) == ("down", NOW + 2)
    assert away["tiles"][1]["as_of"] == NOW - 1
    api.start()
    await dash.tick()
    assert (await ask(dash, int(NOW - 1) * 1000))["source"]["state"] == "ok"
    await dash.collector.client.aclose()


async def test_an_empty_collector_lists_what_is_missing(api: Api) -> None:
    """Before the first deployment the sources and their advice are what there is to see."""
    api.sources[:] = [{"name": "events", "state": "absent", "age_s": None, "detail": "start frontends with --router-replica-sync"}]
    dash = feed(api.port, Clock())
    await dash.tick()
    body = await ask(dash)
    assert (body["source"]["state"], body["deployment"]) == ("empty", None)
    assert body["sources"][0]["detail"] == "start frontends with --router-replica-sync"
    await dash.collector.client.aclose()


async def test_old_rows_are_stale_and_not_an_answer(api: Api) -> None:
    """A pulse that stopped a minute ago leaves the question open."""
    clock = Clock()
    api.signal(NOW - 60, regime="saturated")
    dash = feed(api.port, clock)
    await dash.tick()
    assert (await ask(dash))["verdict"]["level"] == "unknown"
    await dash.collector.client.aclose()


async def test_worker_ids_come_as_text(api: Api) -> None:
    """u64 beyond 2^63 arrive digit for digit."""
    api.signal(NOW - 1)
    for worker in (16882743587675780000, 16882743587675780001):
        api.worker(NOW - 1, worker)
    dash = feed(api.port, Clock())
    frame = await dash.collector.frame("worker_inflight", step_s=1)
    assert sorted(frame["worker_id"]) == ["16882743587675780000", "16882743587675780001"]
    await dash.tick()
    assert sorted((await ask(dash))["points"]["workers"]) == ["backend/16882743587675780000/0", "backend/16882743587675780001/0"]
    await dash.collector.client.aclose()


async def test_the_observed_is_as_old_as_the_last_request(api: Api) -> None:
    """Rows go on while nothing arrives, or nothing is heard: the time beside the observed parameters is the last request's."""
    for i in range(40):
        api.signal(NOW - 40 + i, arrivals_per_s=1.0 if i < 20 else None if i > 30 else 0.0)
    dash = feed(api.port, Clock())
    await dash.tick()
    link = (await ask(dash))["chain"]["links"][-1]
    assert (link["by"], link["at"]) == ("as of the last request", NOW - 21 - 9)
    await dash.collector.client.aclose()


async def test_a_collector_that_started_anew_has_seen_no_requests(api: Api) -> None:
    """After a restart without traffic the page says just that, while NATS is there."""
    api.sources[:] = [
        {"name": "nats", "state": "ok", "age_s": 0.1, "detail": ""},
        {"name": "events", "state": "absent", "age_s": None, "detail": "no routing events are heard"},
    ]
    api.signal(NOW - 60)
    dash = feed(api.port, Clock())
    await dash.tick()
    assert (await ask(dash))["verdict"]["answer"] == "No requests seen since the collector started."
    api.sources[0]["state"] = "down"
    await dash.tick()
    assert (await ask(dash))["verdict"]["answer"] == "Cannot tell."
    await dash.collector.client.aclose()


async def test_paused_viewers_get_the_chain_without_points(api: Api) -> None:
    """A paused page still follows the override."""
    api.signal(NOW - 1)
    dash = feed(api.port, Clock())
    await dash.tick()
    body = await ask(dash, points=False)
    assert "points" not in body
    assert [link["name"] for link in body["chain"]["links"]][-1] == "Observed"
    await dash.collector.client.aclose()


async def test_what_one_viewer_asks_takes_nobody_elses_page(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that the collector refuses to one viewer leaves the others' page as it is; its reason is read as a sentence."""
    api.signal(NOW - 1)
    dash = feed(api.port, Clock())
    await dash.tick()
    with pytest.raises(PoascopeError, match=r"answered 400: .*no such parameter") as refused:
        await dash.collector.frame("signals", nonsense=1)
    assert "{" not in str(refused.value)
    frame = dash.collector.frame

    async def refusing(name: str, **params: Any) -> Any:
        return await frame(name, **params, **({"nonsense": 1} if name == "decisions" else {}))

    monkeypatch.setattr(dash.collector, "frame", refusing)
    assert "points" not in await ask(dash, 0)
    assert dash.down_since is None
    await dash.collector.client.aclose()


async def test_errors_name_the_collector(api: Api) -> None:
    """Unreachable and refused are told apart."""
    away = Collector(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unreachable, match="does not answer"):
        await away.ready()
    here = Collector(f"http://127.0.0.1:{api.port}")
    with pytest.raises(PoascopeError, match="404"):
        await here.frame("nonsense")
    await away.client.aclose()
    await here.client.aclose()


async def test_a_collector_that_refuses_is_not_said_to_be_silent(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is an error is told as one, with its own words."""
    dash = feed(api.port, Clock())

    async def refused(*_: object, **__: object) -> None:
        raise PoascopeError("collector: deployments - answered 503: 8 queries are open already")

    monkeypatch.setattr(dash.collector, "frame", refused)
    await dash.tick()
    source = (await ask(dash))["source"]
    assert source["state"] == "down" and "answers with an error" in source["title"] and "8 queries" in source["todo"]
    await dash.collector.client.aclose()
