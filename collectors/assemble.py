"""Requests put together from their routing events: one assembler per deployment, pure, time as an argument.

A *leg* is a request's stay on one component. Roles are learnt from how requests move: when a request appears on a second
component, the first one was prefill. No component name is ever read.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from collectors.wire import Added, Freed, Marked

GRACE_S = 2.0
MAX_OPEN = 100_000
MAX_REMEMBERED = 50_000

Worker = tuple[int, int]


@dataclass(slots=True)
class Leg:
    """A stay on one component. Times are Unix seconds; `inflight`: others on that worker when routed there."""

    component: str
    worker: Worker
    added_at: float | None = None
    marked_at: float | None = None
    freed_at: float | None = None
    inflight: int | None = None
    counted: bool = False
    prefilled: bool | None = None


@dataclass(slots=True)
class Open:
    """A request under way. `seen_at`: its newest event."""

    request_id: str
    seen_at: float
    legs: dict[str, Leg] = field(default_factory=dict)
    router_id: int | None = None
    isl: int | None = None
    overlap: int | None = None
    effective_prefill_tokens: int | None = None
    token_sequence: tuple[int, ...] | None = None
    regime: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A request as the table has it. Times are Unix seconds.

    `finished`: it got its first token and the worker that decoded freed it. `lost`: it was freed without ever getting a token (what a
    router does when a worker refuses or dies, seen on 1.4.2), or was silent too long; `finished_at` is then None and `ended_at` the
    moment it was declared lost, which is when windows see it. A stream cut after its first token is freed at once by the router and
    looks like a short answer: no event tells it apart.
    Aggregated, or prefilled where it was decoded: prefill fields None and `decode_started_at` = `arrived_at`.
    """

    request_id: str
    arrived_at: float
    prefill: Worker | None
    decode: Worker | None
    prefill_done_at: float | None
    decode_started_at: float | None
    first_token_at: float | None
    finished_at: float | None
    prefill_inflight: int | None
    decode_inflight: int | None
    ended_at: float
    lost: bool
    source: Open


class Assembler:
    """Events of one deployment in, finished requests out; counts what it could not use.

    `handed_over_at`: of the requests that came to a second component, when the last of them left its first.
    """

    def __init__(self, lost_after_s: float) -> None:
        self.lost_after_s = lost_after_s
        self.open: OrderedDict[str, Open] = OrderedDict()
        self.inflight: Counter[tuple[str, Worker]] = Counter()
        self.counters: Counter[str] = Counter()
        self.handed_over_at = 0.0
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._alone: Counter[str] = Counter()
        self._done: OrderedDict[str, str] = OrderedDict()
        self._waiting: deque[tuple[float, str]] = deque()

    def role(self, component: str) -> str | None:
        """`prefill`, `decode` or `aggregated`; None while no request has shown it."""
        first = sum(n for (a, _), n in self._pairs.items() if a == component)
        second = sum(n for (_, b), n in self._pairs.items() if b == component)
        if first or second:
            return "prefill" if first > second else "decode"
        return "aggregated" if self._alone[component] else None

    def add(self, at: float, component: str, event: Added, regime: str | None = None) -> list[Finished]:
        request, leg = self._leg(at, component, event)
        if request is None or leg is None:
            return []
        if leg.added_at is not None:
            if event.worker != leg.worker:
                self._reroute(leg, event.worker)
            else:
                self.counters["duplicate"] += 1
            return []
        leg.added_at, leg.worker, leg.prefilled = at, event.worker, event.prefilled
        key = (component, event.worker)
        leg.inflight = self.inflight[key]
        if leg.freed_at is None:
            self.inflight[key] += 1
            leg.counted = True
        before = (other.freed_at for other in request.legs.values() if other is not leg and other.marked_at is not None)
        self.handed_over_at = max([self.handed_over_at, *(t for t in before if t is not None and t <= at)])
        if len(request.legs) == 1 or request.router_id is None:
            request.router_id, request.regime = event.router_id, regime
        request.isl = event.isl if request.isl is None else request.isl
        # On 0.9 the decode leg says overlap 0 because prefill was done elsewhere: only the first leg's word counts.
        if len(request.legs) == 1:
            request.overlap = event.overlap
        if event.effective_prefill_tokens is not None and request.effective_prefill_tokens is None:
            request.effective_prefill_tokens = event.effective_prefill_tokens
        if event.token_sequence is not None:
            request.token_sequence = event.token_sequence
        return self._settle(request, at)

    def mark(self, at: float, component: str, event: Marked) -> list[Finished]:
        request, leg = self._leg(at, component, event)
        if request is None or leg is None:
            return []
        if leg.marked_at is not None:
            self.counters["duplicate"] += 1
            return []
        leg.marked_at = at
        return self._settle(request, at)

    def free(self, at: float, component: str, event: Freed) -> list[Finished]:
        request, leg = self._leg(at, component, event)
        if request is None or leg is None:
            return []
        if leg.freed_at is not None:
            self.counters["duplicate"] += 1
            return []
        leg.freed_at = at
        self._uncount(leg)
        self._waiting.append((at + GRACE_S, request.request_id))
        return self._settle(request, at)

    def advance(self, now: float) -> list[Finished]:
        """Requests whose grace is over, and those silent for too long."""
        finished: list[Finished] = []
        while self._waiting and self._waiting[0][0] <= now:
            _, request_id = self._waiting.popleft()
            if request := self.open.get(request_id):
                finished += self._settle(request, now, graceless=True)
        while self.open:
            request = next(iter(self.open.values()))
            if now - request.seen_at < self.lost_after_s and len(self.open) <= MAX_OPEN:
                break
            finished += self._lose(request, now)
        return finished

    def close(self) -> list[Finished]:
        """End of a recording: settle what only waits for its grace, leave what is really under way."""
        return [f for _, request_id in list(self._waiting) if (r := self.open.get(request_id)) for f in self._settle(r, r.seen_at, True)]

    def lose_worker(self, now: float, worker: Worker) -> list[Finished]:
        """End what is open on a worker that is known to be gone, and relieve it of what other workers took over."""
        held = [r for r in self.open.values() if any(leg.worker == worker and leg.freed_at is None for leg in r.legs.values())]
        finished: list[Finished] = []
        for request in held:
            last = [leg for leg in self.split(request) if leg is not None][-1:]
            if not last or last[0].worker == worker:
                finished += self._lose(request, now)
                continue
            for leg in request.legs.values():
                if leg.worker == worker:
                    self._uncount(leg)
        return finished

    def lose_if(self, now: float, forsaken: Callable[[Open], bool]) -> list[Finished]:
        """End the open requests of which that is known."""
        return [f for request in [r for r in self.open.values() if forsaken(r)] for f in self._lose(request, now)]

    def _leg(self, at: float, component: str, event: Added | Marked | Freed) -> tuple[Open | None, Leg | None]:
        request = self.open.get(event.request_id)
        if request is None:
            before = self._done.get(event.request_id)
            if before is not None:
                self._late(before, component, event)
                return None, None
            request = self.open[event.request_id] = Open(event.request_id, at)
        self.open.move_to_end(event.request_id)
        request.seen_at = max(request.seen_at, at)
        leg = request.legs.get(component)
        if leg is None:
            leg = request.legs[component] = Leg(component, event.worker)
        return request, leg

    def _late(self, before: str, component: str, event: Added | Marked | Freed) -> None:
        """An event of a request that already ended: a copy, or proof that its single leg was a prefill after all."""
        if isinstance(event, Added) and before and component != before:
            self._pairs[before, component] += 1
            self.counters["late_leg"] += 1
        else:
            self.counters["after_end"] += 1

    def _settle(self, request: Open, now: float, graceless: bool = False) -> list[Finished]:
        """End the request if its events say that it is over; `graceless` once nothing more is waited for."""
        legs = list(request.legs.values())
        complete = all(leg.added_at is not None and leg.freed_at is not None for leg in legs)
        if not complete and not graceless:
            return []
        if len(legs) == 1:
            if complete:
                return self._settle_alone(request, legs[0], now, graceless)
            return self._without_start(request) if legs[0].added_at is None else []
        first, second = self._order(legs)
        if second.freed_at is None:
            return []
        if first.added_at is None:
            return self._without_start(request)
        if not graceless and (first.marked_at is None or second.marked_at is None):
            return []
        self._pairs[first.component, second.component] += 1
        if second.marked_at is None:
            return self._lose(request, now)
        return [self._finish(request, first, second)]

    def _without_start(self, request: Open) -> list[Finished]:
        """Its beginning was never heard: the collector started in mid-flight, or the message was lost."""
        self.counters["without_start"] += 1
        self._forget(request, "")
        return []

    def _reroute(self, leg: Leg, worker: Worker) -> None:
        """The request was sent once more, to another worker of the same component, after the first one failed."""
        self.counters["rerouted"] += 1
        self._uncount(leg)
        leg.worker, leg.freed_at = worker, None
        leg.inflight = self.inflight[leg.component, worker]
        self.inflight[leg.component, worker] += 1
        leg.counted = True

    def _settle_alone(self, request: Open, leg: Leg, now: float, graceless: bool) -> list[Finished]:
        role = self.role(leg.component)
        if leg.prefilled:
            return self._without_start(request) if graceless else []
        if role == "prefill":
            # Handed over and between the pools, unless it was given up before its prompt was read.
            return self._lose(request, now) if graceless and leg.marked_at is None else []
        if not graceless and (role is None or leg.marked_at is None):
            return []
        if leg.marked_at is None:
            return self._lose(request, now)
        if role is None or role == "aggregated":
            self._alone[leg.component] += 1
        return [self._finish(request, None, leg)]

    def _order(self, legs: list[Leg]) -> tuple[Leg, Leg]:
        """The prefill and the decode leg: as the deployment's requests mostly move, else by time."""
        first, second = sorted(legs, key=lambda leg: leg.added_at or leg.marked_at or leg.freed_at or 0.0)[:2]
        forth, back = self._pairs[first.component, second.component], self._pairs[second.component, first.component]
        return (second, first) if back > forth else (first, second)

    def _finish(self, request: Open, first: Leg | None, second: Leg) -> Finished:
        self._forget(request, second.component)
        arrived = first.added_at if first else second.added_at
        assert arrived is not None and second.freed_at is not None
        return Finished(
            request.request_id,
            arrived,
            first.worker if first else None,
            second.worker,
            (first.marked_at or first.freed_at) if first else None,
            second.added_at,
            second.marked_at,
            second.freed_at,
            first.inflight if first else None,
            second.inflight,
            second.freed_at,
            False,
            request,
        )

    def _lose(self, request: Open, now: float) -> list[Finished]:
        first, second = self.split(request)
        arrived = _arrived(first, second)
        if arrived is None:
            return self._without_start(request)
        self._forget(request, second.component if second else "")
        self.counters["lost"] += 1
        return [self._snapshot(request, first, second, arrived, now, lost=True)]

    def split(self, request: Open) -> tuple[Leg | None, Leg | None]:
        """The prefill and the decode leg of an open request, as far as they are known. A first leg on a component whose
        role nobody knows yet counts as prefill: it is what waits."""
        legs = [leg for leg in request.legs.values() if leg.added_at is not None]
        if not legs:
            return None, None
        if len(legs) > 1:
            return self._order(legs)
        alone = legs[0].prefilled or self.role(legs[0].component) in ("decode", "aggregated")
        return (None, legs[0]) if alone else (legs[0], None)

    def view(self, request: Open, now: float) -> Finished | None:
        """An open request as a row of the window; None before its beginning is known.

        While nobody knows whether its one leg is a prefill, the row names no worker, and takes the end of the prompt for the first
        token: it is one if there is a single pool, and a request whose prompt was read must not look as if it still waited for that.
        One whose decode leg is over has ended, whatever of its prefill is still waited for.
        """
        first, second = self.split(request)
        arrived = _arrived(first, second)
        if arrived is None:
            return None
        row = self._snapshot(request, first, second, arrived, now, lost=False)
        if first and second is None and self.role(first.component) is None:
            return replace(row, prefill=None, prefill_done_at=None, first_token_at=first.marked_at, prefill_inflight=None)
        if first and second and second.marked_at is not None and second.freed_at is not None:
            return replace(row, finished_at=second.freed_at, ended_at=second.freed_at)
        return row

    def _snapshot(self, request: Open, first: Leg | None, second: Leg | None, arrived: float, now: float, *, lost: bool) -> Finished:
        return Finished(
            request.request_id,
            arrived,
            first.worker if first else None,
            second.worker if second else None,
            (first.marked_at or first.freed_at) if first else None,
            second.added_at if second else None,
            second.marked_at if second else None,
            None,
            first.inflight if first else None,
            second.inflight if second else None,
            now,
            lost,
            request,
        )

    def _forget(self, request: Open, component: str) -> None:
        self.open.pop(request.request_id, None)
        for leg in request.legs.values():
            self._uncount(leg)
        self._done[request.request_id] = component
        if len(self._done) > MAX_REMEMBERED:
            self._done.popitem(last=False)

    def _uncount(self, leg: Leg) -> None:
        if leg.counted:
            leg.counted = False
            key = (leg.component, leg.worker)
            self.inflight[key] -= 1


def _arrived(first: Leg | None, second: Leg | None) -> float | None:
    """When the request was first routed; None when that was not heard, also when its only known leg says it was prefilled before."""
    if first:
        return first.added_at
    return second.added_at if second and not second.prefilled else None
