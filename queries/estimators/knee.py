"""Where the knee lies: asymptotic bounds of a closed network, and the waiting time of an open queue to compare with."""

import math
from dataclasses import dataclass

from queries.estimators import Estimate
from queries.estimators.latency import Curve

OVER_CAPACITY = 1.25  # requests come out in clumps


@dataclass(frozen=True, slots=True)
class Station:
    """A pool in the network: its curve and how many workers share its arrivals."""

    curve: Curve
    workers: int


def knee_inflight(stations: list[Station], served_per_s: float = 0.0) -> Estimate:
    """N* = ΣR / D_max: requests in flight beyond which the bottleneck is never idle (Denning & Buzen's asymptotic bounds).

    R: unqueued seconds in each pool, f(1). D_max: the greatest demand per request and worker, `demand_s / workers`: what one more request
    adds to its worker's work, so batching in decode is not mistaken for being busy. Assumes a closed loop without think time, balanced
    workers, and prompts like those the curves were fitted on (prefix hits shorten prefill and move the knee up). No bottleneck serves more
    than 1/D_max: where `served_per_s`, over a window, is a quarter beyond that, the fit is off and the knee withheld.
    """
    if not stations:
        return Estimate(None, withheld="no pools")
    demand = max(s.curve.demand_s / s.workers for s in stations)
    if demand <= 0:
        return Estimate(None, withheld="no pool's seconds grow with load yet")
    if served_per_s * demand > OVER_CAPACITY:
        return Estimate(None, withheld=f"{served_per_s:.1f} served a second, where the fit allows {1 / demand:.1f}: the fit is off")
    return Estimate(sum(float(s.curve.at(1)) for s in stations) / demand, n=min(s.curve.requests for s in stations))


def headroom_ratio(inflight: float, knee: float) -> float:
    """1 − inflight/N*: negative beyond the knee."""
    return 1 - inflight / knee


def waiting_s(arrivals_per_s: float, service_s: float, servers: int, arrival_cv2: float = 1.0, service_cv2: float = 1.0) -> float:
    """Mean wait in a queue G/G/k by Allen and Cunneen: (ca² + cs²)/2 × Erlang C's wait for M/M/k. Infinite at or beyond saturation.

    With Poisson arrivals (ca² = 1) this is the M/G/k baseline; exact for M/M/k and M/G/1.
    """
    offered = arrivals_per_s * service_s
    if offered >= servers:
        return math.inf
    blocking = 1.0
    for k in range(1, servers + 1):  # Erlang B by recursion: no factorials, no overflow
        blocking = offered * blocking / (k + offered * blocking)
    busy = blocking / (1 - offered / servers * (1 - blocking))
    return (arrival_cv2 + service_cv2) / 2 * busy * service_s / (servers - offered)
