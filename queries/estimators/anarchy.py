"""PoA-hat: what requests took against what the best placement would cost in a system that does not queue, and where the rest went.

Two definitions were changed after real data disproved them; names and invariants stayed.
- With temporal = ΣL/Σf(n+1), a saturated prefill pool that serves in order reads 1.0, however long its queue: it *is* linear in n. The
  denominator is therefore `unqueued` (see latency.py), at an even spread of the pool's load when the request was routed.
- Imbalance in a saturated pool then shows in ΣL too, so routing × temporal would count it twice. The whole is measured first, PoA =
  ΣL/ΣU, routing by snapshots, and temporal is what is left: PoA / routing.
"""

from dataclasses import dataclass

import numpy as np

from queries.estimators import Estimate
from queries.estimators.cache import UNKNOWN_SHARE
from queries.estimators.latency import Curve
from queries.estimators.routing import counts_each_second, frozen_optimum, inflight_at, price
from queries.window import Codes, Floats

MIN_FINISHED = 8
MIN_INFLIGHT = 5.0
RESAMPLES = 200
ROUNDING = 0.01


@dataclass(frozen=True, slots=True)
class Stay:
    """One pool as the window saw it. Arrays over every known request that passed through it (window, open, and older ones for the load).

    start, end: Unix seconds (NaN end: still there); place: worker 0..workers−1, −1 where not known to this pool;
    found: requests on that worker when routed, itself excluded, NaN where unknown.
    """

    start: Floats
    end: Floats
    place: Codes
    found: Floats
    workers: int


@dataclass(frozen=True, slots=True)
class Share:
    """What one pool contributed to the requests that count, one value each (seconds).

    actual: the stay; unqueued: the model at an even spread without queueing; crowded: f(found + 1); price: of the pool's snapshots, ≥ 1;
    imbalance_s: seconds that dealing the same requests out evenly would have saved them all together, ≥ 0.
    """

    actual: Floats
    unqueued: Floats
    crowded: Floats
    price: float
    imbalance_s: float


def in_order(start: Floats, place: Codes, service_s: float) -> Floats:
    """When each request would leave its worker if that served in order, service_s each (Lindley's recursion as a running maximum)."""
    leaves = np.full(len(start), np.nan)
    for j in np.unique(place[place >= 0]):
        mine = np.flatnonzero((place == j) & ~np.isnan(start))
        mine = mine[np.argsort(start[mine], kind="stable")]
        before = service_s * np.arange(len(mine))
        leaves[mine] = np.maximum.accumulate(start[mine] - before) + before + service_s
    return leaves


def saved_by_even_deal(stay: Stay, curve: Curve, counted: Codes, present: Floats, found: Floats) -> float:
    """Seconds an even deal of the same arrivals would have saved the counted requests.

    Below the knee requests share a worker, and the loads met at routing tell: Σ f(found + 1) − f(⌊present/m⌋ + 1). Past it they wait, and
    those loads would understate it (an even deal would have left fewer present): both deals are played through a queue in order instead.
    """
    if float(np.mean(found + 1)) <= curve.knee or stay.workers < 2:
        return max(0.0, float((curve.at(found + 1) - curve.at(np.floor(present / stay.workers) + 1)).sum()))
    turns = np.full(len(stay.start), -1, dtype=np.int64)
    known = np.flatnonzero((stay.place >= 0) & ~np.isnan(stay.start))
    turns[known[np.argsort(stay.start[known], kind="stable")]] = np.arange(len(known)) % stay.workers
    as_was, in_turn = (in_order(stay.start, place, curve.slope_s)[counted] for place in (stay.place, turns))
    return max(0.0, float(np.nansum(as_was - in_turn)))


def share(stay: Stay, curve: Curve, counted: Codes, until: float, window_s: float) -> Share:
    """The pool's share for the requests at positions `counted`, with snapshots each second of (until − window_s, until]."""
    at = stay.start[counted]
    # events carry whole milliseconds, so a burst has one time; the loads met at routing give its members an order
    came = np.empty(len(stay.start))
    came[np.lexsort((stay.found, stay.start))] = np.arange(len(stay.start))
    present = came[counted] - np.searchsorted(np.sort(stay.end[~np.isnan(stay.end)]), at, "right")
    found = np.where(np.isnan(stay.found[counted]), present / max(stay.workers, 1), stay.found[counted])
    present = np.maximum(present, found)
    counts = counts_each_second(stay.start, stay.end, stay.place, stay.workers, until, int(window_s))
    return Share(
        actual=stay.end[counted] - at,
        unqueued=curve.unqueued(np.floor(present / stay.workers) + 1),
        crowded=curve.at(found + 1),
        price=price(curve, counts),
        imbalance_s=saved_by_even_deal(stay, curve, counted, present, found),
    )


def bootstrap(numerator: Floats, denominator: Floats, seed: int = 0) -> tuple[float, float]:
    """90 % interval of Σnumerator/Σdenominator by moving blocks (Künsch): requests next to each other share a queue.

    Blocks of ⌈2·N^(1/3)⌉ in the order given, 200 resamples by prefix sums; the seed is fixed, so a replay gives the same bounds.
    The curve's own uncertainty is not in it.
    """
    n = len(numerator)
    size = min(n, int(np.ceil(2 * n ** (1 / 3))))
    starts = np.random.default_rng(seed).integers(0, n - size + 1, (RESAMPLES, -(-n // size)))
    top, bottom = (np.concatenate([[0.0], np.cumsum(a)]) for a in (numerator, denominator))
    ratios = (top[starts + size] - top[starts]).sum(axis=1) / (bottom[starts + size] - bottom[starts]).sum(axis=1)
    low, high = np.quantile(ratios, [0.05, 0.95])
    return float(low), float(high)


def doubt(n: int, mean_inflight: float, gaps: int, silent: bool, provisional: str | None) -> str | None:
    """Why a PoA that could be computed should be drawn hollow; None when it may be trusted."""
    if silent:
        return "events are stale"
    if n < MIN_FINISHED:
        return f"{n} finished < {MIN_FINISHED}"
    if mean_inflight < MIN_INFLIGHT:
        return f"{mean_inflight:.1f} in flight on average < {MIN_INFLIGHT:.0f}"
    if gaps:
        return f"{gaps} gaps in the window"
    return provisional


def ratio(actual: Floats, expected: Floats, as_of: float, withheld: str | None) -> Estimate:
    """Σactual/Σexpected with its bounds. The value is there even when `withheld` has a reason: it is drawn hollow.

    Nothing is faster than the best: an interval that ends below 1 (by the hundredth that is shown) says that the curve is off.
    """
    low, high = bootstrap(actual, expected)
    if withheld is None and high < 1 - ROUNDING:
        withheld = f"below 1 ({low:.2f} to {high:.2f}): the fit is off"
    return Estimate(float(actual.sum() / expected.sum()), low, high, len(actual), as_of, withheld)


def routing_factor(shares: list[Share]) -> float:
    """Σ_p F_p / Σ_p (F_p / price_p), F = Σf(n+1): the pools' prices weighed by the seconds they cost. ≥ 1."""
    crowded = [float(s.crowded.sum()) for s in shares]
    return sum(crowded) / sum(c / s.price for c, s in zip(crowded, shares, strict=True))


@dataclass(frozen=True, slots=True)
class Lost:
    """Request-seconds over the optimum in the window, by cause; they add up to ΣL − ΣU. A part may be negative: the model was slower.

    prefill_queue_s: more prefill capacity; imbalance_s: τ; cache_miss_s: ω, None when overlaps with other workers are unknown (those
    seconds are then in prefill_queue_s); transfer_s: the network between the pools; other_s: decode beyond its model.
    """

    prefill_queue_s: float | None
    imbalance_s: float
    cache_miss_s: float | None
    transfer_s: float | None
    other_s: float


def cache_miss_seconds(own: Floats, best: Floats | None, blocks: Floats, slope_s: float, workers: int) -> float | None:
    """Seconds spent on computing blocks that another worker of the pool held when the request was routed.

    own, best: blocks that the chosen worker and the best one held; blocks: of the whole input. A block costs the pool's seconds per
    request over the blocks computed per request, so the fixed cost of a prefill is shared out among its blocks. Only the request's own
    computing: that others wait meanwhile is in the queue. 0 with one worker; None while overlaps are unknown for more than one request in
    twenty; the few of which they are not known count as the others.
    """
    if workers == 1:
        return 0.0
    if best is None or not len(own):
        return None
    known = ~np.isnan(best + own + blocks)
    if known.mean() < 1 - UNKNOWN_SHARE:
        return None
    computed = float((blocks - own)[known].sum())
    return float(np.maximum(best - own, 0)[known].sum()) * slope_s * len(own) / computed if computed > 0 else 0.0


def lost_seconds(prefill: Share | None, decode: Share, transfer: Floats, cache_miss_s: float | None = None) -> Lost:
    """The split of the excess. Without a prefill pool its parts are None and the whole is imbalance and other."""
    other = float((decode.actual - decode.unqueued).sum()) - decode.imbalance_s
    if prefill is None:
        return Lost(None, decode.imbalance_s, cache_miss_s, None, other - (cache_miss_s or 0.0))
    queue = float((prefill.actual - prefill.unqueued).sum()) - prefill.imbalance_s - (cache_miss_s or 0.0)
    return Lost(queue, prefill.imbalance_s + decode.imbalance_s, cache_miss_s, float(transfer.sum()), other)


def frozen(stays: list[Stay], curves: list[Curve], counted: list[Codes], actual: Floats) -> float | None:
    """The papers' estimator: ΣL over the cheapest assignment at latencies frozen as each request found them, one assignment a pool.

    An upper bound: moving a request would change the load, and c_qj = f(n_j(q) + 1) ignores that. None when no worker is left.
    """
    best = 0.0
    for stay, curve, rows in zip(stays, curves, counted, strict=True):
        load = inflight_at(stay.start, stay.end, stay.place, stay.workers, stay.start[rows])
        place, found = stay.place[rows], stay.found[rows]
        known = (place >= 0) & ~np.isnan(found)
        load[np.flatnonzero(known), place[known]] = found[known]
        best += frozen_optimum(curve.at(load + 1))
    return float(actual.sum()) / best if best > 0 else None
