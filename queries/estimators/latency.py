"""Latency models f(n): seconds a request spends in a stage of a worker that n requests share, itself included.

What the recordings of real clusters taught, against the plain fit of stage seconds on the n found at routing:
- A worker that prefills in batches (Dynamo 1.x) gives the first and the last of a burst the same seconds, so seconds say nothing about
  the n found at routing. They do say something about the requests *completed* on the worker meanwhile: seconds ≈ s + a·(completed − 1),
  whatever the order of service, and in a steady state completed ≈ n (Little). The fit therefore uses `completed_meanwhile`.
- f is written s + a·(n − 1) and not a·n + b: on 0.9 an idle prefill mocker answers in 2 ms and a busy one takes 60 ms for each request
  ahead, which would need b < 0. s, a ≥ 0 keep n·f(n) convex, which is all that the exact optimum needs.
- Between n = 1 and 2 the line does not hold there: the mocker answers first and is busy afterwards, so the first request takes 10 ms and
  each one behind it 69. A line through both is a third too steep. What one more request costs is therefore read from those that queued
  (`demand_s`), which is what the knee needs; f stays the line.
- A prefill worker that serves in order is *exactly* linear in n however long its queue, so f(n) itself cannot tell work from waiting.
  Throughput can: n/f(n) grows until the two asymptotes n/s and 1/a meet at n = s/a. Past that `knee`, a further request adds waiting and
  no work. `unqueued` is f held at its knee: what the stage costs a request in a system that does not queue there.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from queries.window import Codes, Floats

MIN_REQUESTS = 30
MIN_DISTINCT = 3
PROVISIONAL_REQUESTS = 16
HELD_OUT_GAIN = 0.9  # the pole must cut the held-out error by a tenth, or noise would choose it every other time
BATCH_S = 0.02
BEND = 0.05  # a pole is looked for only where the highest tenth of the loads lies this much above the line: the search costs 20 ms
PER_OCTAVE = 200
MAX_AGE_S = 1800.0
SHORT_OF_USUAL, USUAL_SHARE = 0.5, 0.05


@dataclass(frozen=True, slots=True)
class Curve:
    """f(n) = idle_s + slope_s·(n − 1) + pole_s/(n_sat − n)^beta, the last term only when n_sat is finite; n ≥ 1.

    `requests`: how many it was fitted on, and `loads`: how many different n they met; 0 for a preset. `queued_s`: the slope among those
    that queued alone, None while they are too few.
    """

    idle_s: float
    slope_s: float
    pole_s: float = 0.0
    n_sat: float = np.inf
    beta: float = 1.0
    requests: int = 0
    loads: int = 0
    queued_s: float | None = None

    @property
    def demand_s(self) -> float:
        """Seconds of work that one more request brings to a worker that is never idle."""
        return self.slope_s if self.queued_s is None else self.queued_s

    def at(self, n: ArrayLike) -> Floats:
        """Seconds at n requests. From 99 % of n_sat on the pole is held, so that the curve stays finite."""
        n = np.asarray(n, dtype=np.float64)
        line = self.idle_s + self.slope_s * (n - 1)
        if np.isinf(self.n_sat):
            return line
        return np.asarray(line + self.pole_s / (self.n_sat - np.minimum(n, 0.99 * self.n_sat)) ** self.beta)

    @property
    def knee(self) -> float:
        """Requests at which one worker's throughput stops growing; infinite when nothing was seen to grow with n."""
        knee = float(self.at(1)) / self.slope_s if self.slope_s > 0 else np.inf
        if np.isfinite(self.n_sat):
            n = np.arange(1, max(2, int(self.n_sat)))
            knee = min(knee, float(n[np.argmax(n / self.at(n))]))
        return max(1.0, knee)

    def unqueued(self, n: ArrayLike) -> Floats:
        """Seconds at n requests in a system that does not queue here: f held at its knee."""
        return self.at(np.minimum(np.asarray(n, dtype=np.float64), self.knee))

    def social(self, n: ArrayLike) -> Floats:
        """n·f(n): what n requests on one worker cost together (0 for 0)."""
        n = np.asarray(n, dtype=np.float64)
        return np.where(n > 0, n * self.at(np.maximum(n, 1)), 0.0)


# The papers print their plateau (PoA-hat 7.47 and 18.7 below the knee, ITL near 22 ms, 256 tokens) and not their coefficients. These
# are solved back from it: flat curves that make a request of 5.6 s read as that plateau. They are uncalibrated, as theirs were.
PRESETS: dict[str, tuple[Curve, Curve]] = {
    "70b": (Curve(0.05, 0.0005), Curve(0.70, 0.0005)),
    "340b": (Curve(0.05, 0.0002), Curve(0.25, 0.0002)),
}


@dataclass(frozen=True, slots=True)
class Samples:
    """What a curve is fitted on: requests completed on the worker meanwhile (itself included), seconds, and Unix seconds of the end."""

    n: Floats
    seconds: Floats
    at: Floats

    def __len__(self) -> int:
        return len(self.n)

    def take(self, mask: NDArray[np.bool_]) -> "Samples":
        return Samples(self.n[mask], self.seconds[mask], self.at[mask])

    def join(self, more: "Samples") -> "Samples":
        return Samples(*(np.concatenate([getattr(self, f), getattr(more, f)]) for f in ("n", "seconds", "at")))


NO_SAMPLES = Samples(np.empty(0), np.empty(0), np.empty(0))


def completed_meanwhile(start: Floats, end: Floats, worker: Codes) -> Floats:
    """Requests that the same worker completed in (start, end], itself included: ≥ 1. NaN where start, end or worker is unknown.

    Ends within 20 ms of each other are one batch, all of it completed at its last end. What was under way at `start` counts for the part
    still to be done: completions are spread evenly over the time the worker was busy with them.
    """
    counts = np.full(len(start), np.nan)
    for j in np.unique(worker[worker >= 0]):
        here = (worker == j) & ~np.isnan(start)
        mine = np.flatnonzero(here & ~np.isnan(end))
        if not len(mine):
            continue
        ends = np.sort(end[mine])
        last = np.append(np.diff(ends) >= BATCH_S, True)
        done, total = ends[last], np.flatnonzero(last) + 1.0
        before = np.append(0.0, total[:-1])
        # with as many arrivals as departures so far the worker fell idle, and began again with the next arrival
        began = np.maximum(np.append(-np.inf, done[:-1]), np.sort(start[here])[before.astype(np.int64)])
        knots, reached = np.stack([np.minimum(began, done), done], axis=1).ravel(), np.stack([before, total], axis=1).ravel()
        batch = np.searchsorted(done, end[mine], "left")
        counts[mine] = np.maximum(1.0, total[batch] - np.interp(start[mine], knots, reached))
    return counts


def octave(n: Floats) -> Floats:
    """1, 2, 3–4, 5–8, 9–16, …"""
    return np.ceil(np.log2(np.maximum(n, 1)))


def remember(samples: Samples, new: Samples, now: float) -> Samples:
    """The reservoir with new samples: the newest 200 of each octave of n, so that a long saturation cannot flush what was seen unqueued.

    Samples older than 30 min go, except the newest 30 of an octave.
    """
    both = samples.join(new)
    n, at = both.n, both.at
    order = np.lexsort((-at, octave(n)))
    groups = octave(n)[order]
    first = np.searchsorted(groups, groups, "left")
    rank = np.arange(len(order)) - first
    keep = np.sort(order[(rank < PER_OCTAVE) & ((at[order] > now - MAX_AGE_S) | (rank < MIN_REQUESTS))])
    return Samples(n[keep], both.seconds[keep], at[keep])


def shortest_usual_s(samples: Samples) -> float:
    """Seconds under which a stay is no sample: half of what all but the shortest twentieth took. 0 while there are fewer than 30.

    Of a stream that was cut nothing says so but its end, and a hundred of them would turn the curve over. Answers whose lengths have always
    been mixed are not short by this: under exponentially distributed lengths one in forty is.
    """
    return SHORT_OF_USUAL * float(np.quantile(samples.seconds, USUAL_SHARE)) if len(samples) >= MIN_REQUESTS else 0.0


def _relative(curve_seconds: Floats, seconds: Floats, floor: float) -> Floats:
    return np.asarray((seconds - curve_seconds) / (curve_seconds + floor))


def _line(n: Floats, seconds: Floats, floor: float) -> tuple[float, float]:
    """Huber regression of relative residuals by reweighting; s, a ≥ 0. Relative, or long stays would decide what the short ones are."""
    x = n - 1
    weight = 1 / (seconds + floor) ** 2
    s = a = 0.0
    for _ in range(25):
        w, wx = weight.sum(), (weight * x).sum()
        mean_x, mean_y = wx / w, (weight * seconds).sum() / w
        spread = (weight * (x - mean_x) ** 2).sum()
        slope = (weight * (x - mean_x) * (seconds - mean_y)).sum() / spread if spread > 0 else 0.0
        new_a = max(0.0, slope)
        new_s = mean_y - new_a * mean_x
        if new_s < 0:
            new_s, new_a = 0.0, max(0.0, (weight * x * seconds).sum() / (weight * x * x).sum())
        done = abs(new_s - s) <= 1e-6 * (new_s + floor) and abs(new_a - a) <= 1e-6 * (new_a + floor)
        s, a = float(new_s), float(new_a)
        if done:
            break
        residual = np.abs(_relative(s + a * x, seconds, floor))
        scale = max(1.4826 * float(np.median(residual)), 1e-3)
        weight = np.minimum(1.0, 1.345 * scale / np.maximum(residual, 1e-12)) / (s + a * x + floor) ** 2
    return s, a


def _pole(n: Floats, seconds: Floats, floor: float, start: tuple[float, float], top: float) -> Curve:
    """Line and pole together, soft-L1. n_sat comes back well, pole_s and beta only together."""

    def curve(p: Any) -> Curve:
        return Curve(float(p[0]), float(p[1]), float(p[2]), top * (1 + float(p[3])), float(p[4]))

    def residuals(p: Any) -> Floats:
        return _relative(curve(p).at(n), seconds, floor)

    s, a = start
    found = least_squares(
        residuals,
        x0=[max(s, 1e-6), max(a, 1e-9), max(s, 1e-6), 0.1, 1.0],
        bounds=([0, 0, 0, 0.011, 0.3], [np.inf, np.inf, np.inf, 4.0, 3.0]),
        x_scale=[max(s, 1e-3), max(a, 1e-4), max(s, 1e-3), 0.1, 1.0],
        loss="soft_l1",
        f_scale=0.1,
        max_nfev=40,
    )
    return curve(found.x)


def queued(samples: Samples) -> float | None:
    """Seconds that each further request took among those that met others (n ≥ 2). None below 16 of them, or of fewer than 3 different n."""
    met = samples.take(samples.n >= 2)
    if len(met) < PROVISIONAL_REQUESTS or len(np.unique(np.round(met.n))) < MIN_DISTINCT:
        return None
    slope = _line(met.n, met.seconds, 0.05 * float(np.median(met.seconds)) + 1e-9)[1]
    return slope if slope > 0 else None


def _provisional(count: int) -> str | None:
    return f"fit provisional ({count} requests < {MIN_REQUESTS})" if count < MIN_REQUESTS else None


def fit_constant(samples: Samples) -> tuple[Curve | None, str | None]:
    """The median as a flat curve, for a stage that does not depend on n (the first decode step). Declined as `fit` is."""
    if len(samples) < PROVISIONAL_REQUESTS:
        return None, f"fit declined ({len(samples)} requests < {MIN_REQUESTS})"
    return Curve(float(np.median(samples.seconds)), 0.0, requests=len(samples)), _provisional(len(samples))


def fit(samples: Samples) -> tuple[Curve | None, str | None]:
    """The curve, and a reason when there is none or when what rests on it is to be drawn hollow.

    Declined below 16 requests, provisional below 30. With fewer than 3 distinct n no slope can be told: the median, flat, which holds for
    the loads seen and for no others. A calm prefill pool is always found empty: that is f(1) measured, and declining would leave calm
    without a PoA; of a pool that was never seen idle, a flat curve might be a queue, and a reason says so. Neither has a knee. The pole
    is kept only if it beats the line on every fifth request, held out. Lies when the requests differ much in length, or the workers in
    speed.
    """
    n, seconds = samples.n, samples.seconds
    count, distinct = len(n), len(np.unique(np.round(n)))
    if count < PROVISIONAL_REQUESTS:
        return None, f"fit declined ({count} requests < {MIN_REQUESTS})"
    if distinct < MIN_DISTINCT:
        idle = float(np.median(n)) < 1.5
        reason = None if idle else f"fit flat ({distinct} distinct n < {MIN_DISTINCT})"
        return Curve(float(np.median(seconds)), 0.0, requests=count, loads=distinct), _provisional(count) or reason
    floor = 0.05 * float(np.median(seconds)) + 1e-9
    s, a = _line(n, seconds, floor)
    chosen = Curve(s, a, requests=count, loads=distinct)
    top = n >= 0.9 * n.max()
    bends = n.max() >= 8 and float(np.median(_relative(chosen.at(n[top]), seconds[top], floor))) > BEND
    if count >= MIN_REQUESTS * 2 and bends:
        pick = np.unique(np.linspace(0, count - 1, min(count, 300)).astype(np.int64))
        held = np.arange(len(pick)) % 5 == 0
        learn, test = pick[~held], pick[held]
        line = Curve(*_line(n[learn], seconds[learn], floor))
        pole = _pole(n[learn], seconds[learn], floor, (line.idle_s, line.slope_s), float(n.max()))
        error = [float(np.mean(np.abs(_relative(c.at(n[test]), seconds[test], floor)))) for c in (line, pole)]
        if error[1] < HELD_OUT_GAIN * error[0]:
            chosen = replace(pole, requests=count, loads=distinct)
    chosen = replace(chosen, queued_s=queued(samples))
    return chosen, _provisional(count)
