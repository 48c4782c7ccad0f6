"""Latency quantiles: exact, and with those still waiting counted (Kaplan–Meier)."""

import numpy as np

from queries.estimators import Estimate
from queries.window import Floats


def quantile(seconds: Floats, q: float, as_of: float | None = None) -> Estimate:
    """The smallest observed value that at least a share q of the values do not exceed. Withheld when there are none.

    An order statistic, not an interpolation, so that it agrees with `censored_quantile` when nobody waits.
    """
    if len(seconds) == 0:
        return Estimate(None, withheld="no requests")
    return Estimate(float(np.quantile(seconds, q, method="inverted_cdf")), n=len(seconds), as_of=as_of)


def censored_quantile(seconds: Floats, waiting: Floats, q: float, as_of: float | None = None) -> Estimate:
    """The q-quantile of the latency of everyone, those who still wait included, as censored at their present age (Kaplan–Meier).

    seconds: latencies seen; waiting: ages of those who have none yet. Where too many wait for the curve to reach q, the greatest
    latency or age is returned as a lower bound (`at_least`). Assumes that those who wait are not systematically different from those
    who were served: false when priorities exist. Never below the plain quantile when every waiting age exceeds it.
    """
    n = len(seconds) + len(waiting)
    if n == 0:
        return Estimate(None, withheld="no requests")
    time = np.concatenate([seconds, waiting])
    seen = np.concatenate([np.ones(len(seconds), dtype=np.bool_), np.zeros(len(waiting), dtype=np.bool_)])
    order = np.lexsort((~seen, time))  # at a tie, latencies before censorings
    time, seen = time[order], seen[order]
    survival = np.cumprod(np.where(seen, 1 - 1 / (n - np.arange(n)), 1.0))
    reached = np.flatnonzero(survival <= 1 - q + 1e-12)
    if len(reached):
        return Estimate(float(time[reached[0]]), n=n, as_of=as_of)
    return Estimate(float(time[-1]), n=n, as_of=as_of, at_least=True)
