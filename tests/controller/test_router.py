"""The router actuator's own rules, without Dynamo: what is in force when, how ω is called, and that a request's books are closed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from controller import protocol, router
from controller.bus import Bus
from controller.protocol import Ack
from controller.router import V0, V1, V1_6, Held, Leg, Link, Names, Router, configuration, names_of, override, parse_target
from poascope import ending
from poascope.errors import Unreachable
from poascope.settings import Settings
from tests.conftest import NatsServer
from tests.controller.conftest import until

SECONDS = st.floats(1_000, 2_000)


def wanted(**changes: Any) -> protocol.Target:
    base = protocol.Target(tau=0.7, omega=2.0, regime="transition", mode="manual", why="so", decided_at=time.time())
    return msgspec.structs.replace(base, **changes)


@given(SECONDS, st.none() | SECONDS, st.none() | SECONDS, st.floats(5, 600), SECONDS)
def test_what_is_in_force_is_what_the_protocol_says(
    decided_at: float, expires_at: float | None, renewed_at: float | None, lease_s: float, now: float
) -> None:
    """The module stands alone in Dynamo's environment, and yet ends overrides and leases exactly when `protocol.in_force` does."""
    target = wanted(decided_at=decided_at, expires_at=expires_at, lease_s=lease_s)
    held = Held((0.0, 1.0)).hear_target(msgspec.json.encode(target), 7)
    if renewed_at is not None:
        held = held.hear_lease(9, None, renewed_at)
    ours, theirs = held.in_force(now), protocol.in_force(target, renewed_at, now)
    assert (ours.tau, ours.omega, ours.error is None) == (theirs.tau, theirs.omega, theirs.fallback is None)


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | SECONDS, SECONDS)))
def test_a_lease_is_dated_as_the_protocol_dates_it(heard: list[tuple[int, float | None, float]]) -> None:
    """The first one by the bucket's time, the others when they are heard; the same revision again renews nothing."""
    held, renewal = Held(), protocol.Renewal()
    for revision, stored_at, now in heard:
        held, renewal = held.hear_lease(revision, stored_at, now), renewal.hear(revision, stored_at, now)
    assert (held.lease, held.renewed_at) == (renewal.revision, renewal.at)


def test_constants_and_subjects_are_the_protocols() -> None:
    """What the module repeats because it cannot import it is the same."""
    assert (router.BUCKET, router.STORED, router.REVISION) == (protocol.BUCKET, protocol.STORED, protocol.REVISION_HEADER)
    assert (router.EXPIRY_GRACE_S, router.LEASE_S) == (protocol.EXPIRY_GRACE_S, protocol.LEASE_S)
    assert router.MAX_PARAMETER == protocol.MAX_TAU == protocol.MAX_OMEGA
    assert router.token("a.b c") == protocol.token("a.b c")


@pytest.mark.parametrize(
    "broken", [b"", b"[]", b"{}", b'{"tau": true, "omega": 1, "decided_at": 1}', b'{"tau": 11, "omega": 1, "decided_at": 1}']
)
def test_a_target_that_cannot_be_used_leaves_the_last_one_in_force(broken: bytes) -> None:
    """It is said in the acknowledgement, and the next good one is taken again."""
    now = time.time()
    held = Held().hear_target(msgspec.json.encode(wanted()), 1).hear_target(broken, 2)
    assert (held.in_force(now).tau, held.in_force(now).revision) == (0.7, 1)
    assert "revision 2 - cannot be used" in (held.in_force(now).error or "")
    assert held.hear_target(msgspec.json.encode(wanted(tau=0.1)), 3).in_force(now).error is None


def test_without_any_target_the_safe_parameters_are_in_force() -> None:
    """They are no fault: nothing was ever wanted."""
    assert Held((0.1, 0.9)).in_force(time.time()) == router.InForce(0.1, 0.9, 0, None)


def test_omega_is_called_as_each_version_calls_it() -> None:
    """The decode leg behind a prefill pool gets what Dynamo's own frontends set there; an aggregated one gets ω."""
    assert override(V0, 0.7, 2.0, prefilled=False) == {"router_temperature": 0.7, "overlap_score_weight": 2.0}
    assert override(V0, 0.7, 2.0, prefilled=True) == {"router_temperature": 0.7, "overlap_score_weight": 0.0}
    assert override(V1, 0.7, 2.0, prefilled=False) == {"router_temperature": 0.7, "prefill_load_scale": 2.0}
    assert override(V1, 0.7, 2.0, prefilled=True) == {
        "router_temperature": 0.7,
        "prefill_load_scale": 2.0,
        "overlap_score_credit": 0.0,
        "assume_kv_reuse": False,
        "track_prefill_tokens": False,
    }


def test_each_version_is_known_by_its_configuration() -> None:
    """0.9, 1.4 and 1.6, by signatures as theirs; 1.6 does not heed requests, so its routers are configured."""
    assert names_of("(overlap_score_weight=1.0, router_temperature=0.0)") is V0
    assert names_of("(overlap_score_weight=None, prefill_load_scale=1.0)") is V1
    assert names_of("(prefill_load_scale=1.0, router_prefill_policy=None)") is V1_6
    assert configuration(V1_6, 0.7, 2.0, prefilled=True) == {
        "router_temperature": 0.7,
        "prefill_load_scale": 2.0,
        "overlap_score_credit": 0.0,
    }


async def test_a_version_that_does_not_heed_requests_gets_a_router_for_each_pair() -> None:
    """Made once a pair, the least used given up after many; a request ends on the router that it began with."""
    made: list[tuple[float, float]] = []
    pools: list[Pool] = []

    def make(tau: float, omega: float) -> Pool:
        made.append((tau, omega))
        pools.append(Pool({"token_ids": [8]}, {"token_ids": [9]}))
        return pools[-1]

    leg = Leg(make, Pool({"token_ids": [8]}, {"token_ids": [9]}), V1_6, prefilled=False)
    stream = leg.stream(REQUEST, Context("r1"), 0.0, 1.0, [])
    await anext(stream)
    for tau in (0.0, 1.0, 0.0):
        assert [a async for a in leg.stream(REQUEST, Context(f"r-{tau}"), tau, 1.0, [])]
    assert made == [(0.0, 1.0), (1.0, 1.0)]
    for n in range(router.MAX_ROUTERS):
        leg.router(2.0, float(n))
    leg.router(0.0, 1.0)
    assert made[-1] == (0.0, 1.0)
    assert [a async for a in stream] == [{"token_ids": [9]}]
    assert pools[0].books[-1] == "free r1"


def test_parsing_keeps_every_field() -> None:
    """What the controller writes is what a router reads."""
    target = wanted(expires_at=5e9, lease_s=30)
    parsed = parse_target(msgspec.json.encode(target), 4)
    assert (parsed.tau, parsed.omega, parsed.revision, parsed.decided_at) == (target.tau, target.omega, 4, target.decided_at)
    assert (parsed.expires_at, parsed.lease_s) == (5e9, 30)


def test_rights_on_nats_come_by_the_variables_of_the_settings() -> None:
    """A router is let in as every process of ours is; nothing is set where nothing is given."""
    variables = {f.metadata["env"] for f in fields(Settings) if f.name.startswith("nats_")}
    for variable in ("NATS_AUTH_USERNAME", "NATS_AUTH_PASSWORD", "NATS_AUTH_TOKEN", "POASCOPE_NATS_CREDENTIALS", "POASCOPE_NATS_TLS_CA"):
        assert variable in variables
    assert router.access({}) == {}
    given = {"NATS_AUTH_USERNAME": "u", "NATS_AUTH_PASSWORD": "p", "POASCOPE_NATS_CREDENTIALS": "f"}
    assert router.access(given) == {"user": "u", "password": "p", "user_credentials": "f"}


class Context:
    def __init__(self, request_id: str) -> None:
        self.request_id, self.stopped = request_id, False

    def id(self) -> str:
        return self.request_id

    def is_stopped(self) -> bool:
        return self.stopped

    def is_killed(self) -> bool:
        return False


class Pool:
    """In the place of Dynamo's router and client for one pool: its books, and answers or a failure."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers, self.books, self.overrides, self.sent = answers, [], [], []  # type: ignore[var-annotated]

    async def best_worker(self, tokens: list[int], override: dict[str, Any], request_id: str) -> tuple[int, int, int]:
        self.books.append(f"add {request_id}")
        self.overrides.append(override)
        return 2**63 + 1, 0, 3

    async def mark_prefill_complete(self, request_id: str) -> None:
        self.books.append(f"mark {request_id}")

    async def free(self, request_id: str) -> None:
        self.books.append(f"free {request_id}")

    async def direct(self, request: dict[str, Any], worker: int, *, annotated: bool, context: Context) -> AsyncIterator[dict[str, Any]]:
        self.sent.append((worker, request))

        async def stream() -> AsyncIterator[dict[str, Any]]:
            for answer in self.answers:
                if isinstance(answer, Exception):
                    raise answer
                yield answer

        return stream()


class Said:
    """In the place of the link: parameters that a test changes, and what was published."""

    def __init__(self) -> None:
        self.in_force = router.InForce(0.0, 2.0, 1)
        self.requests: list[tuple[str, float, float]] = []

    def now(self) -> router.InForce:
        return self.in_force

    async def routed(self, request_id: str, in_force: router.InForce) -> None:
        self.requests.append((request_id, in_force.tau, in_force.omega))


def component(prefill: Pool | None, decode: Pool) -> tuple[Router, Said]:
    said = Said()
    first = leg(prefill) if prefill else None
    return Router(said, V0, leg(decode, prefilled=first is not None), first), said  # type: ignore[arg-type]


def leg(pool: Pool, names: Names = V0, *, prefilled: bool = False) -> Leg:
    return Leg(lambda tau, omega: pool, pool, names, prefilled=prefilled)


REQUEST = {"token_ids": [1, 2, 3], "stop_conditions": {"max_tokens": 9}, "router_config_override": {"router_temperature": 9.0}}


async def test_a_request_goes_through_both_legs_under_one_id_and_one_pair_of_parameters() -> None:
    """A target that comes between the legs counts for the next request; what the client asked of the router does not count at all."""
    prefill, decode = Pool({"token_ids": [7], "disaggregated_params": {"at": "x"}}), Pool({"token_ids": [8]}, {"token_ids": [9]})
    routes, said = component(prefill, decode)
    answers = []
    async for answer in routes.generate(dict(REQUEST), Context("r1")):
        said.in_force = router.InForce(5.0, 0.0, 2)
        answers.append(answer["token_ids"])
    assert answers == [[8], [9]]
    assert prefill.books == ["add r1", "mark r1", "free r1"] == decode.books
    assert prefill.overrides == [{"router_temperature": 0.0, "overlap_score_weight": 2.0}]
    assert decode.overrides == [{"router_temperature": 0.0, "overlap_score_weight": 0.0}]
    (worker, first), (_, second) = prefill.sent[0], decode.sent[0]
    assert worker == 2**63 + 1
    assert first["stop_conditions"] == {"max_tokens": 1}
    assert (second["stop_conditions"], second["prefill_result"]) == ({"max_tokens": 9}, {"disaggregated_params": {"at": "x"}})
    assert "router_config_override" not in first
    assert said.requests == [("r1", 0.0, 2.0)]
    async for _ in routes.generate(dict(REQUEST), Context("r2")):
        pass
    assert said.requests[1] == ("r2", 5.0, 0.0)


async def test_aggregated_workers_get_omega_itself() -> None:
    """One pool, one leg."""
    pool = Pool({"token_ids": [8]})
    routes, _ = component(None, pool)
    assert [answer async for answer in routes.generate(dict(REQUEST), Context("r1"))] == [{"token_ids": [8]}]
    assert pool.overrides == [{"router_temperature": 0.0, "overlap_score_weight": 2.0}]


async def test_a_worker_that_dies_fails_its_request_and_leaves_no_load_behind() -> None:
    """On either leg."""
    dead = Pool(ConnectionError("gone"))
    for routes, _ in (component(dead, Pool()), component(None, dead)):
        with pytest.raises(ConnectionError):
            _ = [answer async for answer in routes.generate(dict(REQUEST), Context("r1"))]
    assert dead.books == ["add r1", "free r1"] * 2


async def test_a_client_that_left_during_prefill_is_not_sent_on() -> None:
    """The decode pool never hears of it."""
    context, decode = Context("r1"), Pool({"token_ids": [8]})
    routes, _ = component(Pool({"disaggregated_params": {}}), decode)
    context.stopped = True
    assert [answer async for answer in routes.generate(dict(REQUEST), context)] == []
    assert decode.books == []


async def test_a_prefill_worker_that_hands_nothing_over_is_an_error_that_says_so() -> None:
    """Not a request that is silently decoded without its prompt."""
    routes, _ = component(Pool({"token_ids": [7]}), Pool())
    with pytest.raises(RuntimeError, match="without handing its cache over"):
        _ = [answer async for answer in routes.generate(dict(REQUEST), Context("r1"))]


async def test_a_stream_that_its_reader_leaves_is_freed() -> None:
    """As when the frontend is gone."""
    pool = Pool({"token_ids": [8]}, {"token_ids": [9]})
    routes, _ = component(None, pool)
    stream = routes.worker.stream(REQUEST, Context("r1"), 0.0, 1.0, [])
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert pool.books == ["add r1", "mark r1", "free r1"]


async def ack(bus: Bus, **fields: Any) -> Ack:
    async def there() -> Ack | None:
        try:
            found = (await bus.ack("dynamo", "router-1")).value
        except Unreachable:
            return None  # the test's own connection is not back yet
        return found if found and all(getattr(found, name) == value for name, value in fields.items()) else None

    found = await until(there, 30)
    assert isinstance(found, Ack)
    return found


async def test_a_link_takes_targets_acknowledges_and_says_what_it_routes(bus: Bus, nats_server: NatsServer) -> None:
    """Against a real server: a target is in force when its write is heard, survives the server, and ends with its lease."""
    ahead_s = 0.0
    link = Link(nats_server.url, {}, "dynamo", "router-1", Held(), V0.said, lambda: time.time() + ahead_s)
    task = asyncio.create_task(link.run())
    try:
        await bus.intent("dynamo")  # makes the bucket
        await ack(bus, tau=0.0, omega=1.0, target_revision=0)
        revision = await bus.put_target("dynamo", wanted(lease_s=600), 0)
        taken = await ack(bus, tau=0.7, omega=2.0, target_revision=revision, error=None)
        assert taken.applied_at <= time.time()
        heard: list[Any] = []
        await bus.hear("poascope.dynamo.routed", lambda message: heard.append(json.loads(message.data)))
        await bus.client.flush()
        await link.routed("r1", link.now())
        await until(lambda: _true(bool(heard)))
        assert (heard[0]["request_id"], heard[0]["tau"], heard[0]["omega"]) == ("r1", 0.7, 2.0)

        nats_server.kill()
        await until(lambda: _true(link.trouble is not None), 30)
        await link.routed("r2", link.now())
        assert (link.now().tau, link.unsaid) == (0.7, 1)
        ahead_s = 601.0
        assert (link.now().tau, link.now().omega) == (0.0, 1.0)
        nats_server.start()
        late = await ack(bus, tau=0.0, omega=1.0, target_revision=revision)
        assert "within its lease of 600 s: back to safe τ 0, ω 1" in (late.error or "")
        await bus.renew("dynamo", revision or 0, time.time())
        await ack(bus, tau=0.7, omega=2.0, error=None)
    finally:
        await ending.end([task])
        await link.close()


async def test_an_answer_older_than_what_was_heard_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that comes while the bucket is being read stays in force, and is not undone until the next look."""
    link = Link("nats://127.0.0.1:1", {}, "dynamo", "router-1", Held(), V0.said)
    old, new = (msgspec.json.encode(wanted(tau=tau, decided_at=time.time())) for tau in (0.25, 0.5))

    class Bucket:
        async def get_msg(self, stream: str, subject: str) -> RawStreamMsg:
            if subject.endswith(".target"):
                link._take("dynamo.target", new, 11, None)
                return RawStreamMsg(subject=subject, seq=10, data=old)
            raise NotFoundError

    monkeypatch.setattr(link._client, "jetstream", lambda timeout: Bucket())
    await link._look()
    assert (link.now().tau, link.now().revision) == (0.5, 11)


async def _true(answer: bool) -> bool:
    return answer
