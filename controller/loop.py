"""The controller: every 5 s, and at once on an intent, it writes what should be in force, or says why nothing changes.

It keeps nothing that a restart would lose: intents and targets are read from the bucket each time, so an expiry survives it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import msgspec
from nats.aio.msg import Msg

from controller.bus import Bus, Stored
from controller.policy import Config, Hold, Observation, Set, Signal, Wanted, decide
from controller.protocol import Arming, Decision, Intent, Target, name
from controller.standing import Standing, standing
from controller.view import view
from poascope import ending
from poascope.errors import Unreachable
from queries.estimators.baseline import read
from queries.estimators.regime import THRESHOLDS_S

log = logging.getLogger("poascope.control")

INTERVAL_S = 5.0
HEARD_FOR_S = 60.0
ACTOR = "controller"
HELD = "regime: "  # the pulse's note in `quality` when it did not judge the regime anew


class _Pulse(msgspec.Struct, frozen=True):
    """The fields of a `signals` message that the policy reads."""

    ts: float
    deployment: str
    regime: str | None = None
    ttft_ewma_s: float | None = None
    ttft_p99_s: float | None = None
    quality: list[str] | None = None


class Ear:
    """The newest signals of each deployment that is heard, of those named in the settings if any are.

    `preset`: whose thresholds the pulse uses, where it does not say that it learnt its own.
    """

    def __init__(self, namespaces: tuple[str, ...], clock: Callable[[], float] = time.time, preset: str = "70b") -> None:
        self.namespaces, self.clock, self.preset = namespaces, clock, preset
        self._heard: dict[str, tuple[float, Signal]] = {}

    async def listen(self, bus: Bus) -> None:
        await bus.hear("poascope.*.signals", self._note)

    def _note(self, message: Msg) -> None:
        try:
            said = msgspec.json.decode(message.data, type=_Pulse)
        except msgspec.DecodeError as error:
            log.warning("signals: %s - cannot be read (%s)", message.subject, error)
            return
        if not self.namespaces or said.deployment in self.namespaces:
            held = next((note.removeprefix(HELD) for note in said.quality or () if note.startswith(HELD)), None)
            learnt = next(filter(None, map(read, said.quality or ())), None)
            thresholds = learnt or THRESHOLDS_S.get(self.preset)
            signal = Signal(said.ts, said.regime, said.ttft_ewma_s, held, said.ttft_p99_s, thresholds)
            self._heard[said.deployment] = self.clock(), signal

    def signal(self, deployment: str) -> Signal | None:
        return self._heard[deployment][1] if deployment in self._heard else None

    def heard(self) -> tuple[str, ...]:
        now = self.clock()
        return tuple(sorted(deployment for deployment, (at, _) in self._heard.items() if now - at <= HEARD_FOR_S))


class Controller:
    """Decides for every deployment that is heard, or that has a key in the bucket."""

    def __init__(self, bus: Bus, ear: Ear, config: Config | None = None, clock: Callable[[], float] = time.time) -> None:
        self.bus, self.ear, self.clock = bus, ear, clock
        self.config = config or Config()
        self._turn = asyncio.Lock()
        self._held: dict[str, tuple[str, tuple[float, float] | None]] = {}
        self._intents: dict[str, tuple[Stored[Intent], Standing[Intent]]] = {}
        self._armings: dict[str, tuple[Stored[Arming], Standing[Arming]]] = {}
        self._ends: dict[str, float] = {}
        self._away = False
        self._turned_at: float | None = None

    async def run(self) -> None:
        """Until cancelled. Without NATS nothing changes; when it is back the loop goes on from what the bucket says."""
        await self.bus.answer_pings(lambda: self._turned_at)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._on_change())
            tasks.create_task(self._on_time())

    async def _on_change(self) -> None:
        async for keys in self.bus.watch():
            if keys is None:
                await self.turn()
            elif changed := {name(key.split(".")[0]) for key in keys if key.endswith((".intent", ".armed"))}:
                await self.turn(changed)
            if ending.asked():
                return

    async def _on_time(self) -> None:
        while not ending.asked():
            await self.turn()
            ahead = [left for end in self._ends.values() if (left := end - self.clock()) > 0]
            await asyncio.sleep(max(0.05, min([INTERVAL_S, *ahead])))

    async def turn(self, only: set[str] | None = None) -> None:
        """Decide once for each deployment, or for those in `only`."""
        async with self._turn:
            try:
                known = self.ear.namespaces or {*self.ear.heard(), *await self.bus.deployments()}
                for deployment in sorted(known):
                    if only is None or deployment in only:
                        await self._decide(deployment)
            except Unreachable as error:
                if not self._away:
                    log.warning("%s; what is in force stays", error)
                self._away = True
            else:
                if self._away:
                    log.info("NATS: %s - back", self.bus.url)
                self._away = False
                self._turned_at = self.clock()

    async def _decide(self, deployment: str) -> None:
        now = self.clock()
        intent, target, arming = await self.bus.intent(deployment), await self.bus.target(deployment), await self.bus.arming(deployment)
        armed = await self._arming(deployment, arming, now)
        observation = Observation(now, self.ear.signal(deployment), await self._wanted(deployment, intent, now), armed)
        decided = decide(observation, self.config, target.value)
        in_force, revision = target.value, target.revision
        if in_force:
            # Before a new target: an actuator that wakes for it must not find the lease that ran out while no controller was there.
            await self.bus.renew(deployment, revision, now)
        if isinstance(decided, Set):
            in_force, written = decided.target, await self.bus.put_target(deployment, decided.target, target.revision)
            if written is None:
                log.warning("%s: target - another controller wrote it in this moment", deployment)
                return
            revision = written
            log.info("%s: %s", deployment, in_force.why)
            self._held.pop(deployment, None)
        if isinstance(decided, Hold):
            await self._hold(deployment, decided, observation, in_force)
        elif decided.expired:
            expiry = Decision(kind="expiry", at=now, actor=ACTOR, why=decided.target.why, revision=decided.target.intent_revision)
            await self._say(deployment, expiry, observation, in_force)
        if in_force and in_force.expires_at and in_force.expires_at > now:
            self._ends[deployment] = in_force.expires_at
        else:
            self._ends.pop(deployment, None)
        next_at = min(now + INTERVAL_S, self._ends.get(deployment, now + INTERVAL_S))
        revisions = (revision if in_force else 0, arming.revision)
        await self.bus.publish_loop(deployment, view(observation, self.config, decided, in_force, revisions, next_at))

    async def _wanted(self, deployment: str, newest: Stored[Intent], now: float) -> Wanted | None:
        """The intent that counts. The history is judged, and refusals are said, once for each newest revision."""
        known = self._intents.get(deployment)
        if known is None or known[0] != newest:
            entries, said = await self.bus.intents(deployment), known[1].refused if known else {}
            judged = standing(entries)
            await self._refuse(deployment, entries, {r: why for r, why in judged.refused.items() if r not in said}, now, "")
            known = self._intents[deployment] = newest, judged
        entry = known[1].entry
        if entry is None and known[1].refused:
            return Wanted(newest.revision, None, known[1].refused.get(newest.revision, "refused"))
        return Wanted(entry.revision, entry.value) if entry and entry.value else None

    async def _arming(self, deployment: str, newest: Stored[Arming], now: float) -> bool:
        known = self._armings.get(deployment)
        if known is None or known[0] != newest:
            entries, said = await self.bus.armings(deployment), known[1].refused if known else {}
            judged = standing(entries)
            await self._refuse(deployment, entries, {r: why for r, why in judged.refused.items() if r not in said}, now, "arming: ")
            known = self._armings[deployment] = newest, judged
        entry = known[1].entry
        return bool(entry and entry.value and entry.value.armed)

    async def _refuse(
        self, deployment: str, entries: Sequence[Stored[Intent] | Stored[Arming]], refused: dict[int, str], now: float, what: str
    ) -> None:
        operators = {entry.revision: entry.value.operator for entry in entries if entry.value}
        for revision, why in refused.items():
            actor = operators.get(revision, "unknown")
            refusal = Decision(kind="refusal", at=now, actor=actor, why=what + why, revision=revision)
            await self._say(deployment, refusal, None, None)

    async def _hold(self, deployment: str, hold: Hold, observation: Observation, in_force: Target | None) -> None:
        """Holds that withhold something are said once, and so is their end."""
        held = ("", None) if hold.in_order else (hold.reason, hold.would)
        if held != self._held.get(deployment, ("", None)):
            decision = Decision(kind="dry run" if hold.would else "hold", at=observation.now, actor=ACTOR, why=hold.why)
            await self._say(deployment, decision, observation, in_force, hold.would)
            self._held[deployment] = held

    async def _say(
        self,
        deployment: str,
        decision: Decision,
        observation: Observation | None,
        in_force: Target | None,
        would: tuple[float, float] | None = None,
    ) -> None:
        tau, omega = would or ((in_force.tau, in_force.omega) if in_force else (None, None))
        regime = observation.signal.regime if observation and observation.signal else None
        said = msgspec.structs.replace(decision, mode=in_force and in_force.mode, regime=regime, tau=tau, omega=omega)
        await self.bus.publish(deployment, said)
        log.info("%s: %s by %s: %s", deployment, decision.kind, decision.actor, decision.why)
