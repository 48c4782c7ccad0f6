"""What one deployment is doing now: requests under way and just finished, engine steps, loads; and the window a pulse looks at."""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.assemble import Assembler, Finished, Open
from collectors.metrics import Readings, quantile
from collectors.prefix import Prefixes
from collectors.wire import Load, Marked, Step
from poascope.settings import Profile, Settings
from queries.signals import Memory
from queries.window import HISTORY_N, HISTORY_S, Metrics, Quantile, Requests, Window

Worker = tuple[int, int]
ProfileOf = Callable[[int | None, str], Profile | None]  # of a router's id and a request's
TTFT_WINDOW_S, ITL_WINDOW_S = 60.0, 30.0
MAX_STEPS = 100_000
NEWEST_S, TOLD_WITHIN_S = 5.0, 1.0
UNROUTED_S = 60.0
GONE_S = 15
# A prefill worker may read one long prompt for this long without a word, as long as nobody takes its requests over.
PREFILL_GONE_S = 60
IDLE_S = 15.0
OVERTAKEN_S = 5.0
ROUTER_GONE_S, LONGER_THAN_ANY = 30.0, 3.0
WORKER_FORGOTTEN_S = 600.0


@dataclass(slots=True)
class Latest:
    """The newest value of each field that one source gave of a worker's load."""

    component: str | None
    fields: dict[str, float]
    changed: bool = True


@dataclass(frozen=True, slots=True)
class Routed:
    """A finished request with what the collector adds to it. `best_overlap_blocks`: the most that any worker of its pool held;
    `cached_blocks`: those that its prefill did not compute."""

    request: Finished
    input_blocks: int | None
    overlap_blocks: int | None
    profile: Profile | None
    best_overlap_blocks: int | None = None
    cached_blocks: int | None = None


def blocks_of(request: Finished, block_tokens: int | None) -> tuple[int | None, int | None]:
    """Input and overlap in blocks. 0.9 says `isl` in tokens and the overlap itself.

    1.x says the tokens left to prefill, `isl - overlap * block`, and the full blocks of the prompt by their number of hashes; so
    `isl = full * block + left % block`, and the overlap is what is missing. Equal to the client's own hit rate on all requests of the
    1.6.1 capture. None while the block size or the hashes are unknown.
    """
    source = request.source
    if block_tokens is None:
        return None, source.overlap
    if source.isl is not None:
        return math.ceil(source.isl / block_tokens), source.overlap
    left, hashes = source.effective_prefill_tokens, source.token_sequence
    if left is None or hashes is None:
        return None, source.overlap
    full = len(hashes)
    return full + (left % block_tokens > 0), max(0, full - left // block_tokens)


class Deployment:
    """State of one Dynamo namespace; bounded, driven by events and by `window` once a second."""

    def __init__(self, name: str, config: Settings) -> None:
        self.name, self.config = name, config
        self.assembler = Assembler(config.lost_after_s)
        self.prefixes = Prefixes()
        self.recent: deque[Routed] = deque()
        self.history: deque[Routed] = deque(maxlen=HISTORY_N)
        self.steps: deque[tuple[float, float, int]] = deque(maxlen=MAX_STEPS)
        self.arrivals: deque[tuple[float, int, str]] = deque(maxlen=10_000)
        self.losses: deque[tuple[float, int]] = deque(maxlen=10_000)
        self.loads: dict[tuple[Worker, str], Latest] = {}
        self.worker_seen: OrderedDict[tuple[str, Worker], float] = OrderedDict()
        self.component_of: dict[Worker, str] = {}
        self.heard_of: dict[Worker, float] = {}
        self.routers: dict[int, float] = {}
        self.reported: dict[Worker, float] = {}
        self.asked: dict[Worker, float] = {}
        self.bypassed: set[Worker] = set()
        self.idle_since: dict[Worker, float] = {}
        self._quiet: Counter[Worker] = Counter()
        self.events_as_of: float | None = None
        self.routing_at: float | None = None
        self.worked_at: float | None = None
        self.mode: str | None = None
        self.tells = False  # its routers say under which parameters each request goes
        self.memory: Memory | None = None
        self.regime: str | None = None

    def saw_worker(self, component: str, worker: Worker, at: float) -> None:
        key = (component, worker)
        self.worker_seen[key] = at
        self.worker_seen.move_to_end(key)
        self.component_of[worker] = component

    def heard(self, worker: Worker, at: float) -> None:
        """A sign of life of the worker itself."""
        self.reported[worker] = at
        self.bypassed.discard(worker)

    def routed(self, worker: Worker, at: float) -> None:
        """A request was sent to a worker."""
        self.asked[worker] = at
        self.idle_since.pop(worker, None)

    def marked(self, component: str, event: Marked, at: float) -> None:
        """A prompt was read: its prefill worker lives. If another worker read what was sent to one, that one was given up."""
        if self.assembler.role(component) == "prefill":
            self.heard(event.worker, at)
        elif request := self.assembler.open.get(event.request_id):
            for leg in request.legs.values():
                if leg.component != component and leg.marked_at is None and leg.freed_at is None:
                    self.bypassed.add(leg.worker)

    def idle(self, worker: Worker, blocks: int | None, at: float) -> None:
        """A worker's own word on the blocks it decodes; one that never said a number above 0 may not count them at all."""
        before = self.loads.get((worker, "worker"))
        if blocks == 0 and before is not None and before.fields.get("active_decode_blocks"):
            self.idle_since[worker] = at
        elif blocks:
            self.idle_since.pop(worker, None)

    def forsaken(self, now: float) -> Callable[[Open], bool]:
        """Tells requests that nobody will ever free, for a router that dies (a frontend restarts) frees nothing: seen on 0.9.

        They are on a worker that says for `IDLE_S` that it decodes nothing, and was sent nothing more; or no decode worker ever got
        them, though others whose prompt was read `OVERTAKEN_S` later came to theirs; or their router fell silent while others speak,
        and they are far older than any decode of the last half hour took.
        """
        idle = {worker for worker, since in self.idle_since.items() if since <= now - IDLE_S}
        living = {router for router, at in self.routers.items() if at > now - ROUTER_GONE_S}
        took = [r.request.ended_at - (r.request.decode_started_at or r.request.arrived_at) for r in self.history]
        old = now - max(ROUTER_GONE_S, LONGER_THAN_ANY * max(took, default=math.inf))
        overtaken = self.assembler.handed_over_at - OVERTAKEN_S

        def test(request: Open) -> bool:
            first, second = self.assembler.split(request)
            last = second or first
            if last is None:
                return False
            if last.freed_at is not None:
                return second is None and last.marked_at is not None and last.freed_at < overtaken
            if last.worker in idle and last.marked_at is not None:
                return True
            return bool(living) and request.router_id not in living and request.seen_at < old

        return test

    def load(self, component: str | None, source: str, event: Load) -> None:
        self._latest(
            component,
            source,
            event.worker,
            {
                "active_decode_blocks": event.active_decode_blocks,
                "active_prefill_tokens": event.active_prefill_tokens,
                "kv_used_blocks": event.kv_used_blocks,
            },
        )

    def step(self, at: float, component: str | None, event: Step) -> None:
        self.steps.append((at, event.step_s, event.decoding))
        if event.decoding:
            self.worked_at = at
        running = event.prefilling + event.decoding
        self._latest(component, "step", event.worker, {"running": running, "waiting": event.waiting, "step_s": event.step_s})

    def _latest(self, component: str | None, source: str, worker: Worker, said: dict[str, float | int | None]) -> None:
        latest = self.loads.get((worker, source))
        if latest is None:
            latest = self.loads[worker, source] = Latest(component, {})
        for field, value in said.items():
            # A null is this publisher not knowing, never a zero: what another message said of the field stays.
            if value is not None and latest.fields.get(field) != value:
                latest.fields[field] = value
                latest.changed = True

    def gone(self, now: float) -> list[tuple[str, Worker]]:
        """Workers that have something to do and used to give signs of life, and have not for `GONE_S` in which others were heard.

        A worker that decodes reports with every block or step. A prefill worker is heard of when a prompt is read; it is gone when it
        was sent requests since and others took them over, or it has read none of them for `PREFILL_GONE_S`. Seconds in which the
        whole deployment was silent do not count: then it is the bus that is down.
        """
        heard = self.events_as_of is not None and self.events_as_of > now - 1
        found: list[tuple[str, Worker]] = []
        for component, worker in self.worker_seen:
            role, patience = self.assembler.role(component), GONE_S
            if role == "prefill":
                loaded = self.asked.get(worker, 0.0) > self.reported.get(worker, now)
                patience = GONE_S if worker in self.bypassed else PREFILL_GONE_S
            else:
                loaded = self.assembler.inflight[component, worker] > 0 and role is not None
            if not loaded or self.reported.get(worker, now) > now - 1:
                self._quiet.pop(worker, None)
            elif heard:
                self._quiet[worker] += 1
                if self._quiet[worker] >= patience:
                    found.append((component, worker))
        return found

    def ended(self, routed: Routed) -> None:
        routed.request.source.token_sequence = None  # read for its overlaps by now, and most of what a long prompt weighs
        self.recent.append(routed)
        if not routed.request.lost:
            self.history.append(routed)

    def forget(self, now: float) -> None:
        """Drop what no window will look at any more."""
        start = now - self.config.window_s
        if self.recent and min(self.recent[0].request.ended_at, self.recent[-1].request.ended_at) <= start:
            self.recent = deque(r for r in self.recent if r.request.ended_at > start)
        while self.history and self.history[0].request.ended_at < now - HISTORY_S:
            self.history.popleft()
        while self.steps and self.steps[0][0] < now - ITL_WINDOW_S:
            self.steps.popleft()
        while self.losses and self.losses[0][0] < now - max(self.config.window_s, TTFT_WINDOW_S):
            self.losses.popleft()
        for router in [r for r, heard in self.routers.items() if heard < now - WORKER_FORGOTTEN_S]:
            del self.routers[router]
        while self.worker_seen and next(iter(self.worker_seen.values())) < now - WORKER_FORGOTTEN_S:
            (component, worker), _ = self.worker_seen.popitem(last=False)
            if self.assembler.inflight[component, worker] > 0:
                # It still holds requests: were their count forgotten, their ends would take it below zero.
                self.saw_worker(component, worker, now)
                continue
            self.assembler.inflight.pop((component, worker), None)
            self._drop(worker)
        # Those that nothing was ever routed to: their caches and loads are heard of all the same.
        seen = {worker for _, worker in self.worker_seen}
        for worker in [w for w, at in self.heard_of.items() if at < now - WORKER_FORGOTTEN_S and w not in seen]:
            self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        self.heard_of.pop(worker, None)
        self.component_of.pop(worker, None)
        self.prefixes.drop(worker)
        self.reported.pop(worker, None)
        self.asked.pop(worker, None)
        self.bypassed.discard(worker)
        self.idle_since.pop(worker, None)
        self._quiet.pop(worker, None)
        for source in ("worker", "router", "step"):
            self.loads.pop((worker, source), None)

    def overlaps(self, request: Finished, said: int | None) -> tuple[int | None, int | None, int | None]:
        """Blocks of the prompt: that the worker which read it held when it arrived, the most that any worker of that pool did, and those
        that were not computed. `said`: the router's own word on the first. None where cache events do not tell.

        0.9 and aggregated deployments name the prompt's blocks. A decode leg of 1.x makes them up; there what was stored names them,
        and a prompt of which nothing was stored was there already, if the router said so too.
        """
        worker, tokens, read_at = request.prefill or request.decode, request.source.token_sequence, request.prefill_done_at
        if worker is None or not tokens:
            return None, None, None
        read_at, full = read_at or request.first_token_at or request.ended_at, len(tokens)
        if worker not in self.prefixes.caches:
            return (None, full, None) if said is not None and said >= full else (None, None, None)
        held = self.prefixes.overlaps(tokens, request.arrived_at)
        stored = self.prefixes.computed(worker, request.arrived_at, read_at, full, said, None if held is None else tokens[-1])
        if held is None:
            if stored is None:
                return (None, full, full) if said is not None and said >= full else (None, None, None)
            held = self.prefixes.overlaps(stored[0], request.arrived_at) or {}
        pool = self.component_of.get(worker)
        best = max((n for w, n in held.items() if self.component_of.get(w) == pool), default=None)
        return held.get(worker), best, full - (stored[1] if stored else 0)

    def window(self, end: float, block_tokens: int | None, metrics: Metrics, profile_of: ProfileOf) -> Window:
        views = (self.assembler.view(r, end) for r in self.assembler.open.values())
        under_way = [Routed(v, *blocks_of(v, block_tokens), profile_of(v.source.router_id, v.request_id)) for v in views if v is not None]
        recent = [r for r in self.recent if end - self.config.window_s < r.request.ended_at <= end] + under_way
        history = list(self.history)
        workers = sorted({w for r in (*recent, *history) for w in (r.request.prefill, r.request.decode) if w is not None})
        tau, omega = self._parameters(end, profile_of)
        silent, served = self._kv_silent()
        return Window(
            deployment=self.name,
            end=end,
            window_s=self.config.window_s,
            recent=requests_of(recent, workers),
            history=requests_of(history, workers),
            metrics=metrics,
            gaps=sum(count for at, count in self.losses if end - self.config.window_s < at <= end),
            tau=tau,
            omega=omega,
            mode=self.mode,
            events_as_of=self.events_as_of,
            notes=self._notes(end),
            routed=self.routing_at is not None,
            kv_silent=silent if served else None,
            kv_served=served or None,
            tiers=self.prefixes.tiers(),
        )

    def _notes(self, end: float) -> tuple[str, ...]:
        """What is missing from the bus although requests run, and what brings it."""
        notes: list[str] = []
        worked = self.worked_at is not None and self.worked_at > end - ITL_WINDOW_S
        since = math.inf if self.routing_at is None or self.worked_at is None else self.worked_at - self.routing_at
        if worked and not self.assembler.open and since > UNROUTED_S:
            notes.append("events: requests run but no routing is heard; start the frontends with --router-replica-sync")
        silent, served = self._kv_silent()
        if silent:
            notes.append(f"kv_events: none from {silent} of {served} workers")
        if self.prefixes.forgotten:
            notes.append(f"kv_events: {self.prefixes.forgotten} of the oldest blocks forgotten, so overlaps may be understated")
        return tuple(notes)

    def _kv_silent(self) -> tuple[int, int]:
        """Of the workers that prefilled lately, those that published no cache event; and how many they are."""
        served = {r.request.prefill or r.request.decode for r in self.recent} - {None}
        return len(served - set(self.prefixes.caches)), len(served)

    def _parameters(self, end: float, profile_of: ProfileOf) -> tuple[float | None, float | None]:
        """τ and ω of the newest requests; None when they were routed under several, or under unknown ones."""
        told = [(at, profile_of(router, request)) for at, router, request in self.arrivals if at > end - NEWEST_S]
        # What a router says of its newest requests may still be on its way.
        settled = [profile for at, profile in told if profile or at <= end - TOLD_WITHIN_S]
        newest = settled or [profile_of(router, request) for _, router, request in list(self.arrivals)[-1:]]
        pairs = {(p.tau, p.omega) if p else (None, None) for p in newest}
        return pairs.pop() if len(pairs) == 1 else (None, None)

    def step_itl(self, end: float) -> tuple[Quantile, Quantile] | None:
        """ITL P50 and P99 from engine steps: each step is one gap for every request that got a token from it. None: no token came."""
        steps = np.array([s for s in self.steps if s[0] > end - ITL_WINDOW_S], dtype=float).reshape(-1, 3)
        seconds, weight = steps[:, 1], steps[:, 2]
        if not weight.sum() > 0:
            return None
        order = np.argsort(seconds, kind="stable")
        cumulative = np.cumsum(weight[order])
        p50, p99 = (float(seconds[order][np.searchsorted(cumulative, q * cumulative[-1])]) for q in (0.5, 0.99))
        return Quantile(p50), Quantile(p99)


def requests_of(routed: Sequence[Routed], workers: Sequence[Worker]) -> Requests:
    """The struct of arrays that estimates read, in order of arrival."""
    code = {worker: i for i, worker in enumerate(workers)}
    ordered = sorted(routed, key=lambda r: (r.request.arrived_at, r.request.request_id))
    nan = math.nan
    table = np.array(
        [
            [
                nan if value is None else value
                for value in (
                    r.request.arrived_at,
                    r.request.prefill_done_at,
                    r.request.decode_started_at,
                    r.request.first_token_at,
                    r.request.finished_at,
                    r.request.prefill_inflight,
                    r.request.decode_inflight,
                    r.input_blocks,
                    r.overlap_blocks,
                    r.best_overlap_blocks,
                    r.cached_blocks,
                )
            ]
            for r in ordered
        ],
        dtype=np.float64,
    ).reshape(-1, 11)
    ids = np.empty(len(ordered), dtype=object)
    ids[:] = [r.request.request_id for r in ordered]
    return Requests(
        request_id=ids,
        arrived_at=table[:, 0],
        prefill_done_at=table[:, 1],
        decode_started_at=table[:, 2],
        first_token_at=table[:, 3],
        finished_at=table[:, 4],
        prefill=np.array([code[r.request.prefill] if r.request.prefill else -1 for r in ordered], dtype=np.int64),
        decode=np.array([code[r.request.decode] if r.request.decode else -1 for r in ordered], dtype=np.int64),
        prefill_inflight=table[:, 5],
        decode_inflight=table[:, 6],
        input_blocks=table[:, 7],
        overlap_blocks=table[:, 8],
        lost=np.array([r.request.lost for r in ordered], dtype=np.bool_),
        workers=tuple(workers),
        best_overlap_blocks=table[:, 9],
        cached_blocks=table[:, 10],
    )


def metrics_of(deployment: Deployment, readings: Readings, targets: set[str], end: float, stale_after_s: float) -> Metrics:
    """What metrics and engine steps say up to `end`. Stale reads give no quantile: the past is not shown as now."""
    as_of = max((readings.read_at[t] for t in targets), default=None)
    notes: list[str] = []
    ttft = itl_p50 = itl_p99 = None
    hit: float | None = None
    realised: float | None = None
    if as_of is None:
        notes.append("no metrics read: name the frontends with --scrape, or a server with --prometheus-url")
    elif end - as_of > stale_after_s:
        notes.append(f"metrics are {end - as_of:.0f} s old")
    else:
        if grown := readings.grown("frontend_ttft_s", targets, end - TTFT_WINDOW_S, end):
            ttft = quantile(grown.le, grown.counts, 0.99)
        if grown := readings.grown("frontend_itl_s", targets, end - ITL_WINDOW_S, end):
            itl_p50, itl_p99 = quantile(grown.le, grown.counts, 0.5), quantile(grown.le, grown.counts, 0.99)
        hit, realised = _hit_ratio(readings, targets, end), _cached_ratio(readings, targets, end)
    if steps := deployment.step_itl(end):
        itl_p50, itl_p99 = steps
    known = [
        (r.overlap_blocks, r.input_blocks)
        for r in deployment.recent
        if r.input_blocks and r.overlap_blocks is not None and end - deployment.config.window_s < r.request.ended_at <= end
    ]
    if known:
        hit = sum(overlap for overlap, _ in known) / sum(blocks for _, blocks in known)
    return Metrics(
        as_of=as_of,
        ttft_p99=ttft,
        itl_p50=itl_p50,
        itl_p99=itl_p99,
        kv_hit_ratio=hit,
        realised_hit_ratio=realised,
        notes=tuple(notes),
    )


def _cached_ratio(readings: Readings, targets: set[str], end: float) -> float | None:
    cached = readings.grown("frontend_cached_tokens", targets, end - TTFT_WINDOW_S, end)
    tokens = readings.grown("frontend_input_tokens", targets, end - TTFT_WINDOW_S, end)
    if cached and tokens and cached.counts[-1] > 0 and tokens.total > 0:
        return min(1.0, cached.total / tokens.total)
    return None


def _hit_ratio(readings: Readings, targets: set[str], end: float) -> float | None:
    """Cached over input tokens as the frontends saw them, else the routers' mean hit rate; None without traffic."""
    if (cached := _cached_ratio(readings, targets, end)) is not None:
        return cached
    rate = readings.grown("router_hit_ratio", targets, end - TTFT_WINDOW_S, end)
    return rate.total / rate.counts[-1] if rate and rate.counts[-1] > 0 else None
