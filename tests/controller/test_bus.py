"""The bucket on a real server: one winner, nothing twice, nothing late."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import msgspec
import pytest
from nats.aio.msg import Msg

from controller.bus import Bus, Refused, call, connect
from controller.protocol import REVISION_HEADER, Ack, Decision, Target
from poascope import ending
from poascope.errors import Unreachable
from tests.conftest import NatsServer, free_port
from tests.controller.conftest import intent, until


def target(**changes: object) -> Target:
    base = Target(tau=0.7, omega=1.0, regime="below", mode="manual", why="so", decided_at=time.time(), intent_revision=1)
    return msgspec.structs.replace(base, **changes)


@contextlib.asynccontextmanager
async def heard(bus: Bus, *subjects: str) -> AsyncIterator[list[Msg]]:
    """Everything said on these subjects."""
    messages: list[Msg] = []
    for subject in subjects:
        await bus.hear(subject, messages.append)
    await bus.client.flush()
    yield messages


async def test_an_intent_is_stored_with_its_revision(bus: Bus) -> None:
    """What was written is what is read, with the revision a next writer must expect."""
    assert (await bus.intent("dynamo")).revision == 0
    wrote = intent()
    submitted = await bus.put_intent("dynamo", wrote, time.time())
    stored = await bus.intent("dynamo")
    assert submitted.first
    assert (stored.value, stored.revision, stored.problem) == (wrote, submitted.revision, None)
    assert stored.at is not None
    assert abs(stored.at - time.time()) < 60


async def test_times_no_calendar_has_are_a_problem_and_no_value(bus: Bus) -> None:
    """A target or acknowledgement dated 1e308 by whoever may write to the bucket is not handed on as if a page could show it."""
    await bus.put_target("dynamo", target(decided_at=1e308, expires_at=1e308), 0)
    await bus.put_ack("dynamo", "gateway", Ack(tau=0.0, omega=1.0, applied_at=-1.0, target_revision=0))
    state = await bus.state("dynamo")
    assert (state.target.value, state.acks["gateway"].value) == (None, None)
    assert "decided_at" in (state.target.problem or "")
    assert "applied_at" in (state.acks["gateway"].problem or "")


async def test_a_double_submit_applies_once(bus: Bus) -> None:
    """The same idempotency key is the same intent: at once, at the same time, and long after others came."""
    now = time.time()
    both = await asyncio.gather(*(bus.put_intent("dynamo", intent(), now) for _ in range(5)))
    assert {s.revision for s in both} == {1}
    assert sum(s.first for s in both) == 1
    await bus.put_intent("dynamo", intent(idempotency_key="key-2", expected_revision=1, operator="bob"), now)
    again = await bus.put_intent("dynamo", intent(expected_revision=2), now)
    assert (again.first, again.revision) == (False, 1)
    assert (await bus.intent("dynamo")).revision == 2


async def test_a_key_cannot_be_reused_for_something_else(bus: Bus) -> None:
    """Other numbers under an old key are a mistake, not a repetition."""
    await bus.put_intent("dynamo", intent(), time.time())
    with pytest.raises(Refused, match="was used for another intent"):
        await bus.put_intent("dynamo", intent(tau=0.1, expected_revision=1), time.time())


async def test_of_two_operators_one_wins_and_the_other_learns_who(bus: Bus) -> None:
    """Both saw revision 0; the refusal names the winner and when, and everyone can hear it."""
    async with heard(bus, "poascope.dynamo.decision") as decisions:
        asked = [intent(operator=who, idempotency_key=who) for who in ("alice", "bob")]
        results = await asyncio.gather(*(bus.put_intent("dynamo", i, time.time()) for i in asked), return_exceptions=True)
        (refused,) = [r for r in results if isinstance(r, Refused)]
        winner = (await bus.intent("dynamo")).value
        assert winner is not None
        assert refused.overtaken_by == winner.operator
        assert refused.overtaken_at is not None
        assert f"overtaken by {winner.operator} (manual, revision 1)" in str(refused)
        await until(lambda: _done(decisions))
        said = msgspec.json.decode(decisions[0].data, type=Decision)
        loser = {"alice": "bob", "bob": "alice"}[winner.operator]
        assert (said.kind, said.actor, said.why, said.tau, said.revision) == ("refusal", loser, str(refused), 0.7, 0)


async def _done(messages: list[Msg]) -> bool:
    return bool(messages)


@pytest.mark.parametrize("changes", [{"expires_at": 1.0}, {"expires_at": None}, {"reason": ""}, {"tau": 11.0}])
async def test_the_bucket_never_sees_an_inadmissible_intent(bus: Bus, changes: dict[str, object]) -> None:
    """Expired, endless, unexplained or out of bounds: refused before the write."""
    with pytest.raises(Refused):
        await bus.put_intent("dynamo", intent(**changes), time.time())
    assert (await bus.intent("dynamo")).revision == 0


async def test_only_what_is_stored_is_repeated_with_its_revision(bus: Bus) -> None:
    """A write that lost is seen on the bucket's own subject, but not on the one that repeats stored values."""
    await bus.intent("dynamo")
    async with heard(bus, "$KV.poascope.>") as written, heard(bus, "poascope-kv.>") as stored:
        await bus.put_intent("dynamo", intent(), time.time())
        with pytest.raises(Refused):
            await bus.put_intent("dynamo", intent(idempotency_key="late", operator="bob"), time.time())
        await bus.put_ack("dynamo", "gateway", Ack(tau=0.7, omega=1.0, applied_at=1.0, target_revision=1))
        await bus.client.flush()
        await until(lambda: _two(stored))
    assert [m.subject for m in written] == ["$KV.poascope.dynamo.intent"] * 2 + ["$KV.poascope.dynamo.ack.gateway"]
    assert [m.subject for m in stored] == ["poascope-kv.dynamo.intent", "poascope-kv.dynamo.ack.gateway"]
    assert [(m.headers or {})[REVISION_HEADER] for m in stored] == ["1", "2"]


async def _two(messages: list[Msg]) -> bool:
    return len(messages) >= 2


async def test_of_two_controllers_one_writes_the_target(bus: Bus) -> None:
    """The second one with the same expectation is told that it came too late."""
    assert await bus.put_target("dynamo", target(), 0) == 1
    assert await bus.put_target("dynamo", target(tau=0.0), 0) is None
    assert (await bus.target("dynamo")).value == target(decided_at=(await bus.target("dynamo")).value.decided_at)  # type: ignore[union-attr]


async def test_the_state_of_a_deployment_is_what_its_keys_say(bus: Bus) -> None:
    """Wanted, decided and acknowledged by each replica; other deployments, even with odd names, stay apart."""
    await bus.put_intent("dynamo", intent(), time.time())
    await bus.put_target("dynamo", target(), 0)
    ack = Ack(tau=0.7, omega=1.0, applied_at=5.0, target_revision=2)
    await bus.put_ack("dynamo", "gateway", ack)
    await bus.put_ack("dynamo", "router.1", ack)
    await bus.put_intent("east 1.β", intent(), time.time())
    state = await bus.state("dynamo")
    assert (state.intent.revision, state.target.revision) == (1, 2)
    assert {replica: stored.value for replica, stored in state.acks.items()} == {"gateway": ack, "router.1": ack}
    assert await bus.deployments() == ("dynamo", "east 1.β")
    assert (await bus.state("east 1.β")).target.value is None


async def test_unreadable_and_deleted_values_are_told_apart_from_none(bus: Bus) -> None:
    """Rubbish under a key is a problem with a revision; a deleted key has none, and can be written again."""
    await bus.intent("dynamo")
    js = bus.client.jetstream()
    kv = await js.key_value("poascope")
    await kv.put("dynamo.intent", b'{"mode": "party"}')
    stored = await bus.intent("dynamo")
    assert (stored.value, stored.revision) == (None, 1)
    assert stored.problem
    assert stored.problem.startswith("revision 1 cannot be read")
    await kv.put("dynamo.intent", msgspec.json.encode(intent(reason="A" * 500_000)))
    assert "at most" in ((await bus.intent("dynamo")).problem or "")  # a page that shows it would stand still
    await kv.delete("dynamo.intent")
    stored = await bus.intent("dynamo")
    assert (stored.value, stored.revision, stored.problem) == (None, 3, None)
    assert (await bus.put_intent("dynamo", intent(expected_revision=3), time.time())).revision == 4


async def test_a_bucket_made_by_somebody_else_is_completed(nats_server: NatsServer) -> None:
    """A plain bucket of that name gets history and the repeated subject, and keeps its values."""
    async with connect(nats_server.url) as bus:
        kv = await bus.client.jetstream().create_key_value(bucket="poascope")
        await kv.put("dynamo.intent", msgspec.json.encode(intent(operator="carol")))
    async with connect(nats_server.url) as bus:
        stored = await bus.intent("dynamo")
        assert stored.value is not None
        assert stored.value.operator == "carol"
        config = (await bus.client.jetstream().stream_info("KV_poascope")).config
        assert config.max_msgs_per_subject == 64
        assert config.republish is not None
        assert config.republish.dest == "poascope-kv.>"


async def test_watchers_wake_on_a_change_and_after_a_reconnect(bus: Bus, nats_server: NatsServer) -> None:
    """First everything may have changed; then single keys; then everything again when the server was away."""
    woken: list[frozenset[str] | None] = []

    async def watch() -> None:
        async for keys in bus.watch():
            woken.append(keys)  # noqa: PERF401

    watching = asyncio.create_task(watch())
    try:
        await until(lambda: _has(woken, None))
        await bus.put_intent("dynamo", intent(), time.time())
        await until(lambda: _has(woken, frozenset({"dynamo.intent"})))
        woken.clear()
        nats_server.kill()
        await asyncio.sleep(0.1)
        with pytest.raises(Unreachable):
            await bus.put_intent("dynamo", intent(idempotency_key="k", expected_revision=1), time.time())
        nats_server.start()
        await until(lambda: _has(woken, None))
        woken.clear()
        assert (await bus.intent("dynamo")).revision == 1
        await bus.put_intent("dynamo", intent(idempotency_key="k", expected_revision=1), time.time())
        await until(lambda: _has(woken, frozenset({"dynamo.intent"})))
    finally:
        await ending.end([watching])


async def _has(woken: list[frozenset[str] | None], keys: frozenset[str] | None) -> bool:
    return keys in woken


async def test_a_write_while_the_server_is_away_is_not_delivered_later(bus: Bus, nats_server: NatsServer) -> None:
    """An intent that failed stays failed when the server is back."""
    await bus.intent("dynamo")
    nats_server.kill()
    await asyncio.sleep(0.1)
    with pytest.raises(Unreachable):
        await bus.put_intent("dynamo", intent(), time.time())
    nats_server.start()
    await until(lambda: _connected(bus))
    await bus.client.flush()
    assert (await bus.intent("dynamo")).revision == 0


async def _connected(bus: Bus) -> bool:
    return bus.client.is_connected


async def test_a_server_that_lost_its_store_gets_a_new_bucket(bus: Bus) -> None:
    """The bucket is made again when it is gone."""
    await bus.put_intent("dynamo", intent(), time.time())
    await bus.client.jetstream().delete_key_value("poascope")
    with pytest.raises(Unreachable, match="stream not found"):
        await bus.intent("dynamo")
    assert (await bus.intent("dynamo")).revision == 0


def test_code_that_is_not_async_may_ask(nats_server: NatsServer) -> None:
    """`call` connects, asks and closes."""
    submitted = call(nats_server.url, lambda bus: bus.put_intent("dynamo", intent(), time.time()))
    state = call(nats_server.url, lambda bus: bus.state("dynamo"))
    assert state.intent.revision == submitted.revision


def test_a_password_in_the_address_is_not_told() -> None:
    """Errors and logs name the server, not its user's secret."""
    port = free_port()
    with pytest.raises(Unreachable) as failed:
        call(f"nats://user:secret@127.0.0.1:{port}", lambda bus: bus.state("dynamo"))
    assert f"NATS: nats://127.0.0.1:{port} - " in str(failed.value)
    assert "secret" not in str(failed.value)


def test_no_server_is_unreachable_at_once() -> None:
    """An impatient caller gets the address and the reason."""
    port = free_port()
    with pytest.raises(Unreachable, match=f"NATS: nats://127.0.0.1:{port} - "):
        call(f"nats://127.0.0.1:{port}", lambda bus: bus.state("dynamo"))
