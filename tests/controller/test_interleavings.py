"""A thousand short nights: operators, expiries, restarts, replays and stale reads in any order, against a real bucket."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from nats.aio.msg import Msg

from controller.bus import Bus, Refused, Submitted, connect
from controller.loop import Controller, Ear
from controller.policy import Signal
from controller.protocol import REGIMES, REVISION_HEADER, Arming, Decision, Intent, Target, intent_key, name
from tests.conftest import NatsServer

T = TypeVar("T")
EXAMPLES = 1000


class Said(Ear):
    """What the pulse said, at once and without a pulse."""

    said: Signal | None = None

    def signal(self, deployment: str) -> Signal | None:
        return self.said


@dataclass
class Trail:
    """What a collector hears of one deployment, in its order."""

    intents: list[tuple[int, Intent]] = field(default_factory=list)
    targets: list[tuple[int, Target]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)


class World:
    """One server, two operators' connections, the controllers', and one that listens."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.stack = contextlib.AsyncExitStack()
        self.trails: dict[str, Trail] = {}
        self.numbers = count()
        self.operators: tuple[Bus, Bus]
        self.controllers: Bus
        self.do(self._open(url))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def _open(self, url: str) -> None:
        first, second, self.controllers, self.ear = [await self.stack.enter_async_context(connect(url)) for _ in range(4)]
        self.operators = first, second
        await first.intent("nobody")
        await self.ear.hear("poascope-kv.>", self._stored)
        await self.ear.hear("poascope.*.decision", self._decided)
        await self.ear.client.flush()

    def _stored(self, message: Msg) -> None:
        _, deployment, kind = message.subject.split(".")[:3]
        trail, revision = self.trails[name(deployment)], int((message.headers or {})[REVISION_HEADER])
        if kind == "intent":
            trail.intents.append((revision, msgspec.json.decode(message.data, type=Intent)))
        elif kind == "target":
            trail.targets.append((revision, msgspec.json.decode(message.data, type=Target)))

    def _decided(self, message: Msg) -> None:
        self.trails[name(message.subject.split(".")[1])].decisions.append(msgspec.json.decode(message.data, type=Decision))

    async def settle(self) -> None:
        """Everything that was said has been heard."""
        for bus in (*self.operators, self.controllers, self.ear):
            await bus.client.flush()

    def close(self) -> None:
        self.do(self.stack.aclose())
        self.loop.close()


who = st.sampled_from([0, 1])
wishes = st.one_of(
    st.tuples(st.just("manual"), st.sampled_from([0.2, 0.5, 1.5]), st.sampled_from([0.0, 2.0])),
    st.sampled_from([("freeze", None, None), ("auto", None, None)]),
)
spans_s = st.sampled_from([330.0, 700.0, 1800.0])


class Night(RuleBasedStateMachine):
    """`seen`: the revision each operator believes in; `taken`: what the bucket took from them; `forged`: what came in past them."""

    world: ClassVar[World]

    @initialize(regime=st.sampled_from([None, *REGIMES]), armed=st.booleans())
    def begin(self, regime: str | None, armed: bool) -> None:
        self.deployment = f"night-{next(self.world.numbers)}"
        self.trail = self.world.trails[self.deployment] = Trail()
        self.ahead_s = 0.0
        self.seen = [0, 0]
        self.asked: list[Intent] = []
        self.taken: dict[int, Intent] = {}
        self.forged: set[int] = set()
        self.judged: set[int] = set()
        self.refused: list[str] = []
        self.keys = count()
        self.ear = Said((self.deployment,), self.clock)
        self.restart()
        self.hear(regime, False)
        if armed:
            arming = Arming(armed=True, reason="r", operator="o", idempotency_key="a", expected_revision=0)
            self.world.do(self.world.operators[0].put_arming(self.deployment, arming, self.clock()))

    def clock(self) -> float:
        return time.time() + self.ahead_s

    def wish(self, operator: int, wish: tuple[str, float | None, float | None], span_s: float) -> Intent:
        mode, tau, omega = wish
        asked = Intent(
            mode=mode,  # type: ignore[arg-type]
            tau=tau,
            omega=omega,
            reason="r",
            operator=("ann", "bob")[operator],
            idempotency_key=f"k{next(self.keys)}",
            expected_revision=self.seen[operator],
            expires_at=None if mode == "auto" else self.clock() + span_s,
        )
        self.asked.append(asked)
        return asked

    async def submit(self, operator: int, *asked: Intent) -> list[Submitted[Intent]]:
        """All at once; the bus of one operator for the first, of the other for the second."""
        done = await asyncio.gather(
            *(self.world.operators[(operator + n) % 2].put_intent(self.deployment, one, self.clock()) for n, one in enumerate(asked)),
            return_exceptions=True,
        )
        won = []
        for one, result in zip(asked, done, strict=True):
            if isinstance(result, Refused):
                self.refused.append(one.operator)
            elif isinstance(result, BaseException):
                raise result
            else:
                won.append(result)
                if result.first:
                    assert result.revision not in self.taken
                    self.taken[result.revision] = one
        return won

    @property
    def latest(self) -> int:
        return max([0, *self.taken, *self.forged])

    @rule(operator=who)
    def look(self, operator: int) -> None:
        self.seen[operator] = self.latest

    @rule(operator=who, wish=wishes, span_s=spans_s)
    def press(self, operator: int, wish: tuple[str, float | None, float | None], span_s: float) -> None:
        fresh = self.seen[operator] == self.latest
        won = self.world.do(self.submit(operator, self.wish(operator, wish, span_s)))
        assert len(won) == fresh, "taken if, and only if, its operator saw the newest"

    @rule(operator=who, wish=wishes, span_s=spans_s)
    def double_click(self, operator: int, wish: tuple[str, float | None, float | None], span_s: float) -> None:
        fresh, asked = self.seen[operator] == self.latest, self.wish(operator, wish, span_s)
        won = self.world.do(self.submit(operator, asked, asked))
        assert [len(won), sum(one.first for one in won), len({one.revision for one in won})] == ([2, 1, 1] if fresh else [0, 0, 0])

    @rule(wishes=st.tuples(wishes, wishes), span_s=spans_s)
    def both_press_at_once(self, wishes: tuple[tuple[str, float | None, float | None], ...], span_s: float) -> None:
        fresh = sum(seen == self.latest for seen in self.seen)
        won = self.world.do(self.submit(0, self.wish(0, wishes[0], span_s), self.wish(1, wishes[1], span_s)))
        assert len(won) == min(fresh, 1), "one winner"

    @rule(data=st.data())
    def reload_and_repeat(self, data: st.DataObject) -> None:
        """The browser sends again what it sent before: what was taken stays taken once, what was refused is judged anew."""
        if not self.asked:
            return
        asked = data.draw(st.sampled_from(self.asked))
        before, fresh = asked in self.taken.values(), asked.expected_revision == self.latest
        alive = asked.expires_at is None or asked.expires_at - self.clock() >= 299
        won = self.world.do(self.submit(0, asked))
        assert [one.first for one in won] == ([False] if before else [True] if fresh and alive else [])

    @rule(data=st.data(), new_key=st.booleans())
    def replay(self, data: st.DataObject, new_key: bool) -> None:
        """Somebody with a copy of an intent puts it straight into the bucket, as it was or as if it were another."""
        if not self.taken:
            return
        copied = self.taken[data.draw(st.sampled_from(sorted(self.taken)))]
        if new_key:
            copied = msgspec.structs.replace(copied, idempotency_key=f"k{next(self.keys)}")

        async def put() -> int:
            kv = await self.world.operators[1].client.jetstream().key_value("poascope")
            return await kv.put(intent_key(self.deployment), msgspec.json.encode(copied))

        self.forged.add(self.world.do(put()))

    @rule(regime=st.sampled_from([None, "unknown", *REGIMES]), stale=st.booleans())
    def hear(self, regime: str | None, stale: bool) -> None:
        self.ear.said = regime and Signal(self.clock() - (60 if stale else 1), regime, 1.0)  # type: ignore[assignment]

    @rule(span_s=st.sampled_from([25.0, 290.0, 340.0, 1900.0]))
    def wait(self, span_s: float) -> None:
        self.ahead_s += span_s

    @rule()
    def restart(self) -> None:
        self.pair = [Controller(self.world.controllers, self.ear, clock=self.clock) for _ in range(2)]

    @rule(both=st.booleans())
    def turn(self, both: bool) -> None:
        """The controller looks; or two of them do at once, and one of both reads what the other has just overwritten."""

        async def turns() -> Target | None:
            await asyncio.gather(*(one.turn() for one in self.pair[: 1 + both]))
            return (await self.world.controllers.target(self.deployment)).value

        target, now = self.world.do(turns()), self.clock()
        self.judged.add(self.latest)
        if target is None or target.mode == "auto":
            newest = self.taken.get(self.latest)
            wanted = newest is not None and newest.expires_at is not None and newest.expires_at > now
            assert not wanted or (newest is not None and newest.mode == "freeze" and target is None), "what is wanted is in force"
            return
        assert target.expires_at is not None
        assert target.expires_at > now, "no override beyond its end"
        assert target.intent_revision in self.taken, "a forged intent is never followed"
        wish = self.taken[target.intent_revision]
        assert (target.mode, target.expires_at) == (wish.mode, wish.expires_at)
        assert wish.mode == "freeze" or (target.tau, target.omega) == (wish.tau, wish.omega)
        assert target.intent_revision == max(self.taken), "nothing that was overtaken"

    def teardown(self) -> None:
        if not hasattr(self, "trail"):
            return
        self.turn(False)  # the controller is back, whatever happened
        self.ahead_s += 8 * 3600
        self.turn(False)
        self.world.do(self.world.settle())
        trail = self.world.trails.pop(self.deployment)
        revisions = [revision for revision, _ in trail.intents]
        assert revisions == sorted(self.taken | dict.fromkeys(self.forged)), "every intent is in the trail once, in order"
        assert all(self.taken[revision] == intent for revision, intent in trail.intents if revision in self.taken)
        written = [revision for revision, _ in trail.targets]
        assert written == sorted(set(written))
        assert all(a.decided_at <= b.decided_at for (_, a), (_, b) in pairwise(trail.targets))
        applied = [target.intent_revision or 0 for _, target in trail.targets if target.mode != "auto"]
        assert applied == sorted(set(applied)), "each override was applied once, in the order of the intents"
        refusals = [d.actor for d in trail.decisions if d.kind == "refusal" and "written over" not in d.why and "used before" not in d.why]
        assert sorted(refusals) == sorted(self.refused), "every refusal is in the trail once"
        told = {d.revision for d in trail.decisions if d.kind == "refusal"}
        assert self.forged & self.judged <= told, "and so is every forgery that a controller met"
        expiries = sum(d.kind == "expiry" for d in trail.decisions)
        assert expiries == sum("expired" in target.why for _, target in trail.targets), "and every end"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    server = NatsServer(tmp_path / "jetstream")
    server.start()
    world = World(server.url)
    yield world
    world.close()
    server.kill()


def test_one_winner_and_a_whole_trail_in_a_thousand_nights(world: World) -> None:
    """Whatever the order: nothing is applied twice, stale or beyond its end, and the trail has all of it in order."""
    Night.world = world
    few = settings(
        max_examples=EXAMPLES,
        stateful_step_count=10,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Night, settings=few)  # type: ignore[no-untyped-call]
    assert next(world.numbers) >= EXAMPLES
