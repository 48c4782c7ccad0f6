"""What the actuators really change: told from what Dynamo's routers chose, under load, on real clusters."""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest
from nats.aio.msg import Msg
from scipy.stats import fisher_exact

from app.chain import chain
from collectors.core import Core
from collectors.wire import Added, Freed, Message, Routed, decode
from controller.bus import Bus, connect
from controller.protocol import Target
from poascope.settings import Settings
from testbed.cluster import Cluster
from testbed.keeper import Spec
from testbed.model import WORDS
from testbed.ports import free_base
from tests.controller.conftest import intent, until
from tests.e2e.conftest import Line

pytestmark = pytest.mark.real
USERS = 8
FALSE_POSITIVE = 1e-6


def prompt(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=56))


def tells_apart(one: Sequence[bool], other: Sequence[bool]) -> float:
    """How likely these two shares differ this much, or more, if nothing was changed between them."""
    table = [[sum(one), len(one) - sum(one)], [sum(other), len(other) - sum(other)]]
    return float(fisher_exact(table).pvalue)


class Watcher:
    """What the routers published: each request's parameters (where its router says them), its workers, and what was in flight."""

    def __init__(self) -> None:
        self.core = Core(Settings())
        self.routed: list[Routed] = []
        self.chosen: defaultdict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        self.router: dict[str, int] = {}
        self.emptier: dict[str, bool] = {}
        self._inflight: Counter[tuple[str, tuple[int, int]]] = Counter()
        self._known: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)

    def note(self, message: Msg) -> None:
        now = time.time()
        self.core.advance(now)
        self.core.feed_nats(now, message.subject, message.data)
        said = decode(message.subject, message.data)
        for event in said.events if isinstance(said, Message) else ():
            if isinstance(event, Routed):
                self.routed.append(event)
            elif isinstance(event, Added) and isinstance(said, Message) and said.component:
                self._chose(said.component, event)
            elif isinstance(event, Freed) and isinstance(said, Message) and said.component:
                self._inflight[said.component, event.worker] -= 1

    def _chose(self, component: str, event: Added) -> None:
        """On the decode leg also whether the worker had strictly fewer requests than any other; even ones tell nothing."""
        self._known[component].add(event.worker)
        counts = {worker: self._inflight[component, worker] for worker in self._known[component]}
        if component == "backend" and len(counts) > 1 and len(set(counts.values())) > 1:
            self.emptier[event.request_id] = counts[event.worker] == min(counts.values())
        self._inflight[component, event.worker] += 1
        self.chosen[event.request_id][component] = event.worker
        self.router[event.request_id] = event.router_id


class Clients:
    """Eight users without a pause; `ask` makes the prompt of each request. Every answer must come, and whole."""

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model, self.rng = url, model, random.Random(7)
        self.ask: Callable[[], str] = lambda: prompt(self.rng)
        self.whole: dict[str, str] = {}  # request id to prompt
        self.faults: list[str] = []

    async def send(self, http: httpx.AsyncClient, text: str, tokens: int = 16) -> str:
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "stream": True}
        async with http.stream("POST", f"{self.url}/v1/chat/completions", json=body | {"ignore_eos": True}) as response:
            answer = (await response.aread()).decode()
        if response.status_code != 200 or "data: [DONE]" not in answer:
            self.faults.append(f"{response.status_code} {answer[-200:]}")
            return ""
        request_id = answer.partition('"id":"chatcmpl-')[2].partition('"')[0]
        self.whole[request_id] = text
        return request_id

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[httpx.AsyncClient]:
        over = False

        async def user() -> None:
            while not over:
                await self.send(http, self.ask())

        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as http, asyncio.TaskGroup() as tasks:
            for _ in range(USERS):
                tasks.create_task(user())
            yield http
            over = True

    async def more(self, count: int) -> list[str]:
        """Ids of that many requests that are sent, and answered, from now on. The first few were on their way before."""
        start = len(self.whole) + USERS
        async with asyncio.timeout(90):
            while len(self.whole) < start + count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return list(self.whole)[start:]


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two prefill and two decode workers behind two router actuators."""
    spec = Spec(port_base=free_base(), topology="2P/2D", actuator="router")
    cluster = Cluster.up(tmp_path_factory.mktemp("routed"), spec, leashed=True)
    yield cluster
    cluster.down()


@asynccontextmanager
async def watching(nats_url: str) -> AsyncIterator[tuple[Bus, Watcher]]:
    async with connect(nats_url, patient=True) as bus:
        watcher = Watcher()
        for subject in ("namespace.>", "poascope.>"):
            await bus.hear(subject, watcher.note)
        yield bus, watcher


async def steer(bus: Bus, tau: float, omega: float) -> None:
    """Write a target, and wait until every router has acknowledged it."""
    stored = await bus.target("dynamo")
    target = Target(tau=tau, omega=omega, regime="below", mode="manual", why="a test", decided_at=time.time(), lease_s=3600)
    revision = await bus.put_target("dynamo", target, stored.revision)

    async def acknowledged() -> bool:
        acks = (await bus.state("dynamo")).acks
        found = {replica: ack.value and (ack.value.target_revision, ack.value.tau, ack.value.omega) for replica, ack in acks.items()}
        return found == dict.fromkeys(("router-1", "router-2"), (revision, tau, omega))

    await until(acknowledged, 30)


async def test_routers_take_tau_and_omega_for_each_request(routed: Cluster) -> None:
    """τ 0 is told from τ 5 by who got the next request, ω 2 from ω 0 by who got a prompt that one worker holds; nothing fails.

    Each request went by one pair of parameters, the acknowledged ones, on both legs; the collector learns it from what routers said.
    """
    state = routed.state
    clients = Clients(state.gateway_url, state.model)
    async with watching(state.nats_url) as (bus, watcher):
        await bus.intent("dynamo")  # makes the bucket
        ids: dict[tuple[float, float], list[str]] = {}
        homes: dict[tuple[float, float], dict[str, tuple[int, int]]] = {}
        await steer(bus, 0, 2)
        async with clients.busy() as http:
            for tau in (0.0, 5.0):
                await steer(bus, tau, 1)
                ids[tau, 1] = await clients.more(90)
            for omega in (2.0, 0.0):
                await steer(bus, 0, omega)
                templates = [prompt(clients.rng) for _ in range(12)]
                first = {text: await clients.send(http, text, 1) for text in templates}
                homes[0, omega] = {text: watcher.chosen[request]["prefill"] for text, request in first.items()}
                clients.ask = lambda templates=templates: clients.rng.choice(templates)  # type: ignore[misc]
                ids[0, omega] = await clients.more(70)
        await until(lambda: _true(set(clients.whole) <= {event.request_id for event in watcher.routed} & set(watcher.chosen)), 30)

    assert clients.faults == []
    emptier = {tau: [watcher.emptier[i] for i in ids[tau, 1] if i in watcher.emptier] for tau in (0.0, 5.0)}
    at_home = {
        omega: [
            watcher.chosen[i]["prefill"] == homes[0, omega][clients.whole[i]] for i in ids[0, omega] if clients.whole[i] in homes[0, omega]
        ]
        for omega in (2.0, 0.0)
    }
    assert tells_apart(emptier[0.0], emptier[5.0]) < FALSE_POSITIVE, emptier
    assert tells_apart(at_home[2.0], at_home[0.0]) < FALSE_POSITIVE, at_home
    said = {event.request_id: (event.tau, event.omega) for event in watcher.routed}
    for pair, requests in ids.items():
        assert {said[i] for i in requests} == {pair}

    watcher.core.finish()
    rows = {row["request_id"]: row for row in watcher.core.take()["requests"].to_pylist()}
    heard = [i for i in clients.whole if i in rows]
    assert len(heard) >= len(clients.whole) - 8  # the last words of the last streams may still be on their way
    for i in heard:
        row = rows[i]
        assert row["outcome"] == "finished"
        assert (row["tau"], row["omega"]) == said[i]
        chosen = watcher.chosen[i]
        assert (row["prefill_worker"], row["decode_worker"]) == (chosen["prefill"][0], chosen["backend"][0])


async def _true(answer: bool) -> bool:
    return answer


async def test_a_router_that_was_killed_comes_back_under_the_target_in_force(routed: Cluster) -> None:
    """kill -9 of one of two: the other takes the next target and what is asked; the dead one's word is told apart until it is back."""
    state = routed.state
    async with watching(state.nats_url) as (bus, _), httpx.AsyncClient(timeout=60, trust_env=False) as http:
        await bus.intent("dynamo")
        await steer(bus, 0.7, 1)
        await asyncio.to_thread(routed.kill, "router-1")
        stored = await bus.target("dynamo")
        changed = Target(tau=0.8, omega=0.1, regime="below", mode="manual", why="a test", decided_at=time.time(), lease_s=3600)
        revision = await bus.put_target("dynamo", changed, stored.revision)

        async def there(*replicas: str) -> bool:
            acks = [(await bus.ack("dynamo", replica)).value for replica in replicas]
            return all(ack and (ack.target_revision, ack.tau, ack.error) == (revision, 0.8, None) for ack in acks)

        await until(lambda: there("router-2"), 30)
        shown = [link for link in chain(await bus.state("dynamo"), None, time.time()).links if link.name == "Acknowledged"]
        assert {link.by.split(",")[0]: (link.good, "not yet the newest" in link.by) for link in shown} == {
            "router-1": (False, True),
            "router-2": (True, False),
        }
        await asyncio.to_thread(routed.start, "router-1")
        await until(lambda: there("router-1", "router-2"), 30)
        clients = Clients(state.gateway_url, state.model)
        for _ in range(4):
            await clients.send(http, prompt(clients.rng))
        assert clients.faults == []


async def test_the_gateway_switches_between_two_requests(line: Line) -> None:
    """An intent for *transition* and one for *below*: whose router speaks changes with the acknowledgement, and nothing is lost or cut.

    The frontends differ by too little (a choice at τ 0.7 is the one at τ 0 four times in five) to be told by what they choose.
    """
    state = line.cluster.state
    clients = Clients(state.gateway_url, state.model)
    frontends = {name: state.process(f"frontend-{name}") for name in ("below", "transition")}
    async with watching(state.nats_url) as (bus, watcher), httpx.AsyncClient(timeout=60, trust_env=False) as direct:
        routers: dict[str, int] = {}
        for name, process in frontends.items():
            assert process is not None
            alone = Clients(process.base_url, state.model)
            request = await alone.send(direct, prompt(clients.rng), 1)
            await until(lambda request=request: _true(request in watcher.router), 30)  # type: ignore[misc]
            routers[name] = watcher.router[request]

        async def switch(tau: float) -> None:
            revision = (await bus.intent("dynamo")).revision
            wanted = intent(tau=tau, reason="a test", idempotency_key=f"switch-{tau}-{time.time()}", expected_revision=revision)
            await bus.put_intent("dynamo", wanted, time.time())

            async def there() -> bool:
                target, ack = await bus.target("dynamo"), (await bus.ack("dynamo", "gateway")).value
                return bool(ack and (ack.target_revision, ack.tau, ack.error) == (target.revision, tau, None))

            await until(there, 60)

        async with clients.busy():
            for name, tau in (("below", 0.0), ("transition", 0.7), ("below", 0.0)):
                await switch(tau)
                requests = await clients.more(40)
                assert {watcher.router[i] for i in requests} == {routers[name]}
    assert clients.faults == []
