"""The controller against a real bucket: what it writes, what it says, and what survives its death."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from nats.aio.msg import Msg

from controller import loop
from controller.bus import Bus
from controller.loop import Controller, Ear
from controller.protocol import Decision, Target
from poascope import ending
from poascope.errors import Unreachable
from tests.conftest import NatsServer
from tests.controller.conftest import intent, pulse, until


@contextlib.asynccontextmanager
async def controlling(bus: Bus, clock: Callable[[], float] = time.time, *namespaces: str) -> AsyncIterator[Controller]:
    """A controller that is cut off at the end, as by a kill."""
    ear = Ear(namespaces, clock)
    await ear.listen(bus)
    controller = Controller(bus, ear, clock=clock)
    running = asyncio.create_task(controller.run())
    await asyncio.sleep(0.05)
    yield controller
    await ending.end([running])


async def target(bus: Bus, mode: str, deployment: str = "dynamo") -> Target:
    """The target, as soon as it has this mode."""

    async def there() -> Target | None:
        found = (await bus.target(deployment)).value
        return found if found and found.mode == mode else None

    return await until(there)


async def decisions(bus: Bus) -> list[Decision]:
    """Filled with every decision published from now on."""
    said: list[Decision] = []

    def note(message: Msg) -> None:
        said.append(msgspec.json.decode(message.data, type=Decision))

    await bus.hear("poascope.*.decision", note)
    await bus.client.flush()
    return said


async def test_the_regime_becomes_a_target_written_once(bus: Bus) -> None:
    """Each change of regime is one write; pulses that say the same are none."""
    async with controlling(bus) as controller:
        for regime, parameters in (("below", (0.0, 1.0)), ("transition", (0.7, 1.0)), ("saturated", (0.8, 0.1))):
            for _ in range(3):
                await pulse(bus, regime=regime)
                await controller.turn()
            stored = await bus.target("dynamo")
            assert stored.value is not None
            assert (stored.value.tau, stored.value.omega) == parameters
        assert stored.revision == 3


async def test_an_intent_is_followed_at_once_even_without_signals(bus: Bus) -> None:
    """Nobody waits for the next 5 s, and a deployment that is silent can still be steered."""
    async with controlling(bus):
        submitted = await bus.put_intent("dynamo", intent(), time.time())
        got = await target(bus, "manual")
        assert (got.tau, got.omega, got.intent_revision) == (0.7, 1.0, submitted.revision)


async def test_a_restart_after_the_expiry_reverts(bus: Bus) -> None:
    """The controller dies with an override in force; the next one, after its end, goes back to auto and says so."""
    said = await decisions(bus)
    async with controlling(bus):
        await bus.put_intent("dynamo", intent(expires_at=time.time() + 600), time.time())
        await target(bus, "manual")
    async with controlling(bus, lambda: time.time() + 601):
        got = await target(bus, "auto")
        assert (got.tau, got.omega, got.regime) == (0.0, 1.0, "unknown")
        await until(lambda: _kind(said, "expiry"))
    (expiry,) = [d for d in said if d.kind == "expiry"]
    assert (expiry.actor, expiry.revision, expiry.mode, expiry.tau) == ("controller", 1, "auto", 0.0)
    assert expiry.why.startswith("The override of alice has expired")


async def test_a_restart_before_the_expiry_changes_nothing(bus: Bus) -> None:
    """An override in force outlives its controller, with the same revision of the target."""
    async with controlling(bus):
        await bus.put_intent("dynamo", intent(), time.time())
        await target(bus, "manual")
    async with controlling(bus) as controller:
        await controller.turn()
        assert (await bus.target("dynamo")).revision == 2


async def test_an_override_ends_without_waiting_for_the_next_turn(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop wakes for the expiry itself."""
    ends = time.time() + 600
    async with controlling(bus):
        await bus.put_intent("dynamo", intent(expires_at=ends), time.time())
        await target(bus, "manual")
    monkeypatch.setattr(loop, "INTERVAL_S", 1000.0)
    ahead_s = ends - time.time() - 0.3
    async with controlling(bus, lambda: time.time() + ahead_s):
        assert (await target(bus, "auto")).tau == 0.0


async def test_cancel_goes_back_to_what_the_regime_says(bus: Bus) -> None:
    """An auto intent is followed at once."""
    async with controlling(bus):
        await pulse(bus, regime="transition")
        await bus.put_intent("dynamo", intent(tau=0.8, omega=0.1), time.time())
        await target(bus, "manual")
        auto = intent(mode="auto", tau=None, omega=None, expires_at=None, expected_revision=1, idempotency_key="k2")
        revision = (await bus.intent("dynamo")).revision
        await bus.put_intent("dynamo", msgspec.structs.replace(auto, expected_revision=revision), time.time())
        got = await target(bus, "auto")
        assert (got.tau, got.omega) == (0.7, 1.0)


async def test_a_hold_is_said_when_its_reason_changes(bus: Bus) -> None:
    """Stale signals are told once, and their end too; the target stays."""
    said = await decisions(bus)
    async with controlling(bus) as controller:
        await pulse(bus, regime="transition")
        await controller.turn()
        for _ in range(3):
            await pulse(bus, regime="below", ts=time.time() - 20)
            await controller.turn()
        for _ in range(2):
            await pulse(bus, regime="unknown", quality=["itl: not reported", "regime: no events for more than 15 s"])
            await controller.turn()
        await pulse(bus, regime="transition")
        await controller.turn()
        await bus.client.flush()
        await until(lambda: _count(said, 3))
        got = (await bus.target("dynamo")).value
    assert [d.kind for d in said] == ["hold"] * 3
    assert "20 s old" in said[0].why
    assert "is not known (no events for more than 15 s): τ 0.7" in said[1].why
    assert said[2].why.endswith("τ 0.7, ω 1 stays.")
    assert got is not None
    assert (got.tau, got.regime) == (0.7, "transition")


async def test_rubbish_in_the_bucket_is_refused_by_name(bus: Bus) -> None:
    """A hand-written intent without an end, or no intent at all, is not followed, and said once."""
    said = await decisions(bus)
    await bus.intent("dynamo")
    kv = await bus.client.jetstream().key_value("poascope")
    async with controlling(bus) as controller:
        await kv.put("dynamo.intent", msgspec.json.encode(intent(operator="mallory", expires_at=None)))
        await until(lambda: _count(said, 1))
        await kv.put("dynamo.intent", b"\x00")
        await until(lambda: _count(said, 2))
        await controller.turn()
        await bus.client.flush()
        assert (await bus.target("dynamo")).value is None
    refusals = [d for d in said if d.kind == "refusal"]
    assert [(d.actor, d.why.split(" - ")[0].split(":")[0]) for d in refusals] == [
        ("mallory", "expires_at"),
        ("unknown", "revision 2 cannot be read"),
    ]


async def test_a_lost_server_changes_nothing_and_is_picked_up_again(bus: Bus, nats_server: NatsServer) -> None:
    """While NATS is away the loop lives on; what was in the store is followed again, and new intents too."""
    async with controlling(bus) as controller:
        await bus.put_intent("dynamo", intent(), time.time())
        await target(bus, "manual")
        nats_server.kill()
        await asyncio.sleep(0.1)
        await controller.turn()
        nats_server.start()
        await until(lambda: _connected(bus))
        got = await target(bus, "manual")
        assert got.tau == 0.7
        freeze = intent(mode="freeze", tau=None, omega=None, expected_revision=1, idempotency_key="k2")
        await bus.put_intent("dynamo", freeze, time.time())
        assert (await target(bus, "freeze")).tau == 0.7


async def test_a_controller_is_known_to_live_and_to_be_dead(bus: Bus) -> None:
    """The state says when a controller last looked, and None at once when there is none."""
    assert (await bus.state("dynamo")).controller_at is None
    async with controlling(bus) as controller:
        await controller.turn()
        at = await bus.controller_at()
        assert at is not None
        await controller.turn()
        again = (await bus.state("dynamo")).controller_at
        assert again is not None
        assert again > at


async def test_a_connection_closed_for_good_ends_the_controller(bus: Bus) -> None:
    """A controller that can never hear again does not go on as if it could: its supervisor starts it anew."""
    running = asyncio.create_task(Controller(bus, Ear(())).run())
    await until(bus.controller_at)
    await bus.client.close()
    with pytest.raises(ExceptionGroup) as failed:
        await running
    assert failed.group_contains(Unreachable, match="closed for good")


async def test_only_named_namespaces_are_steered(bus: Bus) -> None:
    """With namespaces in the settings other deployments are left alone."""
    async with controlling(bus, time.time, "dynamo") as controller:
        await pulse(bus, "other", regime="saturated")
        await bus.put_intent("other", intent(), time.time())
        await pulse(bus, regime="saturated")
        await controller.turn()
        assert (await bus.target("other")).value is None
        assert (await bus.target("dynamo")).value is not None


async def test_signals_that_cannot_be_read_are_ignored(bus: Bus) -> None:
    """Rubbish on the signals subject neither stops the loop nor counts as a signal."""
    async with controlling(bus) as controller:
        await bus.client.publish("poascope.dynamo.signals", b"\xff")
        await pulse(bus, regime="transition")
        await controller.turn()
        got = (await bus.target("dynamo")).value
        assert got is not None
        assert got.tau == 0.7


async def _connected(bus: Bus) -> bool:
    return bus.client.is_connected


async def _kind(said: list[Decision], kind: str) -> bool:
    return any(d.kind == kind for d in said)


async def _count(said: list[Decision], n: int) -> bool:
    return len(said) >= n
