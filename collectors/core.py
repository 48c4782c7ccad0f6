"""The whole of ingestion as one pure object: messages and a clock in, rows and signals out. `collect` and `import` drive the same one."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from collectors.assemble import Finished
from collectors.control import Decisions, incident_row
from collectors.deployment import Deployment, Routed, blocks_of, metrics_of
from collectors.loss import LossMeter, Stream
from collectors.metrics import Raw, parse_series, parse_text
from collectors.profiles import Profiles
from collectors.rows import Rows
from collectors.targets import Targets
from collectors.wire import Added, Control, Deleted, Event, Freed, HitRate, KvChange, Load, Marked, Message, Step, Unreadable, decode
from collectors.wire import Routed as Said
from poascope.settings import Settings
from queries.estimators.alarm import Alarm
from queries.games import EVERY_S as GAMES_EVERY_S
from queries.games import games
from queries.memory import Memory
from queries.signals import pulse
from queries.window import Window

MAX_DEPLOYMENTS = 64
ROOM_AFTER_S = 60.0
MAX_CATCH_UP_S = 120
REMEMBERED_EVENTS = 8192
MAX_PUBLISHERS = 4096
SILENT_S = 3600.0
# A time further off than this says nothing of the clock that it came from.
MAX_CLOCK_OFF_S = 10 * 365 * 86_400.0
FORGET_EVERY_S, TARGET_FORGOTTEN_S = 60, 600.0
TOLD_WITHIN_S = 3.0


class _Clock:
    """A publisher's time on the receiver's clock: the least delay of the last minutes is taken for the difference of the clocks.

    A message that came much later than that is a clock that was set back, and starts the search anew: a mere delay is then
    found again by the messages after it, a clock set forward by the least delay itself. `steps` counts the new starts.
    """

    SPAN_S = 120.0
    STEP_S = 5.0

    def __init__(self) -> None:
        self.since, self.floor, self.before = -math.inf, math.inf, math.inf
        self.steps = 0

    def aligned(self, received_at: float, published_at: float) -> float:
        delay = received_at - published_at
        if received_at - self.since > self.SPAN_S:
            self.since, self.before, self.floor = received_at, self.floor, delay
        elif delay - min(self.floor, self.before) > self.STEP_S:
            self.since, self.before, self.floor = received_at, math.inf, delay
            self.steps += 1
        self.floor = min(self.floor, delay)
        return published_at + min(self.floor, self.before)


class Core:
    """Feed what arrives with the time it was received; call `advance` before each message and on a timer.

    Nothing a wire brings raises; what cannot be used is counted in `counters`. Everything kept is bounded.
    """

    def __init__(self, config: Settings) -> None:
        self.config = config
        self.rows = Rows()
        self.counters: Counter[tuple[str, str, str]] = Counter()
        self.deployments: dict[str, Deployment] = {}
        self.targets = Targets()
        self.profiles = Profiles(config.profiles)
        self.decisions = Decisions()
        self.seen: Callable[[Window], None] = lambda window: None  # told of each window that a pulse looks at
        self.alarms: dict[str, Alarm] = {}  # of deployments that are not there yet, or not any more
        self._loss = LossMeter()
        self._clocks: dict[int, _Clock] = {}
        self._kv_seen: dict[tuple[str, tuple[int, int]], dict[int, None]] = {}
        self._untold: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}  # by deployment and request
        self._tick: int | None = None

    # -- in

    def feed_nats(self, received_at: float, subject: str, data: bytes) -> None:
        message = decode(subject, data)
        if isinstance(message, Unreadable):
            self._count("unreadable", message.pattern, message.reason)
            return
        if self.config.namespaces and message.deployment not in self.config.namespaces:
            self._count("other namespace", message.topic, "")
            return
        self._count("messages", message.topic, "")
        if message.topic in ("signals", "loop", "lease"):
            return
        if message.topic == "routed":
            for event in message.events:
                if isinstance(event, Said):
                    self.profiles.said(event.request_id, event.tau, event.omega)
                    self._told(message.deployment, event)
            return
        if isinstance(message.events[0] if message.events else None, Control | Deleted):
            for event in message.events:
                if isinstance(event, Control | Deleted):
                    self._control(received_at, message.deployment, event)
            return
        deployment = self.deployments.get(message.deployment)
        if deployment is None:
            if len(self.deployments) >= MAX_DEPLOYMENTS and not self._made_room(received_at):
                self._count("too many deployments", message.topic, "")
                return
            deployment = self.deployments[message.deployment] = Deployment(message.deployment, self.config)
            deployment.mode = self.decisions.modes.get(message.deployment)
            if message.deployment in self.alarms:
                deployment.memory = Memory(alarm=self.alarms.pop(message.deployment))
        at = self._event_time(received_at, message)
        deployment.events_as_of = max(deployment.events_as_of or 0.0, received_at)
        if message.publisher is not None and message.sequence is not None:
            self._loss.heard(self._stream(deployment, subject, message), message.sequence, received_at)
        for event in message.events:
            self._apply(deployment, message, event, at, received_at)

    def feed_metrics(self, received_at: float, target: str, text: str) -> None:
        """One target's exposition text."""
        try:
            samples = parse_text(text)
        except ValueError as error:
            self._count("unreadable", f"metrics:{target}", str(error)[:80])
            return
        self.feed_samples(received_at, target, samples)

    def feed_samples(self, received_at: float, target: str, samples: Iterable[Raw]) -> None:
        """One target's samples as (name, labels, value), from its own text or from a Prometheus server."""
        gauges, histograms = parse_series(samples)
        self._count("scrapes", target, "")
        self.targets.feed(received_at, target, gauges, histograms)
        for gauge in gauges:
            self.rows.put("metric_samples", ts=received_at, target=target, name=gauge.name, labels=gauge.labels, value=gauge.value)
        for h in histograms:
            self.rows.put(
                "histogram_samples",
                ts=received_at,
                target=target,
                name=h.name,
                labels=h.labels,
                le=list(h.le),
                counts=list(h.counts),
                total=h.total,
            )
        self.profiles.read(target, received_at, self.targets.readings)

    def gap(self, source: str, kind: str, since: float, until: float | None, count: int | None, deployment: str | None = None) -> None:
        """Something was not heard: a row of `gaps`, and a mark on the windows it touches. For the edge: disconnects, drops."""
        self.rows.put("gaps", source=source, kind=kind, **{"from": since, "to": until}, count=count, deployment=deployment)
        for one in self.deployments.values():
            if deployment in (None, one.name):
                one.losses.append((until if until is not None else since, count or 1))

    def recall(self, at: float, deployment: str, event: Event) -> None:
        """A control message that the store already has as a row: only what it put in force is learnt."""
        if isinstance(event, Control | Deleted):
            self.decisions.row(at, deployment, event)
            self._in_force(deployment)

    def count(self, what: str, reason: str) -> None:
        """Something the edge noticed, added to the counters."""
        self._count(what, reason, "")

    # -- time

    def advance(self, now: float) -> list[dict[str, Any]]:
        """Everything due by `now`: losses, and for each whole second passed one row of `signals` a deployment; returns these rows."""
        if self._tick is None:
            self._tick = math.floor(now)
            return []
        if now < self._tick + 1:
            return []
        last = math.floor(now)
        if last - self._tick > MAX_CATCH_UP_S:
            self.gap("clock", "stalled", float(self._tick), float(last), None)
            self._tick = last - 1
        signals: list[dict[str, Any]] = []
        while self._tick < last:
            self._tick += 1
            signals += self._second(float(self._tick))
        return signals

    def _second(self, now: float) -> list[dict[str, Any]]:
        for loss in self._loss.advance(now):
            name, source = loss.stream.deployment, f"events:{loss.stream.subject}"
            self._count("lost", source, "", loss.count)
            self.gap(source, "lost", loss.since, loss.until, loss.count, name)
        if now % FORGET_EVERY_S == 0:
            self.targets.forget(now - TARGET_FORGOTTEN_S)
        signals = []
        self._give_up_untold(now - TOLD_WITHIN_S)
        for deployment in list(self.deployments.values()):
            if deployment.events_as_of is not None and now - deployment.events_as_of > SILENT_S and not deployment.assembler.open:
                self._forget(deployment)
                continue
            for finished in deployment.assembler.advance(now) + deployment.assembler.lose_if(now, deployment.forsaken(now)):
                self._ended(deployment, finished)
            for component, worker in deployment.gone(now):
                self._worker_gone(deployment, component, worker, now)
            deployment.forget(now)
            signals.append(self._pulse(deployment, now))
            self._workers(deployment, now)
        return signals

    def _worker_gone(self, deployment: Deployment, component: str, worker: tuple[int, int], now: float) -> None:
        lost = deployment.assembler.lose_worker(now, worker)
        for finished in lost:
            self._ended(deployment, finished)
        since = deployment.reported.pop(worker, now)
        deployment.worker_seen.pop((component, worker), None)
        deployment.asked.pop(worker, None)
        deployment.prefixes.drop(worker)  # what it held nobody can be sent to any more
        # No event was missed, so this is no gap in the windows; it says since when the worker is gone.
        place = {"source": f"worker:{component}:{worker[0]}:{worker[1]}", "deployment": deployment.name}
        self.rows.put("gaps", **place, kind="worker gone", **{"from": since, "to": now}, count=len(lost))

    def _pulse(self, deployment: Deployment, now: float) -> dict[str, Any]:
        targets = self._targets(deployment.name)
        metrics = metrics_of(deployment, self.targets.readings, targets, now, 3 * self.config.scrape_interval_s)
        window = deployment.window(now, self.targets.block_tokens(targets), metrics, self.profiles.profile)
        self.seen(window)
        row, deployment.memory = pulse(window, deployment.memory, self.config)
        deployment.regime = row.get("regime")
        self.rows.put("signals", **row)
        if now % GAMES_EVERY_S == 0:
            played, loads = games(window, row, deployment.memory, self.config)
            self.rows.put("games", **played)
            for load in loads:
                self.rows.put("game_loads", **load)
        for said in deployment.memory.alarm.said:
            self.rows.put("alarms", deployment=deployment.name, signal=deployment.memory.alarm.signal, **asdict(said))
        return row

    def _workers(self, deployment: Deployment, now: float) -> None:
        for component, worker in list(deployment.worker_seen):
            role = deployment.assembler.role(component)
            count = deployment.assembler.inflight[component, worker]
            place = {"ts": now, "deployment": deployment.name, "component": component, "role": role}
            self.rows.put("workers", **place, worker_id=worker[0], dp_rank=worker[1], source="events", inflight=count)
        for (worker, source), latest in deployment.loads.items():
            where = latest.component or deployment.component_of.get(worker)
            if latest.changed and where is not None:
                latest.changed = False
                role = deployment.assembler.role(where)
                place = {"ts": now, "deployment": deployment.name, "component": where, "role": role}
                self.rows.put("workers", **place, worker_id=worker[0], dp_rank=worker[1], source=source, **latest.fields)

    # -- out

    def take(self) -> dict[str, pa.Table]:
        """Rows for the writer, one Arrow table for each table that has any. Those that no table holds are a gap in the next ones."""
        tables = self.rows.take()
        refused, self.rows.refused = self.rows.refused, {}
        for table, count in refused.items():
            self._count("refused", table, "", count)
            self.gap(f"store:{table}", "refused", float(self._tick or 0), None, count)
        return tables

    def finish(self) -> int:
        """Settle what only waits for its grace, at the end of a recording; returns how many requests were still under way."""
        for deployment in self.deployments.values():
            for finished in deployment.assembler.close():
                self._ended(deployment, finished)
        self._give_up_untold(math.inf)
        return sum(len(d.assembler.open) for d in self.deployments.values())

    def counts(self) -> dict[str, int]:
        """Every counter, as `what:subject:reason`, for /readyz and the end of an import."""
        counts = {":".join(part for part in key if part): n for key, n in self.counters.items()}
        for deployment in self.deployments.values():
            counts |= {f"requests:{what}:{deployment.name}": n for what, n in deployment.assembler.counters.items()}
        return counts | {"rows:dropped": self.rows.dropped}

    # -- inside

    def _count(self, what: str, subject: str, reason: str, by: int = 1) -> None:
        key = (what, subject, reason)
        if key not in self.counters and len(self.counters) > 1000:
            key = (what, "other", "")
        self.counters[key] += by

    def _made_room(self, now: float) -> bool:
        """Forget the namespace that is heard least of those without requests: never routed in, or silent for a minute."""
        idle = [
            d for d in self.deployments.values() if not d.assembler.open and (d.routing_at is None or d.routing_at < now - ROOM_AFTER_S)
        ]
        if not idle:
            return False
        self._forget(min(idle, key=lambda d: (d.routing_at or 0.0, d.events_as_of or 0.0)))
        return True

    def _forget(self, deployment: Deployment) -> None:
        del self.deployments[deployment.name]
        if deployment.memory is not None and deployment.memory.alarm.baseline is not None:
            self.alarms[deployment.name] = deployment.memory.alarm
            if len(self.alarms) > MAX_DEPLOYMENTS:
                self.alarms.pop(next(iter(self.alarms)))

    def _event_time(self, received_at: float, message: Message) -> float:
        if message.publisher is None or message.published_at is None:
            return received_at
        if abs(received_at - message.published_at) > MAX_CLOCK_OFF_S:
            self._count("clock", "years off", "")
            return received_at
        clock = self._clocks.get(message.publisher)
        if clock is None:
            if len(self._clocks) >= MAX_PUBLISHERS:
                self._clocks.pop(next(iter(self._clocks)))
            clock = self._clocks[message.publisher] = _Clock()
        steps = clock.steps
        at = clock.aligned(received_at, message.published_at)
        if clock.steps > steps:
            self._count("clock", "set back or late", "")
        return at

    def _stream(self, deployment: Deployment, subject: str, message: Message) -> Stream:
        # On 0.9 the routers of both pools count separately on one subject: told apart by whose worker they speak of.
        pool = None
        if message.component is None and message.events and isinstance(message.events[0], Load | HitRate):
            pool = deployment.component_of.get(message.events[0].worker, "")
        return Stream(deployment.name, subject, message.publisher, pool)

    def _apply(self, deployment: Deployment, message: Message, event: Event, at: float, received_at: float) -> None:
        component = message.component or ""
        ended: list[Finished] = []
        if not isinstance(event, Control | Deleted | Said):
            deployment.heard_of[event.worker] = received_at
        # The router itself, as far as it can be told: on 0.9 it publishes under its own id, and it alone ends what it began.
        request = deployment.assembler.open.get(event.request_id) if isinstance(event, Marked | Freed) else None
        for router in (message.publisher, request.router_id if request else None):
            if router is not None and router in deployment.routers:
                deployment.routers[router] = received_at
        if isinstance(event, Added | Marked | Freed):
            deployment.routing_at = received_at
        elif (
            isinstance(event, HitRate)
            or (isinstance(event, KvChange) and event.kind == "stored")
            or (isinstance(event, Load) and event.active_decode_blocks)
        ):
            deployment.worked_at = received_at
        match event:
            case Added():
                deployment.saw_worker(component, event.worker, received_at)
                deployment.routed(event.worker, received_at)
                deployment.routers[event.router_id] = received_at
                first = event.request_id not in deployment.assembler.open
                ended = deployment.assembler.add(at, component, event, deployment.regime)
                if first and event.request_id in deployment.assembler.open:
                    self.profiles.routed(event.router_id, received_at, deployment.name)
                    deployment.arrivals.append((at, event.router_id, event.request_id))
            case Marked():
                deployment.marked(component, event, received_at)
                ended = deployment.assembler.mark(at, component, event)
            case Freed():
                ended = deployment.assembler.free(at, component, event)
            case Load():
                # On 0.9 a process speaks under one id for all its workers: only routers are told apart, by what they route.
                own = message.publisher not in deployment.routers if message.component is None else event.kv_used_blocks is not None
                if own:
                    deployment.heard(event.worker, received_at)
                    deployment.idle(event.worker, event.active_decode_blocks, received_at)
                deployment.load(message.component, "worker" if own else "router", event)
            case Step():
                deployment.saw_worker(component, event.worker, received_at)
                deployment.heard(event.worker, received_at)
                deployment.step(at, component, event)
            case KvChange():
                if deployment.assembler.role(component) == "prefill":
                    deployment.heard(event.worker, received_at)
                if message.sequence is None:
                    self._loss.heard(Stream(deployment.name, "kv-events", None, f"{component}:{event.worker}"), event.event_id, received_at)
                self._kv(deployment, component, event, at)
        for finished in ended:
            self._ended(deployment, finished)

    def _kv(self, deployment: Deployment, component: str, event: KvChange, at: float) -> None:
        key = (deployment.name, event.worker)
        seen = self._kv_seen.get(key)
        if seen is None:
            if len(self._kv_seen) >= MAX_PUBLISHERS:
                self._kv_seen.pop(next(iter(self._kv_seen)))
            seen = self._kv_seen[key] = {}
        if event.event_id in seen:
            self._count("copies", "kv-events", "")
            return
        seen[event.event_id] = None
        if len(seen) > REMEMBERED_EVENTS:
            seen.pop(next(iter(seen)))
        deployment.prefixes.change(at, event)
        self.rows.put(
            "kv_events",
            ts=at,
            deployment=deployment.name,
            component=component,
            worker_id=event.worker[0],
            dp_rank=event.worker[1],
            event_id=event.event_id,
            kind=event.kind,
            parent_hash=event.parent_hash,
            block_hashes=list(event.block_hashes),
            tier=event.tier,
        )

    def _control(self, at: float, deployment: str, event: Control | Deleted) -> None:
        if event.kind == "incident":
            row = incident_row(at, deployment, event)
            if row is None:
                self._count("unreadable", "poascope.*.incident", "id, from or to missing")
            else:
                self.rows.put("incidents", **row)
            return
        self.rows.put("decisions", **self.decisions.row(at, deployment, event))
        self._in_force(deployment)

    def _in_force(self, deployment: str) -> None:
        if deployment in self.deployments:
            self.deployments[deployment].mode = self.decisions.modes.get(deployment)

    def _ended(self, deployment: Deployment, finished: Finished) -> None:
        targets = self._targets(deployment.name)
        blocks, overlap = blocks_of(finished, self.targets.block_tokens(targets))
        held, best, cached = deployment.overlaps(finished, overlap)
        overlap = held if overlap is None else overlap
        profile = self.profiles.profile(finished.source.router_id, finished.request_id)
        deployment.ended(Routed(finished, blocks, overlap, profile, best, cached))
        prefill, decode_worker = finished.prefill or (None, None), finished.decode or (None, None)
        row: dict[str, Any] = {
            "deployment": deployment.name,
            "request_id": finished.request_id,
            "model": self.targets.model(targets),
            "prefill_worker": prefill[0],
            "prefill_dp_rank": prefill[1],
            "decode_worker": decode_worker[0],
            "decode_dp_rank": decode_worker[1],
            "arrived_at": finished.arrived_at,
            "prefill_done_at": finished.prefill_done_at,
            "decode_started_at": finished.decode_started_at,
            "first_token_at": finished.first_token_at,
            "finished_at": finished.finished_at,
            "input_blocks": blocks,
            "overlap_blocks": overlap,
            "prefill_inflight": finished.prefill_inflight,
            "decode_inflight": finished.decode_inflight,
            "tau": profile.tau if profile else None,
            "omega": profile.omega if profile else None,
            "regime": finished.source.regime,
            "outcome": "lost" if finished.lost else "finished",
        }
        if profile is None and deployment.tells:
            # Its router's word comes on another connection, and may be overtaken by the whole of a short request.
            self._untold[deployment.name, finished.request_id] = self._tick or 0, row
        else:
            self.rows.put("requests", **row)

    def _told(self, deployment: str, said: Said) -> None:
        if deployment in self.deployments:
            self.deployments[deployment].tells = True
        if waiting := self._untold.pop((deployment, said.request_id), None):
            self.rows.put("requests", **waiting[1] | {"tau": said.tau, "omega": said.omega})

    def _give_up_untold(self, until: float) -> None:
        while self._untold and next(iter(self._untold.values()))[0] <= until:
            self.rows.put("requests", **self._untold.pop(next(iter(self._untold)))[1])

    def _targets(self, deployment: str) -> set[str]:
        tied = [self.profiles.target(router) for router in self.profiles.routers_of(deployment)]
        return self.targets.of(deployment, alone=len(self.deployments) == 1, tied=tied)
