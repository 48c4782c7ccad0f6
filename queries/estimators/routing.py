"""The routing game at one moment: what the placement of requests costs together, against the cheapest placement.

Social cost SC = Σ_j n_j·f(n_j) − saved·Σ o_qj. The k-th request on a worker adds the marginal k·f(k) − (k−1)·f(k−1), increasing because
f is convex, so the cheapest placement is one assignment of requests to slots. Without overlaps and with one curve for all workers that
assignment is solved by an even spread, which needs no solver: this is what the pulse uses, for every second of the window.
"""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, milp
from scipy.sparse import coo_array

from queries.estimators.latency import Curve
from queries.window import Codes, Floats


def even_cost(curve: Curve, requests: Floats, workers: int) -> Floats:
    """The least SC of n requests over m alike workers: n mod m of them hold one more than the others. Shape of `requests`."""
    low = np.floor(requests / workers)
    more = requests - low * workers
    return np.asarray((workers - more) * curve.social(low) + more * curve.social(low + 1))


def counts_each_second(start: Floats, end: Floats, place: Codes, workers: int, until: float, seconds: int) -> Floats:
    """Requests on each worker at `until`, `until` − 1 s, …: shape (workers, seconds), oldest first. A NaN end is still open.

    One pass whatever the number of seconds: +1 at the first snapshot a stay covers, −1 after the last.
    """
    first = until - seconds + 1
    known = (place >= 0) & ~np.isnan(start)
    enter = np.clip(np.ceil(start[known] - first), 0, seconds).astype(np.int64)
    leave = np.where(np.isnan(end[known]), seconds, np.clip(np.ceil(end[known] - first), 0, seconds)).astype(np.int64)
    change = np.zeros((workers, seconds + 1))
    np.add.at(change, (place[known], enter), 1)
    np.add.at(change, (place[known], np.maximum(enter, leave)), -1)
    return np.cumsum(change, axis=1)[:, :seconds]


def price(curve: Curve, counts: Floats) -> float:
    """SC over the seconds of `counts` (workers × seconds) against the even spread of each second: ≥ 1; 1 when nobody was there."""
    best = float(even_cost(curve, counts.sum(axis=0), len(counts)).sum()) if len(counts) else 0.0
    return max(1.0, float(curve.social(counts).sum()) / best) if best > 0 else 1.0  # below 1 only by rounding


def social_cost(curve: Curve, place: Codes, overlap: Floats, saved_s: float = 0.0) -> float:
    """SC of a placement. place: (N,) worker of each request; overlap: (N, m) blocks each worker holds; saved_s: seconds a block saves."""
    counts = np.bincount(place, minlength=overlap.shape[1]).astype(np.float64)
    saved = saved_s * float(overlap[np.arange(len(place)), place].sum())
    return float(curve.social(counts).sum()) - saved


def social_optimum(curve: Curve, overlap: Floats, saved_s: float = 0.0) -> float:
    """The least SC over all placements, exact with overlaps too. overlap: (N, m).

    Requests with the same row of overlaps are one class. Classes × workers × slots is a transport problem with whole-number vertices, so
    the linear programme (HiGHS) is exact: milliseconds where the N × N·m Hungarian takes seconds.
    """
    n, m = int(overlap.shape[0]), int(overlap.shape[1])
    if n == 0:
        return 0.0
    rows, sizes = np.unique(overlap, axis=0, return_counts=True)
    classes = len(rows)
    if classes == 1 and (rows == rows[0, 0]).all():
        return float(even_cost(curve, np.array([float(n)]), m)[0]) - saved_s * n * float(rows[0, 0])
    slots = np.arange(1, n + 1, dtype=np.float64)
    marginal = curve.social(slots) - curve.social(slots - 1)
    # variables: x[class, worker], then y[worker, slot] in [0, 1]
    x, y = classes * m, m * n
    cost = np.concatenate([(-saved_s * rows).ravel(), np.tile(marginal, m)])
    c, j = np.divmod(np.arange(x), m)
    row = np.concatenate([c, classes + j, classes + np.repeat(np.arange(m), n)])
    column = np.concatenate([np.arange(x), np.arange(x), x + np.arange(y)])
    value = np.concatenate([np.ones(2 * x), -np.ones(y)])
    equal = coo_array((value, (row, column)), shape=(classes + m, x + y)).tocsr()
    right = np.concatenate([sizes.astype(np.float64), np.zeros(m)])
    upper = np.concatenate([np.full(x, np.inf), np.ones(y)])
    solved = milp(cost, constraints=LinearConstraint(equal, right, right), bounds=Bounds(0.0, upper))
    return float(cost @ solved.x)


def frozen_optimum(cost: Floats) -> float:
    """The papers' OPT: each request to one worker, each worker ⌈N/m⌉ slots, latencies frozen. cost: (N, m) seconds.

    m ≤ 2 is a sort, up to 128 requests an assignment on N × m·⌈N/m⌉; beyond, the bound of `_frozen_bound`.
    """
    n, m = cost.shape
    if n == 0 or m == 0:
        return 0.0
    if m == 1:
        return float(cost.sum())
    slots = -(-n // m)
    if m == 2:
        gain = np.sort(cost[:, 0] - cost[:, 1])  # the first worker takes those it serves best, between n − slots and slots of them
        taken = min(max(int((gain < 0).sum()), n - slots), slots)
        return float(cost[:, 1].sum() + gain[:taken].sum())
    if n <= 128:
        r, c = linear_sum_assignment(np.repeat(cost, slots, axis=1))
        return float(np.repeat(cost, slots, axis=1)[r, c].sum())
    return _frozen_bound(cost, slots)


def _frozen_bound(cost: Floats, slots: int, rounds: int = 30) -> float:
    """A lower bound of the assignment by its dual: a price on each worker, raised where too many want it (projected subgradient).

    Any prices give a bound, so the ratio built on it stays an upper bound; within 1 % of the optimum on the loads tried.
    """
    price = np.zeros(cost.shape[1])
    best = -np.inf
    reach = float(np.ptp(cost, axis=1).mean())
    for k in range(rounds):
        priced = cost + price
        choice = priced.argmin(axis=1)
        best = max(best, float(priced[np.arange(len(cost)), choice].sum() - slots * price.sum()))
        excess = np.bincount(choice, minlength=cost.shape[1]) - slots
        if excess.max() <= 0 or reach == 0:
            break
        price = np.maximum(0.0, price + reach / (1 + k) * excess / np.abs(excess).max())
    return best


def inflight_at(start: Floats, end: Floats, place: Codes, workers: int, at: Floats) -> Floats:
    """Requests on each worker just before each moment of `at`: shape (len(at), workers). A NaN end is still open."""
    counts = np.zeros((len(at), workers))
    for j in range(workers):
        mine = place == j
        ends = end[mine]
        counts[:, j] = np.searchsorted(np.sort(start[mine]), at, "left") - np.searchsorted(np.sort(ends[~np.isnan(ends)]), at, "right")
    return np.maximum(counts, 0)
