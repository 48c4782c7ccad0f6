"""The window an estimate looks at: requests as arrays. The collector builds it from memory, a replay from the tables."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

HISTORY_S, HISTORY_N = 1800.0, 2000
OPTIONAL = ("best_overlap_blocks", "cached_blocks")

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Requests:
    """N requests, struct of arrays, in order of `arrived_at`. Times are Unix seconds, NaN where not (yet) known or not applicable.

    `prefill` and `decode` are positions in `workers` (a worker is `(u64 id, dp_rank)`), -1 where none, as pandas codes are.
    `*_inflight` are counts on that worker when the request was routed there, itself excluded. Block counts are NaN when unknown.
    `best_overlap_blocks`: the most that any worker of the pool held of the request's blocks when it was routed; `cached_blocks`: those that
    its prefill did not compute, as what was stored tells; either is None as a whole where nobody looked. An aggregated deployment has
    `prefill` all -1, `prefill_done_at` NaN, and `decode_started_at == arrived_at`.
    """

    request_id: NDArray[np.object_]
    arrived_at: Floats
    prefill_done_at: Floats
    decode_started_at: Floats
    first_token_at: Floats
    finished_at: Floats
    prefill: Codes
    decode: Codes
    prefill_inflight: Floats
    decode_inflight: Floats
    input_blocks: Floats
    overlap_blocks: Floats
    lost: NDArray[np.bool_]
    workers: tuple[tuple[int, int], ...]
    best_overlap_blocks: Floats | None = None
    cached_blocks: Floats | None = None

    def __len__(self) -> int:
        return len(self.arrived_at)

    def take(self, mask: NDArray[np.bool_]) -> "Requests":
        """Those the mask picks, in the same order, with the same workers."""
        given = [f.name for f in fields(self) if f.name != "workers" and getattr(self, f.name) is not None]
        return replace(self, **{name: getattr(self, name)[mask] for name in given})

    def open_at(self, t: float) -> NDArray[np.bool_]:
        """Mask: arrived and neither finished nor known lost at t."""
        return (self.arrived_at <= t) & ~(self.finished_at <= t) & ~self.lost

    def as_of(self, t: float) -> "Requests":
        """What was known at t: later arrivals are gone, later times NaN, and a worker not yet chosen is −1. A loss shows from the start."""
        known = self.take(self.arrived_at <= t)

        def seen(times: Floats) -> Floats:
            return np.where(times <= t, times, np.nan)

        routed = known.decode_started_at <= t
        return replace(
            known,
            prefill_done_at=seen(known.prefill_done_at),
            decode_started_at=seen(known.decode_started_at),
            first_token_at=seen(known.first_token_at),
            finished_at=seen(known.finished_at),
            decode=np.where(routed, known.decode, -1),
            decode_inflight=np.where(routed, known.decode_inflight, np.nan),
        )


def join(a: Requests, b: Requests) -> Requests:
    """The requests of both, a's first; positions in `workers` are made to agree. Order by `arrived_at` is not kept."""
    workers = a.workers
    if a.workers != b.workers:
        workers = tuple(dict.fromkeys(a.workers + b.workers))
    place = {worker: code for code, worker in enumerate(workers)}
    moved = np.array([place[w] for w in b.workers] + [-1], dtype=np.int64)  # the last is what code -1 picks
    plain = [f.name for f in fields(a) if f.name not in ("workers", "prefill", "decode", *OPTIONAL)]
    columns = {name: np.concatenate([getattr(a, name), getattr(b, name)]) for name in plain}
    for name in OPTIONAL:
        halves = [getattr(r, name) for r in (a, b)]
        if any(half is not None for half in halves):
            filled = [np.full(len(r), np.nan) if half is None else half for r, half in zip((a, b), halves, strict=True)]
            columns[name] = np.concatenate(filled)
    return Requests(
        **columns,
        prefill=np.concatenate([a.prefill, moved[b.prefill]]),
        decode=np.concatenate([a.decode, moved[b.decode]]),
        workers=workers,
    )


def from_table(requests: pa.Table) -> Requests:
    """Requests from rows of the `requests` table (any order), for a replay. Ids stay u64 from end to end."""
    requests = requests.sort_by([("arrived_at", "ascending"), ("request_id", "ascending")])

    def seconds(name: str) -> Floats:
        micros = pc.cast(pc.cast(requests[name], pa.timestamp("us")), pa.int64())
        values = pc.divide(pc.cast(micros, pa.float64(), safe=False), 1e6)
        return np.asarray(pc.fill_null(values, float("nan")).to_numpy(), dtype=np.float64)

    def number(name: str) -> Floats:
        return np.asarray(pc.fill_null(pc.cast(requests[name], pa.float64()), float("nan")).to_numpy(), dtype=np.float64)

    keys: dict[str, list[tuple[int, int] | None]] = {}
    for role in ("prefill", "decode"):
        pairs = zip(requests[f"{role}_worker"].to_pylist(), requests[f"{role}_dp_rank"].to_pylist(), strict=True)
        keys[role] = [None if worker is None else (worker, rank or 0) for worker, rank in pairs]
    workers = tuple(sorted({k for role in keys for k in keys[role] if k is not None}))
    place: dict[tuple[int, int] | None, int] = {None: -1} | {w: code for code, w in enumerate(workers)}
    return Requests(
        request_id=np.array(requests["request_id"].to_pylist(), dtype=object),
        **{name: seconds(name) for name in ("arrived_at", "prefill_done_at", "decode_started_at", "first_token_at", "finished_at")},
        prefill=np.array([place[k] for k in keys["prefill"]], dtype=np.int64),
        decode=np.array([place[k] for k in keys["decode"]], dtype=np.int64),
        **{name: number(name) for name in ("prefill_inflight", "decode_inflight", "input_blocks", "overlap_blocks")},
        lost=np.array([o == "lost" for o in requests["outcome"].to_pylist()], dtype=np.bool_),
        workers=workers,
    )


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile read from a histogram: `at_least` when it lies in the open bucket, so the truth may be higher."""

    value: float
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Metrics:
    """What metrics and step events said up to the end of the window. None: not reported, or no traffic in its window.

    `realised_hit_ratio`: cached over input tokens, as the frontends heard it from the engine (1.x). Quantiles are over `histogram_window_s`
    of bucket deltas. `as_of`: Unix seconds of the newest sample, None if there never was one.
    """

    as_of: float | None = None
    ttft_p99: Quantile | None = None
    itl_p50: Quantile | None = None
    itl_p99: Quantile | None = None
    kv_hit_ratio: float | None = None
    realised_hit_ratio: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Window:
    """Everything one pulse looks at.

    `recent`: every request that finished (or was lost) in (end - window_s, end], and those still open at `end`: what estimates read.
    `history`: finished requests of the last 30 min, at most 2,000: what the latency model is fitted on.
    `gaps`: events known lost or sources silent within the window. `tau`, `omega`: parameters under which the newest requests
    were really routed, None when unknown or mixed. `events_as_of`: Unix seconds of the newest event, None before the first.
    `kv_silent` of the `kv_served` workers that prefilled published no cache events; `tiers`: blocks held in each, where events name them.
    `routed`: whether any of them ever told of a routing; if not, `recent` is empty because nobody says, not because nothing runs.
    """

    deployment: str
    end: float
    window_s: float
    recent: Requests
    history: Requests
    metrics: Metrics
    gaps: int = 0
    tau: float | None = None
    omega: float | None = None
    mode: str | None = None
    events_as_of: float | None = None
    notes: tuple[str, ...] = ()
    routed: bool = True
    kv_silent: int | None = None
    kv_served: int | None = None
    tiers: tuple[tuple[str, int], ...] = ()


def newest_event(requests: Requests) -> float | None:
    """Unix seconds of the newest time any request has, None without requests."""
    times = (requests.arrived_at, requests.prefill_done_at, requests.decode_started_at, requests.first_token_at, requests.finished_at)
    seen = np.concatenate([t[~np.isnan(t)] for t in times])
    return float(seen.max()) if len(seen) else None


def window_at(requests: Requests, t: float, window_s: float, deployment: str = "replay", metrics: Metrics | None = None) -> Window:
    """The window a pulse at t would have had, from all requests of a recording or a table. No gaps, τ and ω unknown."""
    known = requests.as_of(t)
    history = known.take((known.finished_at > t - HISTORY_S) & ~known.lost)
    newest = np.argsort(history.finished_at, kind="stable")[-HISTORY_N:]
    keep = np.zeros(len(history), dtype=np.bool_)
    keep[newest] = True
    ended = known.finished_at <= t - window_s
    return Window(
        deployment=deployment,
        end=t,
        window_s=window_s,
        recent=known.take(~ended),
        history=history.take(keep),
        metrics=metrics or Metrics(),
        events_as_of=newest_event(known),
    )
