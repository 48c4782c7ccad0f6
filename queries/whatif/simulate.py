"""The model played: arrivals → prefill queue and steps → transfer → decode shared by all on the worker. Deterministic for a seed."""

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from random import Random

import numpy as np

from queries.whatif.arrivals import Arrivals
from queries.whatif.model import Cluster, Job, Model
from queries.whatif.policy import Load, Policy, choose
from queries.window import Codes, Floats

MAX_REQUESTS = 200_000
ARRIVE, STEP_END, HANDED, FINISH = 3, 0, 1, 2  # at one moment, those who leave go before those who come


@dataclass(frozen=True, slots=True)
class Run:
    """What the model did, one entry a request in order of arrival. Seconds from the first arrival of the trace.

    job: which of the trace's requests it is (a closed loop that is faster than life starts over); computed: blocks that were not held.
    """

    job: Codes
    arrived: Floats
    prefill_done: Floats
    decode_started: Floats
    first_token: Floats
    finished: Floats
    prefill: Codes
    decode: Codes
    computed: Floats

    def __len__(self) -> int:
        return len(self.arrived)


@dataclass(slots=True)
class _Request:
    index: int
    number: int
    job: Job
    arrived: float
    prefill: int = -1
    decode: int = -1
    path: tuple[object, ...] | None = None
    expected: int = 0
    computed: float = 0.0
    prefill_done: float = 0.0
    decode_started: float = 0.0
    finished: float = 0.0


@dataclass(frozen=True, slots=True)
class _Step:
    """Requests that are done, and whether the worker is free then."""

    batch: list[_Request]
    free: bool


@dataclass(slots=True)
class _Cache:
    """Blocks held, the least recently used first; `held` is what the worker has, `told` what a router has heard of."""

    capacity: int | None
    held: "OrderedDict[object, None]" = field(default_factory=OrderedDict)
    told: set[object] = field(default_factory=set)

    def hits(self, path: tuple[object, ...], heard: bool) -> int:
        known = self.told if heard else self.held
        count = 0
        for block in path:
            if block not in known:
                break
            count += 1
        return count

    def store(self, path: tuple[object, ...]) -> None:
        for block in path:
            self.held[block] = None
            self.held.move_to_end(block)
        while self.capacity is not None and len(self.held) > self.capacity:
            block, _ = self.held.popitem(last=False)
            self.told.discard(block)


@dataclass(slots=True)
class _Decoder:
    """Processor sharing by virtual time: with n there, each request's work goes on at 1/f(n) a second."""

    virtual: float = 0.0
    at: float = 0.0
    beat: float = 0.0
    ends: list[tuple[float, int]] = field(default_factory=list)
    stamp: int = 0


class _Play:
    def __init__(self, jobs: list[Job], arrivals: Arrivals, model: Model, cluster: Cluster, policy: Policy, seed: int) -> None:
        self.jobs, self.arrivals, self.model, self.policy = jobs, arrivals, model, policy
        self.random = Random(seed)
        self.seconds = [0.0, *(float(s) for s in model.decode.at(np.arange(1, 4097)))]
        self.caches = [_Cache(model.cache_blocks) for _ in range(cluster.prefill)]
        self.prefill = [Load() for _ in range(cluster.prefill)]
        self.decode = [Load() for _ in range(cluster.decode)]
        self.queues: list[deque[_Request]] = [deque() for _ in range(cluster.prefill)]
        self.free_at = [0.0] * cluster.prefill
        self.busy = [False] * cluster.prefill
        self.decoders = [_Decoder() for _ in range(cluster.decode)]
        self.events: list[tuple[float, int, int, int, object]] = []
        self.requests: list[_Request] = []
        self.order = self.turn = self.users = self.thought = 0
        self.shared = _shared(jobs) if arrivals.kind == "closed" else set()

    def push(self, at: float, kind: int, where: int, what: object = None) -> None:
        self.order += 1
        heapq.heappush(self.events, (at, kind, self.order, where, what))

    def run(self) -> Run:
        for at in self.arrivals.at_s:
            self.push(float(at), ARRIVE, 1)
        act = {ARRIVE: self.arrive, STEP_END: self.step_end, HANDED: self.handed, FINISH: self.finish}
        while self.events:
            at, kind, _, where, what = heapq.heappop(self.events)
            act[kind](at, where, what)
        return self.report()

    def arrive(self, at: float, joins: int, _: object) -> None:
        self.users += joins
        number = len(self.requests)
        if number >= MAX_REQUESTS:
            return
        lap, k = divmod(number, len(self.jobs))
        job = self.jobs[k]
        request = _Request(number, k, job, at, path=self.path(job, lap))
        self.requests.append(request)
        if request.path is None:
            overlaps = [job.hits] * len(self.caches)
        else:
            overlaps = [cache.hits(request.path, heard=True) for cache in self.caches]
        j = choose(self.policy, self.prefill, job.blocks, overlaps, job.prefill, self.random)
        request.prefill, request.expected = j, job.blocks - overlaps[j]
        self.take(self.prefill[j], job.blocks, request.expected)
        self.queues[j].append(request)
        if not self.busy[j]:
            self.begin(at, j)

    def path(self, job: Job, lap: int) -> tuple[object, ...] | None:
        """In a second lap the prompts are new ones with the old shared beginnings, or every one of them would be a hit."""
        if lap == 0 or job.path is None:
            return job.path
        return tuple(block if block in self.shared else (block, lap) for block in job.path)

    def take(self, load: Load, active: float, waiting: float) -> None:
        self.turn += 1
        load.requests += 1
        load.active_blocks += active
        load.prefill_blocks += waiting
        load.turn = self.turn

    def begin(self, at: float, j: int) -> None:
        queue, timing, cache = self.queues[j], self.model.prefill, self.caches[j]
        batch: list[_Request] = []
        blocks = 0.0
        while queue and (not batch or blocks < timing.budget_blocks):
            request = queue[0]
            held = request.job.hits if request.path is None else cache.hits(request.path, heard=False)
            computed = request.job.blocks - held
            if batch and blocks + computed > timing.budget_blocks:
                break
            queue.popleft()
            request.computed = computed
            blocks += computed
            batch.append(request)
            if request.path is not None:
                cache.store(request.path)
        self.busy[j] = True
        end = at + timing.step_s(blocks)
        if timing.early_s is None:
            self.push(end, STEP_END, j, _Step(batch, True))
        else:
            self.push(at + min(timing.early_s, end - at), STEP_END, j, _Step(batch, False))
            self.push(end, STEP_END, j, _Step([], True))

    def step_end(self, at: float, j: int, what: object) -> None:
        assert isinstance(what, _Step)
        for request in what.batch:
            request.prefill_done = at
            load, cache = self.prefill[j], self.caches[j]
            load.requests -= 1
            load.active_blocks -= request.job.blocks
            load.prefill_blocks -= request.expected
            if request.path is not None:
                cache.told.update(b for b in request.path if b in cache.held)
            load.cached_blocks = len(cache.held)
            self.push(at + request.job.transfer_s, HANDED, 0, request)
        if what.free:
            self.busy[j] = False
            if self.queues[j]:
                self.begin(at, j)

    def handed(self, at: float, _: int, what: object) -> None:
        assert isinstance(what, _Request)
        j = choose(self.policy, self.decode, what.job.blocks, None, what.job.decode, self.random)
        self.advance(at, j)
        what.decode, what.decode_started = j, at
        self.take(self.decode[j], what.job.blocks, 0)
        heapq.heappush(self.decoders[j].ends, (self.decoders[j].virtual + what.job.work, what.index))
        self.next_finish(at, j)

    def advance(self, at: float, j: int) -> None:
        decoder, n = self.decoders[j], self.decode[j].requests
        if not n:
            decoder.beat = at
        else:
            decoder.virtual += (at - decoder.at) / self.seconds[min(n, len(self.seconds) - 1)]
        decoder.at = at

    def next_finish(self, at: float, j: int) -> None:
        decoder = self.decoders[j]
        decoder.stamp += 1
        if decoder.ends:
            left = max(0.0, decoder.ends[0][0] - decoder.virtual)
            end = at + left * self.seconds[min(self.decode[j].requests, len(self.seconds) - 1)]
            if step := self.model.step_s:  # to the nearest beat: the recorded stays are whole steps already
                end = max(at, decoder.beat + round((end - decoder.beat) / step) * step)
            self.push(end, FINISH, j, decoder.stamp)

    def finish(self, at: float, j: int, stamp: object) -> None:
        decoder = self.decoders[j]
        if stamp != decoder.stamp:
            return  # somebody came or went meanwhile, and it was reckoned anew
        self.advance(at, j)
        _, number = heapq.heappop(decoder.ends)
        request = self.requests[number]
        request.finished = at
        self.decode[j].requests -= 1
        self.decode[j].active_blocks -= request.job.blocks
        self.next_finish(at, j)
        if self.arrivals.kind == "closed":
            self.again(at)

    def again(self, at: float) -> None:
        wanted = int(np.searchsorted(self.arrivals.at_s, at, "right") - np.searchsorted(self.arrivals.leave_s, at, "right"))
        comes = at + float(self.arrivals.think_s[self.thought % len(self.arrivals.think_s)])
        self.thought += 1
        if self.users > wanted or comes > self.arrivals.until_s:
            self.users -= 1
        else:
            self.push(comes, ARRIVE, 0)

    def report(self) -> Run:
        r = self.requests

        def column(name: str) -> Floats:
            return np.array([getattr(q, name) for q in r], dtype=np.float64)

        started = column("decode_started")
        return Run(
            job=np.array([q.number for q in r], dtype=np.int64),
            arrived=column("arrived"),
            prefill_done=column("prefill_done"),
            decode_started=started,
            first_token=started + np.array([q.job.first_s for q in r]),
            finished=column("finished"),
            prefill=np.array([q.prefill for q in r], dtype=np.int64),
            decode=np.array([q.decode for q in r], dtype=np.int64),
            computed=column("computed"),
        )


def _shared(jobs: list[Job]) -> set[object]:
    """Blocks that the paths of at least two requests have."""
    seen: set[object] = set()
    twice: set[object] = set()
    for job in jobs:
        for block in job.path or ():
            (twice if block in seen else seen).add(block)
    return twice


def simulate(jobs: list[Job], arrivals: Arrivals, model: Model, cluster: Cluster, policy: Policy, seed: int = 0) -> Run:
    """Play the n-th arrival as the n-th job, whoever asks. Caches start empty. Every request is played to its end."""
    return _Play(jobs, arrivals, model, cluster, policy, seed).run()
