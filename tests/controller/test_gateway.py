"""A target becomes where a real Caddy sends new requests, and the acknowledgement says what Caddy really does."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from controller.bus import Bus, Stored
from controller.gateway import Actuator, Gateway, dial, profile_for
from controller.loop import Controller, Ear
from controller.protocol import Ack, Safe, Target
from poascope import ending
from poascope.errors import Misconfigured, PoascopeError
from poascope.settings import Profile
from tests.conftest import NatsServer
from tests.controller.conftest import EVENTS, Caddy, arm, intent, pulse, until

Profiles = tuple[Profile, ...]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults are looked for ten times as often."""
    monkeypatch.setattr("controller.gateway.INTERVAL_S", 0.2)
    monkeypatch.setattr("controller.gateway.LISTEN_S", 0.2)


@contextlib.asynccontextmanager
async def actuating(
    bus: Bus,
    caddy: Caddy,
    profiles: Profiles,
    *,
    namespaces: tuple[str, ...] = ("dynamo",),
    deployment: str = "",
    clock: Callable[[], float] = time.time,
    control: bool = True,
    safe: Safe = Safe(),  # noqa: B008
) -> AsyncIterator[None]:
    """A controller (or none) and the actuator, cut off at the end as by a kill."""
    ear = Ear(namespaces)
    await ear.listen(bus)
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        actuator = Actuator(bus, ear, Gateway(caddy.admin_url, profiles, client), deployment, clock, safe)
        tasks = [asyncio.create_task(actuator.run())] + ([asyncio.create_task(Controller(bus, ear).run())] if control else [])
        yield
        await ending.end(tasks)


async def acked(bus: Bus, wanted: Callable[[Ack], bool], deployment: str = "dynamo") -> Stored[Ack]:
    """The gateway's acknowledgement, as soon as it is as wanted."""

    async def there() -> Stored[Ack] | None:
        stored = await bus.ack(deployment, "gateway")
        return stored if stored.value and wanted(stored.value) else None

    return await until(there)


def target(**changes: object) -> Target:
    fields = {"tau": 0.7, "omega": 1.0, "regime": "below", "mode": "manual", "why": "so", "decided_at": time.time(), "intent_revision": 1}
    return Target(**fields | changes)  # type: ignore[arg-type]


async def served_by(http: httpx.AsyncClient, caddy: Caddy) -> str:
    """The name of the frontend that answers a new request."""
    for _ in range(3):
        # While it changes over Caddy may drop a request before any answer (docs/measured.md): like any client, ask again.
        with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
            async with http.stream("GET", caddy.url) as response:
                async for line in response.aiter_lines():
                    return line.split()[1]
    raise AssertionError("no answer in three tries")


async def test_an_intent_goes_all_the_way_to_the_gateway_and_back(
    bus: Bus, caddy: Caddy, profiles: Profiles, http: httpx.AsyncClient
) -> None:
    """Intent → target → Caddy → ack, for each of the paper's presets; new requests go where the ack says."""
    async with actuating(bus, caddy, profiles):
        start = await acked(bus, lambda ack: ack.target_revision == 0)
        assert start.value is not None
        assert (start.value.tau, start.value.omega, start.value.error) == (0.0, 1.0, None)
        revision = 0
        for name, tau, omega in (("tuned", 0.7, 1.0), ("spread", 0.8, 0.1), ("default", 0.0, 1.0)):
            asked_at = time.time()
            asked = intent(tau=tau, omega=omega, idempotency_key=name, expected_revision=revision)
            revision = (await bus.put_intent("dynamo", asked, asked_at)).revision
            stored = await acked(bus, lambda ack, tau=tau, omega=omega: (ack.tau, ack.omega) == (tau, omega) and ack.target_revision > 0)  # type: ignore[misc]
            state = await bus.state("dynamo")
            assert state.target.value is not None
            assert stored.value is not None
            assert (state.target.value.intent_revision, stored.value.target_revision) == (revision, state.target.revision)
            assert stored.value.error is None
            assert stored.value.applied_at >= asked_at
            assert await served_by(http, caddy) == name


async def test_open_streams_end_where_they_began(bus: Bus, caddy: Caddy, profiles: Profiles, http: httpx.AsyncClient) -> None:
    """While five streams run the gateway is moved: they get every event from the old frontend, new requests the new one."""
    async with actuating(bus, caddy, profiles):
        await acked(bus, lambda ack: ack.target_revision == 0)
        first = [asyncio.Event() for _ in range(5)]

        async def stream(started: asyncio.Event) -> list[str]:
            got = []
            async with http.stream("GET", caddy.url) as response:
                async for line in response.aiter_lines():
                    if line:
                        got.append(line)
                        started.set()
            return got

        streams = [asyncio.create_task(stream(started)) for started in first]
        await asyncio.gather(*(started.wait() for started in first))
        await bus.put_intent("dynamo", intent(), time.time())
        await acked(bus, lambda ack: ack.tau == 0.7)
        assert await served_by(http, caddy) == "tuned"
        assert not all(task.done() for task in streams)
        for got in await asyncio.gather(*streams):
            assert got == [f"data: default {event}" for event in range(EVENTS)]


async def test_parameters_that_no_frontend_has_are_refused_by_naming_those_that_exist(bus: Bus, caddy: Caddy, profiles: Profiles) -> None:
    """The ack carries the error and what stays in force; the next target is applied again."""
    async with actuating(bus, caddy, profiles):
        await bus.put_intent("dynamo", intent(tau=0.5), time.time())
        stored = await acked(bus, lambda ack: ack.error is not None)
        assert stored.value is not None
        assert stored.value.error == (
            "profile: τ 0.5, ω 1 - no frontend behind the gateway has these; "
            "there are default (τ 0, ω 1), tuned (τ 0.7, ω 1), spread (τ 0.8, ω 0.1)"
        )
        assert (stored.value.tau, stored.value.omega) == (0.0, 1.0)
        revision = (await bus.intent("dynamo")).revision
        await bus.put_intent("dynamo", intent(idempotency_key="k2", expected_revision=revision), time.time())
        await acked(bus, lambda ack: ack.error is None and ack.tau == 0.7)


async def test_a_dead_gateway_is_acknowledged_as_an_error_and_put_right_when_it_is_back(
    bus: Bus, caddy: Caddy, profiles: Profiles, http: httpx.AsyncClient
) -> None:
    """Caddy killed and restarted is acknowledged anew, as soon as it answers."""
    async with actuating(bus, caddy, profiles):
        await bus.put_intent("dynamo", intent(), time.time())
        await acked(bus, lambda ack: ack.tau == 0.7)
        caddy.kill()
        down = await acked(bus, lambda ack: ack.error is not None)
        assert down.value is not None
        assert down.value.tau is None
        assert "is Caddy running?" in (down.value.error or "")
        caddy.start()
        up = await acked(bus, lambda ack: ack.error is None and ack.tau == 0.7)
        assert up.value is not None
        assert up.value.target_revision == down.value.target_revision
        assert up.value.applied_at > down.value.applied_at
        assert await served_by(http, caddy) == "tuned"


async def test_a_restarted_actuator_acknowledges_what_is_really_in_force(
    bus: Bus, caddy: Caddy, profiles: Profiles, http: httpx.AsyncClient
) -> None:
    """It asks Caddy, not its memory: a target written while it was dead is applied, and acknowledged again either way."""
    async with actuating(bus, caddy, profiles):
        await bus.put_intent("dynamo", intent(), time.time())
        before = await acked(bus, lambda ack: ack.tau == 0.7)
    async with actuating(bus, caddy, profiles):
        await until(lambda: _newer(bus, before.revision))
        again = await acked(bus, lambda ack: ack.tau == 0.7)
    stored = await bus.target("dynamo")
    await bus.put_target("dynamo", target(tau=0.8, omega=0.1), stored.revision)
    async with actuating(bus, caddy, profiles, control=False):
        after = await acked(bus, lambda ack: ack.tau == 0.8)
        assert after.revision > again.revision
        assert await served_by(http, caddy) == "spread"


async def _newer(bus: Bus, revision: int) -> bool:
    return (await bus.ack("dynamo", "gateway")).revision > revision


async def test_without_nats_the_last_target_stays_and_new_ones_are_taken_afterwards(
    bus: Bus, nats_server: NatsServer, caddy: Caddy, profiles: Profiles, http: httpx.AsyncClient
) -> None:
    """The gateway goes on serving, also a Caddy that restarts meanwhile."""
    async with actuating(bus, caddy, profiles):
        await bus.put_intent("dynamo", intent(), time.time())
        await acked(bus, lambda ack: ack.tau == 0.7)
        nats_server.kill()
        caddy.kill()
        caddy.start()
        await until(lambda: _serves(http, caddy, "tuned"))
        nats_server.start()
        await until(lambda: _connected(bus))
        revision = (await bus.intent("dynamo")).revision
        await bus.put_intent("dynamo", intent(tau=0.8, omega=0.1, idempotency_key="k2", expected_revision=revision), time.time())
        await acked(bus, lambda ack: ack.tau == 0.8 and ack.error is None)


async def _serves(http: httpx.AsyncClient, caddy: Caddy, name: str) -> bool:
    return await served_by(http, caddy) == name


async def _connected(bus: Bus) -> bool:
    return bus.client.is_connected


@pytest.mark.parametrize(
    ("late", "said"),
    [({"expires_at": 16}, "the override ended"), ({"decided_at": 40}, "the controller has not renewed the target")],
)
async def test_what_nobody_stands_behind_any_more_ends_at_the_actuator(
    late: dict[str, float], said: str, bus: Bus, caddy: Caddy, profiles: Profiles, http: httpx.AsyncClient
) -> None:
    """Past an override's end, or the lease, the gateway goes to the safe parameters by itself, says so once, and comes back."""
    ago = {name: time.time() - seconds for name, seconds in late.items()}
    await bus.put_target("dynamo", target(lease_s=30, **ago), 0)
    async with actuating(bus, caddy, profiles, control=False, safe=Safe(0.8, 0.1)):
        stored = await acked(bus, lambda ack: ack.error is not None)
        assert stored.value is not None
        assert (stored.value.tau, stored.value.omega) == (0.8, 0.1)
        assert said in (stored.value.error or "")
        assert "back to safe τ 0.8, ω 0.1" in (stored.value.error or "")
        assert await served_by(http, caddy) == "spread"
        await asyncio.sleep(1)
        assert (await bus.ack("dynamo", "gateway")).revision == stored.revision
        if "decided_at" in late:
            await bus.renew("dynamo", 1, time.time())
            await acked(bus, lambda ack: ack.error is None and ack.tau == 0.7)


@pytest.mark.parametrize("fixed", [False, True])
async def test_both_kinds_of_upstream_are_moved_and_read_back(
    fixed: bool, bus: Bus, tmp_path: Path, profiles: Profiles, http: httpx.AsyncClient
) -> None:
    """Caddy's own configuration says how; somebody else's change is put right. Restarted, one comes back where it was."""
    caddy = Caddy(tmp_path / "other", dial(profiles[0]), fixed=fixed)
    caddy.start()
    try:
        gateway = Gateway(caddy.admin_url, profiles, http)
        assert await gateway.in_force() == profiles[0]
        await gateway.move(profiles[1])
        assert await gateway.in_force() == profiles[1]
        assert await served_by(http, caddy) == "tuned"
        caddy.kill()
        caddy.start()
        assert await gateway.in_force() == (profiles[0] if fixed else profiles[1])
        if not fixed:
            caddy.upstream.write_text("127.0.0.1:1")
            assert await gateway.in_force() is None
            caddy.upstream.unlink()
            with pytest.raises(PoascopeError, match="is this the machine that it runs on"):
                await gateway.in_force()
    finally:
        caddy.kill()


async def test_no_request_is_lost_to_a_change(caddy: Caddy, profiles: Profiles, http: httpx.AsyncClient) -> None:
    """While the upstream file changes a hundred times, every request is answered, and by one of the frontends it named."""
    gateway, answered, over = Gateway(caddy.admin_url, profiles, http), set[str](), False

    async def ask() -> int:
        count = 0
        while not over:
            async with http.stream("GET", caddy.url) as response:
                answered.add((await anext(response.aiter_lines())).split()[1])
            count += 1
        return count

    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(ask()) for _ in range(4)]
        for n in range(100):
            await gateway.move(profiles[n % 2])
            await asyncio.sleep(0.01)
        over = True
    assert sum(task.result() for task in asking) > 100
    assert answered == {"default", "tuned"}


async def test_a_gateway_before_several_deployments_acts_for_none(
    bus: Bus, caddy: Caddy, profiles: Profiles, http: httpx.AsyncClient
) -> None:
    """It cannot know which one is behind it, and tells each; named in the settings, it acts for that one alone."""
    await pulse(bus)
    await bus.put_target("east", target(), 0)
    await bus.put_target("west", target(tau=0.8, omega=0.1), 0)
    async with actuating(bus, caddy, profiles, namespaces=("east", "west"), control=False):
        for deployment in ("east", "west"):
            stored = await acked(bus, lambda ack: ack.error is not None, deployment)
            assert stored.value is not None
            assert stored.value.error == "gateway: 2 deployments (east, west) - name the one behind it: gateway_namespace"
    assert await served_by(http, caddy) == "default"
    async with actuating(bus, caddy, profiles, namespaces=("east", "west"), deployment="east", control=False):
        await acked(bus, lambda ack: ack.error is None, "east")
    async with actuating(bus, caddy, profiles, namespaces=("west",), control=False):
        await acked(bus, lambda ack: ack.tau == 0.8 and ack.error is None, "west")


async def test_the_one_deployment_that_is_heard_is_the_gateways(bus: Bus, caddy: Caddy, profiles: Profiles) -> None:
    """Old keys of others in the bucket do not count; when none is heard, the last one served still does."""
    await bus.put_target("gone", target(tau=0.8, omega=0.1), 0)
    await arm(bus)
    async with actuating(bus, caddy, profiles, namespaces=()):
        await pulse(bus, regime="transition")
        await acked(bus, lambda ack: ack.tau == 0.7)
    stored = await bus.target("dynamo")
    await bus.put_target("dynamo", target(tau=0.8, omega=0.1), stored.revision)
    async with actuating(bus, caddy, profiles, namespaces=(), control=False):
        await acked(bus, lambda ack: ack.tau == 0.8)
    assert (await bus.ack("gone", "gateway")).value is None


async def test_a_caddy_without_our_handler_is_an_error_with_its_answer(
    bus: Bus, caddy: Caddy, profiles: Profiles, http: httpx.AsyncClient
) -> None:
    """Another Caddy's admin API is told apart from a dead one."""
    await http.delete(f"{caddy.admin_url}/id/poascope-gateway")
    async with actuating(bus, caddy, profiles):
        await bus.put_intent("dynamo", intent(), time.time())
        stored = await acked(bus, lambda ack: ack.target_revision > 0)
        assert stored.value is not None
        assert "unknown object ID" in (stored.value.error or "")


async def test_an_address_that_is_no_caddy_is_an_error_to_acknowledge(profiles: Profiles) -> None:
    """Whatever else answers there, or however the address is written, it is an error that an ack can carry, and ends no loop."""
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, text="<html>"))) as client:
        for url, says in (("http://127.0.0.1:1", "not as Caddy's"), ("http://a:b", "Invalid")):
            with pytest.raises(PoascopeError, match=says):
                await Gateway(url, profiles, client).in_force()


def test_the_profile_is_exact() -> None:
    """The nearest parameters are not the wanted ones."""
    made = (Profile("a", 0.7, 1.0, "http://h:1"), Profile("b", 0.7, 0.5, "http://h:2"))
    assert profile_for(made, 0.7, 0.5) is made[1]
    with pytest.raises(PoascopeError, match=r"there are a \(τ 0.7, ω 1\), b \(τ 0.7, ω 0.5\)"):
        profile_for(made, 0.7, 0.6)


def test_a_profile_is_reached_by_host_and_port() -> None:
    """Caddy dials host:port; anything but plain HTTP is a mistake in the settings."""
    profile = Profile("a", 0.0, 1.0, "http://127.0.0.1:8000")
    assert dial(profile) == "127.0.0.1:8000"
    assert dial(replace(profile, url="http://frontend")) == "frontend:80"
    with pytest.raises(Misconfigured, match="must be http://host:port"):
        dial(replace(profile, url="https://frontend"))
