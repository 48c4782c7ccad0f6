"""What a change of parameters did: a window before it against one after it, and when that must not be claimed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import t as student

from queries.window import Codes, Floats

WINDOW_S = 120.0  # of each side, where no other change cuts it short
SETTLE_S = 15.0  # after the change: what was queued before it comes out, and the regime is judged three times
BLOCK_S = 30.0
RESAMPLES = 200
NORMAL_90 = 1.645  # half a 90 % interval in standard errors
MIN_N = 30
MIN_TAIL_N = 100  # below it a P99 is the single worst request
MIN_SIDE_S = 2 * BLOCK_S
LOAD_TOLERANCE = 0.2
DRIFT = 1.5  # between the halves of the side before: more than that, and latency was on its way already
CLOSED_BELOW = 0.25  # variance over mean: 1 and more for Poisson arrivals and what they keep in flight, next to 0 for a constant

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sides:
    """Where it is looked, Unix seconds, start <= t < end. `complete`: the side after is as long as it will ever be."""

    before: Span
    after: Span
    complete: bool

    @property
    def long_enough(self) -> bool:
        return min(b - a for a, b in (self.before, self.after)) >= MIN_SIDE_S


@dataclass(frozen=True, slots=True)
class Served:
    """N requests by arrival, Unix seconds and seconds: enough of them before the first side that its load is known.

    ttft_s: inf for one that never got a first token. finished_at: NaN for one that was lost. actual_s, unqueued_s: for PoA, NaN where
    a request has none.
    """

    arrived_at: Floats
    ttft_s: Floats
    finished_at: Floats
    actual_s: Floats
    unqueued_s: Floats


@dataclass(frozen=True, slots=True)
class Effect:
    """One quantity before and after, and the ratio after/before with its 90 % interval; n: requests of each side.

    `withheld`: why there is no number. `confounded`: why the numbers, true as they are, are not the effect of the change.
    """

    measure: str
    before: float | None = None
    after: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    n_before: int = 0
    n_after: int = 0
    withheld: str | None = None
    confounded: str | None = None


def sides(changed_at: float, previous_at: float | None, next_at: float | None, known_until: float) -> Sides:
    """The two windows round a change. Neither reaches across another change, nor into what was still settling from one.

    known_until: requests that arrived before it have all ended, as far as can be told.
    """
    start = changed_at - WINDOW_S if previous_at is None else max(changed_at - WINDOW_S, previous_at + SETTLE_S)
    limit = changed_at + SETTLE_S + WINDOW_S if next_at is None else min(changed_at + SETTLE_S + WINDOW_S, next_at)
    settled = changed_at + SETTLE_S
    return Sides((min(start, changed_at), changed_at), (settled, max(settled, min(limit, known_until))), known_until >= limit)


def _within(at: Floats, span: Span) -> Codes:
    return np.flatnonzero((at >= span[0]) & (at < span[1]))


def inflight(served: Served, span: Span) -> Floats:
    """Requests in flight at each whole second of the span. Lost ones are left out: when they left nobody knows."""
    kept = ~np.isnan(served.finished_at)
    ticks = np.arange(span[0], span[1], 1.0)
    came, left = np.sort(served.arrived_at[kept]), np.sort(served.finished_at[kept])
    return (np.searchsorted(came, ticks, "right") - np.searchsorted(left, ticks, "right")).astype(np.float64)


def _dispersion(counts: Floats) -> float:
    """Variance over mean; inf of nothing."""
    return float(counts.var() / counts.mean()) if len(counts) and counts.mean() > 0 else float("inf")


def confounded(served: Served, sides: Sides) -> str | None:
    """Why a difference between the sides is not the change's work alone: the load moved by more than a fifth, or latency was moving before.

    What the load is depends on the loop. Open: arrivals are given, and requests in flight follow from latency. Closed: requests in flight
    are given, and arrivals follow. In a closed loop the number in flight hardly varies, less than the arrivals of a second; where the sides
    do not agree, both must stand still.
    """
    halves = [half for a, b in (sides.before, sides.after) for half in ((a, (a + b) / 2), ((a + b) / 2, b))]
    present = [inflight(served, half) for half in halves]
    loops = []
    for side in (sides.before, sides.after):
        varies = _dispersion(inflight(served, side))
        second = (served.arrived_at[_within(served.arrived_at, side)] - side[0]).astype(np.int64)
        came = np.bincount(second, minlength=int(side[1] - side[0])).astype(np.float64)
        loops.append(varies < min(CLOSED_BELOW, _dispersion(came)))
    counts = [len(_within(served.arrived_at, half)) for half in halves]
    rates = [n / max(b - a, 1e-9) for n, (a, b) in zip(counts, halves, strict=True)]
    levels = [float(p.mean()) if len(p) else 0.0 for p in present]

    def moved(values: Sequence[float], noise: Sequence[int] | None) -> bool:
        n = noise or (0,) * len(values)
        # Three comparisons: the sides as wholes, and the halves of each. Counts may differ by two standard deviations for nothing.
        pairs = [((values[0] + values[1]) / 2, (values[2] + values[3]) / 2, n[0] + n[1], n[2] + n[3])]
        pairs += [(values[i], values[i + 1], n[i], n[i + 1]) for i in (0, 2)]
        for a, b, na, nb in pairs:
            slack = 2 * float(np.sqrt(1 / max(na, 1) + 1 / max(nb, 1))) if noise else 0.0
            if max(a, b) > min(a, b) * (1 + LOAD_TOLERANCE + slack) + 1e-9:
                return True
        return False

    reasons = []
    if not all(loops) and moved(rates, counts):
        reasons.append(f"arrivals went from {(rates[0] + rates[1]) / 2:.3g} to {(rates[2] + rates[3]) / 2:.3g} a second")
    if any(loops) and moved(levels, None):
        reasons.append(f"requests in flight went from {(levels[0] + levels[1]) / 2:.3g} to {(levels[2] + levels[3]) / 2:.3g}")
    if reasons:
        return f"the load changed too: {', '.join(reasons)}"
    early, late = (served.ttft_s[_within(served.arrived_at, half)] for half in halves[:2])
    if min(len(early), len(late)) >= MIN_N // 2:
        medians = [float(np.quantile(side, 0.5, method="inverted_cdf")) for side in (early, late)]
        if max(medians) > DRIFT * min(medians):
            return f"TTFT was moving before it: P50 went from {medians[0]:.3g} to {medians[1]:.3g} s by itself"
    return None


def _blocks(at: Floats, span: Span, rng: np.random.Generator) -> list[Codes]:
    """Positions of the requests in each resample: circular blocks of time (Politis and Romano), for neighbours share a queue."""
    length = span[1] - span[0]
    inside = _within(at, span)
    offsets = at[inside] - span[0]
    twice = np.concatenate([offsets, offsets + length])
    which = np.concatenate([inside, inside])
    k = max(1, round(length / BLOCK_S))
    starts = rng.uniform(0, length, (RESAMPLES, k))
    low, high = np.searchsorted(twice, starts), np.searchsorted(twice, starts + length / k)
    return [np.concatenate([which[a:b] for a, b in zip(lows, highs, strict=True)]) for lows, highs in zip(low, high, strict=True)]


def compare(measure: str, at: Floats, sides: Sides, value: Callable[[Codes, float], float], needed: int = MIN_N, seed: int = 0) -> Effect:
    """One quantity over the requests whose time `at` (ascending) lies in each side: `value(positions, seconds of the side)`.

    The interval of the ratio: the standard error of its logarithm by block bootstrap, times Student's t for so few blocks. Assumes blocks
    of 30 s to be nearly independent: too narrow where a queue takes longer to come and go.
    """
    spans = (sides.before, sides.after)
    inside = [_within(at, span) for span in spans]
    n_before, n_after = (len(i) for i in inside)
    lengths = [b - a for a, b in spans]
    for name, length, n in (("before", lengths[0], n_before), ("after", lengths[1], n_after)):
        few = "" if n >= needed else f"only {n} requests {name} it, {needed} are needed"
        if length < MIN_SIDE_S:
            few = f"only {length:.0f} s {name} it, {MIN_SIDE_S:.0f} s are needed" + (
                ": another change is too near" if name == "before" or sides.complete else ""
            )
        if few:
            return Effect(measure, n_before=n_before, n_after=n_after, withheld=few + ("" if sides.complete else ", so far"))
    found = [value(i, length) for i, length in zip(inside, lengths, strict=True)]
    for name, v in zip(("before", "after"), found, strict=True):
        if not (np.isfinite(v) and v > 0):
            return Effect(measure, n_before=n_before, n_after=n_after, withheld=f"not to be had {name} it: too many without an answer")
    rng = np.random.default_rng(seed)
    logs = []
    for span, length in zip(spans, lengths, strict=True):
        drawn = np.array([value(i, length) if len(i) else np.nan for i in _blocks(at, span, rng)])
        logs.append(np.log(drawn[np.isfinite(drawn) & (drawn > 0)]))
    if min(len(drawn) for drawn in logs) < RESAMPLES / 2:
        return Effect(measure, n_before=n_before, n_after=n_after, withheld="too uneven in time for an interval")
    k = [max(2, round(length / BLOCK_S)) for length in lengths]
    error = float(np.sqrt(sum(drawn.var() * kk / (kk - 1) for drawn, kk in zip(logs, k, strict=True))))
    ratio = found[1] / found[0]
    spread = float(np.exp(student.ppf(0.95, sum(k) - 2) * error))
    return Effect(measure, found[0], found[1], ratio, ratio / spread, ratio * spread, n_before, n_after)


def estimate_effect(served: Served, sides: Sides, unqueued: str | None = None) -> tuple[Effect, ...]:
    """TTFT P50 and P99, PoA-hat and throughput before against after. `unqueued`: why PoA cannot be had (no curve).

    TTFT and PoA are of the requests that *arrived* in a side, for these were routed under its parameters; throughput counts what finished.
    A P99 needs 100 requests a side, everything 30. The sides are compared, nothing more: what else changed in these minutes (prompts, a
    worker, the warmth of the cache) is in the difference, and a switch made *because* latency rose looks better the later the rise is.
    """
    order = np.argsort(served.arrived_at, kind="stable")
    at, ttft = served.arrived_at[order], served.ttft_s[order]
    known = order[~np.isnan(served.actual_s[order] + served.unqueued_s[order])]
    actual, expected = served.actual_s[known], served.unqueued_s[known]
    ended = np.sort(served.finished_at[~np.isnan(served.finished_at)])

    def quantile(q: float) -> Callable[[Codes, float], float]:
        return lambda i, _: float(np.quantile(ttft[i], q, method="inverted_cdf"))

    poa = compare("poa_hat", served.arrived_at[known], sides, lambda i, _: float(actual[i].sum() / expected[i].sum()))
    if unqueued:
        poa = Effect("poa_hat", n_before=poa.n_before, n_after=poa.n_after, withheld=unqueued)
    found = (
        compare("ttft_p50_s", at, sides, quantile(0.5)),
        compare("ttft_p99_s", at, sides, quantile(0.99), MIN_TAIL_N),
        poa,
        compare("finished_per_s", ended, sides, lambda i, length: len(i) / length),
    )
    why = confounded(served, sides)
    return tuple(effect if effect.withheld else replace(effect, confounded=why) for effect in found)


def pooled(effects: Sequence[Effect]) -> Effect | None:
    """Several effects of the same measure as one: the mean of the logarithms of their ratios, weighed by precision, requests added up.

    Between them they may differ by more than their intervals say; then the interval widens by the scatter (DerSimonian and Laird).
    Those withheld or confounded are left out; None when none is left. `before` and `after` are those of the last.
    """
    sound = [
        (e, e.ratio, e.low, e.high)
        for e in effects
        if e.ratio is not None and e.low is not None and e.high is not None and not (e.withheld or e.confounded)
    ]
    if not sound:
        return None
    logs = np.log([ratio for _, ratio, _, _ in sound])
    errors = np.array([np.log(high / low) / 2 for _, _, low, high in sound])  # half of each 90 % interval
    weights = 1 / np.maximum(errors, 1e-6) ** 2
    mean = float((weights * logs).sum() / weights.sum())
    scatter = float((weights * (logs - mean) ** 2).sum()) * NORMAL_90**2
    between = max(0.0, (scatter - (len(sound) - 1)) / float(weights.sum() - (weights**2).sum() / weights.sum())) if len(sound) > 1 else 0.0
    weights = 1 / (np.maximum(errors, 1e-6) ** 2 + between)
    mean, half = float((weights * logs).sum() / weights.sum()), float(np.sqrt(1 / weights.sum()))
    last = sound[-1][0]
    return Effect(
        last.measure,
        last.before,
        last.after,
        float(np.exp(mean)),
        float(np.exp(mean - half)),
        float(np.exp(mean + half)),
        sum(e.n_before for e, *_ in sound),
        sum(e.n_after for e, *_ in sound),
    )
