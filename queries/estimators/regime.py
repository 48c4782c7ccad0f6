"""The regime by TTFT P99: the papers' smoothed thresholds, with hysteresis, dwell and honesty about stale input."""

from dataclasses import dataclass, replace

THRESHOLDS_S: dict[str, tuple[float, float]] = {"70b": (0.3, 2.0), "340b": (1.0, 10.0)}
ALPHA = 0.3
STEP_S = 5.0
LEAVE_RATIO = 0.8
MIN_DWELL_S = 10.0
STALE_AFTER_S = 15.0  # three missed steps
REGIMES = ("below", "transition", "saturated")


@dataclass(frozen=True, slots=True)
class Regime:
    """`name` is one of REGIMES or `unknown`; `held` says why it was not judged anew. Times are Unix seconds of events.

    The smoothed P99 starts from rest (0 s), as the papers' does: a first burst on an idle system is a burst, not a regime.
    """

    name: str = "unknown"
    ewma_s: float | None = None
    stepped_at: float | None = None
    since: float | None = None
    calm_steps: int = 0
    held: str | None = None


def _level(ewma_s: float, thresholds: tuple[float, float], now: int) -> int:
    """The level for a smoothed P99: up when it passes a threshold, down only when it is under 0.8 of it."""
    up = sum(ewma_s > t for t in thresholds)
    down = sum(ewma_s > LEAVE_RATIO * t for t in thresholds)
    return max(up, min(now, down))


def step(
    regime: Regime, p99_s: float | None, now: float, thresholds: tuple[float, float], *, alpha: float = ALPHA, dwell_s: float = MIN_DWELL_S
) -> Regime:
    """One step of 5 s: L̄ = α·L + (1−α)·L̄, then the level. `p99_s` None (no requests): the last state is held.

    Leaving downwards takes a dwell of 10 s. A smoothed value remembers a saturation for half a minute after it is over, so when two
    steps in a row have L itself under the level that L̄ is to leave, L̄ starts again from L; the papers' loop would stay wrong that long.
    """
    if p99_s is None:
        held = "no requests: last state held" if regime.name in REGIMES else "no requests yet"
        return replace(regime, stepped_at=now, calm_steps=0, held=held)
    ewma = alpha * p99_s + (1 - alpha) * (regime.ewma_s or 0.0)
    level = REGIMES.index(regime.name) if regime.name in REGIMES else 0
    calm = regime.calm_steps + 1 if level > 0 and p99_s <= LEAVE_RATIO * thresholds[level - 1] else 0
    if calm >= 2:
        ewma, calm = min(ewma, p99_s), 0
    wanted = _level(ewma, thresholds, level)
    dwelt = regime.since is None or now - regime.since >= dwell_s
    if regime.name in REGIMES and (wanted == level or (wanted < level and not dwelt)):
        return replace(regime, ewma_s=ewma, stepped_at=now, calm_steps=calm, held=None)
    return Regime(REGIMES[wanted], ewma, now, now, 0 if wanted != level else calm, None)
