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
from controller.protocol import Decision, Loop, Target
from poascope import ending
from poascope.errors import Unreachable
from queries.estimators.baseline import Baseline
from tests.conftest import NatsServer
from tests.controller.conftest import arm, intent, pulse, until


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
    await arm(bus)
    written: list[Msg] = []
    await bus.hear("$KV.poascope.dynamo.target", written.append)
    later = 0.0
    async with controlling(bus, lambda: time.time() + later) as controller:
        for regime, parameters in (("below", (0.0, 1.0)), ("transition", (0.7, 1.0)), ("saturated", (0.8, 0.1))):
            for _ in range(3):
                await pulse(bus, regime=regime, ts=time.time() + later)
                await controller.turn()
            stored = await bus.target("dynamo")
            assert stored.value is not None
            assert (stored.value.tau, stored.value.omega) == parameters
            later += 11  # past the dwell
        await bus.client.flush()
        assert len(written) == 3


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
    await arm(bus)
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
    await arm(bus)
    said = await decisions(bus)
    async with controlling(bus) as controller:
        await pulse(bus, regime="transition")
        await controller.turn()
        await bus.client.flush()
        said.clear()  # it started before it heard anything, and said so
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
        freeze = intent(mode="freeze", tau=None, omega=None, expected_revision=(await bus.intent("dynamo")).revision, idempotency_key="k2")
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
    for deployment in ("dynamo", "other"):
        await arm(bus, deployment)
    async with controlling(bus, time.time, "dynamo") as controller:
        await pulse(bus, "other", regime="saturated")
        await bus.put_intent("other", intent(), time.time())
        await pulse(bus, regime="saturated")
        await controller.turn()
        assert (await bus.target("other")).value is None
        assert (await bus.target("dynamo")).value is not None


async def test_signals_that_cannot_be_read_are_ignored(bus: Bus) -> None:
    """Rubbish on the signals subject neither stops the loop nor counts as a signal."""
    await arm(bus)
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


async def loops(bus: Bus) -> list[Loop]:
    """Filled with every state of the loop published from now on."""
    said: list[Loop] = []
    await bus.hear_loops(lambda _, said_now: said.append(said_now))
    await bus.client.flush()
    return said


async def test_a_deployment_never_armed_is_only_watched(bus: Bus) -> None:
    """It decides and publishes, once for each other decision, and the bucket stays without a target until an operator arms it."""
    said, states = await decisions(bus), await loops(bus)
    learnt = Baseline((0.15,) * 24).note
    async with controlling(bus) as controller:
        for regime in ("saturated", "saturated", "below"):
            await pulse(bus, regime=regime, ttft_ewma_s=2.5, ttft_p99_s=4.0, quality=[learnt])
            await controller.turn()
        await until(lambda: _count(said, 2))
        assert [(d.kind, d.tau, d.omega, d.regime) for d in said] == [("dry run", 0.8, 0.1, "saturated"), ("dry run", 0.0, 1.0, "below")]
        assert (await bus.target("dynamo")).revision == 0
        first = states[0]
        assert (first.action, first.armed, first.tau, first.target_revision, first.override) == ("dry run", False, 0.8, 0, None)
        assert (first.regime, first.ttft_p99_s, first.ttft_ewma_s, first.thresholds_s) == ("saturated", 4.0, 2.5, (0.3, 1.8))
        assert first.signal_age_s is not None
        assert first.why == said[0].why
        await arm(bus)
        assert (await target(bus, "auto")).tau == 0.0
        await arm(bus, armed=False)
        await pulse(bus, regime="saturated")
        await controller.turn()
        assert (await target(bus, "auto")).tau == 0.0


async def test_the_loop_tells_all_that_a_page_shows(bus: Bus) -> None:
    """At each step: what is in force and why, who overrides it until when, and how much change is left."""
    states = await loops(bus)
    await arm(bus)
    async with controlling(bus) as controller:
        await pulse(bus, regime="transition")
        await controller.turn()
        submitted = await bus.put_intent("dynamo", intent(tau=0.3), time.time())
        await target(bus, "manual")
        await controller.turn()
        revision = (await bus.target("dynamo")).revision
        await until(lambda: _says(states, "override"))
    changed = next(s for s in states if s.action == "set" and s.mode == "auto")
    assert (changed.tau, changed.armed, changed.switches_left, changed.switches_max, changed.lease_s) == (0.7, True, 6, 6, 120.0)
    assert 9 < changed.dwell_left_s <= 10
    held = next(s for s in states if s.reason == "override")
    assert (held.action, held.mode, held.tau, held.target_revision, held.arming_revision) == ("hold", "manual", 0.3, revision, 1)
    assert held.override is not None
    assert (held.override.operator, held.override.reason, held.override.revision) == ("alice", "queue is growing", submitted.revision)
    assert 1700 < held.override.left_s <= 1800
    assert held.at < held.next_at <= held.at + 5


async def _says(states: list[Loop], reason: str) -> bool:
    return any(s.reason == reason for s in states)


async def test_each_turn_renews_the_lease_and_leaves_the_target_alone(bus: Bus) -> None:
    """The controller's sign of life is beside the target: its revision, which acknowledgements name, says that something changed."""
    async with controlling(bus) as controller:
        await pulse(bus)
        await controller.turn()
        assert (await bus.lease("dynamo")).value is None, "nothing was set, so there is nothing to stand behind"
        await bus.put_intent("dynamo", intent(), time.time())
        await target(bus, "manual")
        await controller.turn()
        stored, lease = await bus.target("dynamo"), await bus.lease("dynamo")
        await controller.turn()
        again = await bus.lease("dynamo")
        assert (await bus.target("dynamo")).revision == stored.revision
        assert lease.value is not None
        assert again.value is not None
        assert lease.value.target_revision == again.value.target_revision == stored.revision
        assert (again.revision > lease.revision, again.value.renewed_at > lease.value.renewed_at) == (True, True)


async def test_an_intent_written_past_the_others_is_refused(bus: Bus) -> None:
    """A copy of an older intent, or one over an intent its operator had not seen, put straight into the bucket, changes nothing."""
    said = await decisions(bus)
    async with controlling(bus) as controller:
        await bus.put_intent("dynamo", intent(tau=0.8, omega=0.1), time.time())
        await target(bus, "manual")
        old = (await bus.intent("dynamo")).value
        revision = (await bus.intent("dynamo")).revision
        auto = intent(mode="auto", tau=None, omega=None, expires_at=None, expected_revision=revision, idempotency_key="k2")
        last = await bus.put_intent("dynamo", auto, time.time())
        await target(bus, "auto")
        kv = await bus.client.jetstream().key_value("poascope")
        await kv.put("dynamo.intent", msgspec.json.encode(old))
        await until(lambda: _count([d for d in said if d.kind == "refusal"], 1))
        replayed = await bus.intent("dynamo")
        twice = msgspec.structs.replace(old, expected_revision=replayed.revision)
        await kv.put("dynamo.intent", msgspec.json.encode(twice))
        await until(lambda: _count([d for d in said if d.kind == "refusal"], 2))
        await controller.turn()
        assert (await target(bus, "auto")).tau == 0.0
    refusals = [d for d in said if d.kind == "refusal"]
    assert refusals[0].why.startswith(f"expected_revision: 0 - written over revision {last.revision}")
    assert refusals[1].why == "idempotency_key: key-1 - was used before (revision 1)"


async def test_a_forgery_takes_nothing_away(bus: Bus) -> None:
    """An intent that was taken is followed although a copy of an older one came past it before the controller looked."""
    first = intent(tau=0.1, omega=0.1)
    taken = await bus.put_intent("dynamo", first, time.time())
    wanted = intent(tau=0.3, idempotency_key="k2", expected_revision=taken.revision)
    taken = await bus.put_intent("dynamo", wanted, time.time())
    kv = await bus.client.jetstream().key_value("poascope")
    await kv.put("dynamo.intent", msgspec.json.encode(first))
    said = await decisions(bus)
    async with controlling(bus) as controller:
        got = await target(bus, "manual")
        assert (got.tau, got.intent_revision) == (0.3, taken.revision)
        await controller.turn()
        await bus.client.flush()
    assert [d.kind for d in said] == ["refusal"]


async def test_an_arming_that_cannot_be_read_arms_nothing(bus: Bus) -> None:
    """Rubbish under the arming's key is refused and leaves the dry run."""
    said = await decisions(bus)
    await bus.intent("dynamo")
    kv = await bus.client.jetstream().key_value("poascope")
    async with controlling(bus) as controller:
        await kv.put("dynamo.armed", b'{"armed": true}')
        await pulse(bus, regime="saturated")
        await controller.turn()
        await until(lambda: _kind(said, "refusal"))
        assert (await bus.target("dynamo")).revision == 0
    assert next(d.why for d in said if d.kind == "refusal").startswith("arming: revision 1 cannot be read")
