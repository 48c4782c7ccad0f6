"""The controller: every 5 s, and at once on an intent, it writes what should be in force, or says why nothing changes.

It keeps nothing that a restart would lose: intents and targets are read from the bucket each time, so an expiry survives it.
"""

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec
from nats.aio.msg import Msg

from controller.bus import Bus, Stored
from controller.policy import Config, Hold, Observation, Signal, Wanted, decide
from controller.protocol import Decision, Intent, complaint, name
from poascope.errors import Unreachable

log = logging.getLogger("poascope.control")

INTERVAL_S = 5.0
HEARD_FOR_S = 60.0
CLOCK_SLACK_S = 60.0  # between an operator's machine and the NATS server
ACTOR = "controller"
HELD = "regime: "  # the pulse's note in `quality` when it did not judge the regime anew


class _Pulse(msgspec.Struct, frozen=True):
    """The fields of a `signals` message that the policy reads."""

    ts: float
    deployment: str
    regime: str | None = None
    ttft_ewma_s: float | None = None
    quality: list[str] | None = None


class Ear:
    """The newest signals of each deployment that is heard, of those named in the settings if any are."""

    def __init__(self, namespaces: tuple[str, ...], clock: Callable[[], float] = time.time) -> None:
        self.namespaces, self.clock = namespaces, clock
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
            self._heard[said.deployment] = self.clock(), Signal(said.ts, said.regime, said.ttft_ewma_s, held)

    def signal(self, deployment: str) -> Signal | None:
        return self._heard[deployment][1] if deployment in self._heard else None

    def heard(self) -> tuple[str, ...]:
        now = self.clock()
        return tuple(sorted(deployment for deployment, (at, _) in self._heard.items() if now - at <= HEARD_FOR_S))


class Controller:
    """Decides for every deployment that is heard, or that has an intent or a target in the bucket."""

    def __init__(self, bus: Bus, ear: Ear, config: Config | None = None, clock: Callable[[], float] = time.time) -> None:
        self.bus, self.ear, self.clock = bus, ear, clock
        self.config = config or Config()
        self._turn = asyncio.Lock()
        self._held: dict[str, str] = {}
        self._refused: dict[str, int] = {}
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
            elif changed := {name(key.removesuffix(".intent")) for key in keys if key.endswith(".intent")}:
                await self.turn(changed)

    async def _on_time(self) -> None:
        while True:
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
        intent, target = await self.bus.intent(deployment), await self.bus.target(deployment)
        wanted = await self._wanted(deployment, intent, now)
        decided = decide(Observation(now, self.ear.signal(deployment), wanted), self.config, target.value)
        in_force = target.value
        if isinstance(decided, Hold):
            await self._hold(deployment, decided, now)
        else:
            in_force = decided.target
            revision = await self.bus.put_target(deployment, in_force, target.revision)
            if revision is None:
                log.warning("%s: target - another controller wrote it in this moment", deployment)
                return
            log.info("%s: %s", deployment, in_force.why)
            self._held.pop(deployment, None)
            if decided.expired:
                await self._say(deployment, Decision(kind="expiry", at=now, actor=ACTOR, why=in_force.why), in_force.intent_revision)
        if in_force and in_force.expires_at and in_force.expires_at > now:
            self._ends[deployment] = in_force.expires_at
        else:
            self._ends.pop(deployment, None)

    async def _wanted(self, deployment: str, intent: Stored[Intent], now: float) -> Wanted | None:
        if intent.problem is None and intent.value is None:
            return None
        why = intent.problem or (intent.value and complaint(intent.value, intent.at or now, CLOCK_SLACK_S)) or None
        if why and self._refused.get(deployment) != intent.revision:
            actor = intent.value.operator if intent.value else "unknown"
            await self._say(deployment, Decision(kind="refusal", at=now, actor=actor, why=why), intent.revision)
            self._refused[deployment] = intent.revision
        return Wanted(intent.revision, intent.value, why)

    async def _hold(self, deployment: str, hold: Hold, now: float) -> None:
        """Holds that withhold something are said once, and so is their end."""
        reason = "" if hold.in_order else hold.reason
        if reason != self._held.get(deployment, ""):
            await self._say(deployment, Decision(kind="hold", at=now, actor=ACTOR, why=hold.why), None)
            self._held[deployment] = reason

    async def _say(self, deployment: str, decision: Decision, revision: int | None) -> None:
        target = (await self.bus.target(deployment)).value
        signal = self.ear.signal(deployment)
        await self.bus.publish(
            deployment,
            msgspec.structs.replace(
                decision,
                mode=target and target.mode,
                regime=signal and signal.regime,
                tau=target and target.tau,
                omega=target and target.omega,
                revision=revision,
            ),
        )
        log.info("%s: %s by %s: %s", deployment, decision.kind, decision.actor, decision.why)
