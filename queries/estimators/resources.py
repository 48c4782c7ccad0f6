"""The resource game: how the workers are split between prefill and decode, and what one more on either side would bring.

One model answers all of it. A request passes a prefill pool of k servers, each taking `demand_s` of work a request, and a decode pool whose
workers slow down with the requests they share:

    prefill_s(X) = f_p(1) + W(X)       W: the wait of M/G/k by Allen and Cunneen, at X requests a second
    decode_s(X)  = f_d(n), n = X·decode_s(X)/m      by Little's law, so (f_d(1) − b)/(1 − X·b/m) with b the slope of f_d; f_d(1) at least

As many requests stay in flight as now (a closed loop, as users who wait for their answer are), so X solves N = X·(prefill_s + decode_s).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from queries.estimators.knee import waiting_s
from queries.estimators.latency import Curve
from queries.window import Floats


def utilisation(curve: Curve, served_per_s: float, workers: int) -> float | None:
    """X·a/m, the share of the most that the pool can serve (utilisation law). None for a flat curve: no most was ever seen."""
    return served_per_s * curve.demand_s / workers if curve.demand_s > 0 and workers > 0 else None


def variation2(values: Floats) -> float | None:
    """Squared coefficient of variation of what is known; None for fewer than 8 values."""
    known = values[~np.isnan(values)]
    mean = float(known.mean()) if len(known) >= 8 else 0.0
    return float(known.var()) / mean**2 if mean > 0 else None


@dataclass(frozen=True, slots=True)
class Loop:
    """A deployment as the model has it. inflight: N; itl_s: as measured now, which ties decode seconds to seconds a token.

    arrival_cv2, service_cv2: squared variation of the gaps between arrivals, and of the blocks that a prefill computes.
    """

    prefill: Curve
    decode: Curve
    prefill_workers: int
    decode_workers: int
    inflight: float
    itl_s: float | None = None
    arrival_cv2: float = 1.0
    service_cv2: float = 1.0

    def prefill_s(self, per_s: float, workers: int) -> float:
        """Seconds until the prompt is read; infinite where more arrives than the pool serves."""
        wait = waiting_s(per_s, self.prefill.demand_s, workers, self.arrival_cv2, self.service_cv2)
        return float(self.prefill.at(1)) + wait

    def decode_s(self, per_s: float, workers: int) -> float:
        slope = self.decode.slope_s
        room = 1 - per_s * slope / workers
        alone = float(self.decode.at(1))
        return max(alone, (alone - slope) / room) if room > 0 else math.inf

    def per_s(self, prefill_workers: int, decode_workers: int) -> float:
        """Requests served a second with these workers: the X at which N are in flight. Bisection, since both stages grow with X."""
        low, high = 0.0, self.inflight / (float(self.prefill.at(1)) + float(self.decode.at(1)))
        high *= 1 + 1e-9
        for _ in range(60):
            x = (low + high) / 2
            if x * (self.prefill_s(x, prefill_workers) + self.decode_s(x, decode_workers)) > self.inflight:
                high = x
            else:
                low = x
        return low


@dataclass(frozen=True, slots=True)
class Gains:
    """What one more worker would take off, in seconds: of prefill off TTFT, of decode off ITL (None while ITL is not measured)."""

    ttft_s: float
    itl_s: float | None


def _itl_s(loop: Loop, per_s: float, now: float, workers: int) -> float | None:
    """The ITL measured now, moved as the model moves the decode seconds."""
    if loop.itl_s is None:
        return None
    return loop.itl_s * loop.decode_s(per_s, workers) / loop.decode_s(now, loop.decode_workers)


def gains(loop: Loop) -> Gains:
    """Marginal gains: the pool gets one worker more, the other pool and the requests in flight stay."""
    p, d = loop.prefill_workers, loop.decode_workers
    now = loop.per_s(p, d)
    ttft = loop.prefill_s(now, p) - loop.prefill_s(loop.per_s(p + 1, d), p + 1)
    after = _itl_s(loop, loop.per_s(p, d + 1), now, d + 1)
    return Gains(max(0.0, ttft), None if after is None or loop.itl_s is None else max(0.0, loop.itl_s - after))


@dataclass(frozen=True, slots=True)
class Split:
    """Workers of prefill out of the same total: at the variational equilibrium and at the social optimum. e2e_s: seconds a request, now and
    at the optimum."""

    equilibrium: int
    optimum: int
    now_e2e_s: float
    best_e2e_s: float


def split(loop: Loop, slo_ttft_s: float, slo_itl_s: float) -> Split | None:
    """How the present workers would be dealt if they could change pools.

    Variational equilibrium: the next worker improves either SLO equally, each pool looking at its own latency under the load it sees now.
    On whole workers that is the least of TTFT/SLO + ITL/SLO. Social optimum: the fewest seconds from arrival to the last token, with what
    one pool does to the other's load; it may differ either way. None with fewer than three workers (nothing to deal), nothing
    in flight, or no ITL. Assumes that a worker does as well in the other pool, and that moving it is free.
    """
    total = loop.prefill_workers + loop.decode_workers
    if total < 3 or loop.inflight <= 0 or loop.itl_s is None:
        return None
    now = loop.per_s(loop.prefill_workers, loop.decode_workers)

    def selfish(p: int) -> float:
        itl = _itl_s(loop, now, now, total - p)
        assert itl is not None
        return loop.prefill_s(now, p) / slo_ttft_s + itl / slo_itl_s

    def social(p: int) -> float:
        return loop.inflight / loop.per_s(p, total - p)

    def least(cost: Callable[[int], float]) -> int:
        """Downhill from the present split, a worker at a time: both costs have one valley, and of equals the nearest is wanted."""
        best, at = cost(loop.prefill_workers), loop.prefill_workers
        for step in (1, -1):
            while 1 <= at + step < total and (there := cost(at + step)) < best * (1 - 1e-6):
                best, at = there, at + step
        return at

    optimum = least(social)
    return Split(least(selfish), optimum, social(loop.prefill_workers), social(optimum))
