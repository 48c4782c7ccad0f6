"""The classifier played again: when would other thresholds, another α, dwell or P99 have switched? By the same functions as live."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from queries.estimators.regime import REGIMES, STEP_S, Regime, step
from queries.signals import regime_p99
from queries.window import Floats, Metrics, Quantile, from_table, window_at

SOURCES = ("censored", "events", "prometheus")


@dataclass(frozen=True, slots=True)
class Rule:
    """θ₁ and θ₂ in seconds, the α of the smoothing (every 5 s), the least dwell before going down, and which P99 it looks at."""

    theta_s: tuple[float, float] = (0.3, 2.0)
    alpha: float = 0.3
    dwell_s: float = 10.0
    source: str = "censored"


@dataclass(frozen=True, slots=True)
class Switch:
    """`at`: Unix seconds. p99_s: what was looked at; ewma_s: smoothed."""

    at: float
    before: str
    after: str
    p99_s: float | None
    ewma_s: float | None


@dataclass(frozen=True, slots=True)
class Played:
    """One row a step: at (Unix s), p99_s (NaN: none), ewma_s, regime. away: switches that were taken back within `FALSE_S`.
    assumptions: as sentences; refused: why nothing was played."""

    at: Floats
    p99_s: Floats
    ewma_s: Floats
    regime: tuple[str, ...]
    switches: tuple[Switch, ...]
    away: int
    assumptions: tuple[str, ...]
    refused: str | None = None


FALSE_S = 30.0
NOTHING = np.empty(0)


def _prometheus(signals: pa.Table) -> tuple[Floats, Floats]:
    rows = [(row["ts"], row["ttft_p99_prometheus_s"]) for row in signals.select(["ts", "ttft_p99_prometheus_s"]).to_pylist()]
    seen = [(_unix(ts), value) for ts, value in rows if value is not None]
    return np.array([t for t, _ in seen]), np.array([v for _, v in seen])


def _unix(ts: object) -> float:
    from datetime import UTC

    return float(ts.replace(tzinfo=UTC).timestamp())  # type: ignore[attr-defined]


def play(requests: pa.Table, signals: pa.Table, rule: Rule, window_s: float = 30.0) -> Played:
    """From rows of `requests` and `signals` of one deployment and span, a step every 5 s, on the beat of whole multiples."""
    r = from_table(requests)
    if not len(r):
        return _refused("no requests in this span")
    if rule.source not in SOURCES:
        return _refused(f"{rule.source} - no such P99; {', '.join(SOURCES)}")
    if not 0 < rule.alpha <= 1 or not 0 < rule.theta_s[0] < rule.theta_s[1] or not rule.dwell_s >= 0:
        return _refused("θ₁ < θ₂ must be above 0, α within 0 and 1, and the dwell not below 0")
    times, values = _prometheus(signals)
    if rule.source == "prometheus" and not len(times):
        return _refused("no TTFT P99 from Prometheus was stored in this span")
    start, end = float(r.arrived_at[0]), float(np.nanmax(np.concatenate([r.arrived_at, r.finished_at])))
    ticks = np.arange(np.ceil(start / STEP_S) * STEP_S, end + STEP_S, STEP_S)
    regime, rows, switches = Regime(), [], []
    for t in ticks:
        p99 = regime_p99(window_at(r, float(t), window_s, metrics=_metrics(times, values, float(t))), rule.source)
        before = regime
        regime = step(regime, p99, float(t), rule.theta_s, alpha=rule.alpha, dwell_s=rule.dwell_s)
        rows.append((float(t), np.nan if p99 is None else p99, np.nan if regime.ewma_s is None else regime.ewma_s, regime.name))
        if regime.name != before.name and before.name in REGIMES:
            switches.append(Switch(float(t), before.name, regime.name, p99, regime.ewma_s))
    away = sum(b.at - a.at <= FALSE_S and b.after == a.before for a, b in pairwise(switches))
    said = [
        "Latencies are those that were recorded: had it switched at another time, other requests would have been slow.",
        "Only what ended is in the rows, so those who still waited when the trace ends are not counted as waiting.",
    ]
    if rule.source == "prometheus":
        said.append("Prometheus' P99 is the stored one, of the last 60 s.")
    at, p99s, ewmas, names = zip(*rows, strict=True)
    return Played(np.array(at), np.array(p99s), np.array(ewmas), names, tuple(switches), away, tuple(said))


def _metrics(times: Floats, values: Floats, t: float) -> Metrics:
    k = int(np.searchsorted(times, t, "right")) - 1
    return Metrics(as_of=float(times[k]), ttft_p99=Quantile(float(values[k]))) if k >= 0 and t - times[k] <= STEP_S else Metrics()


def _refused(why: str) -> Played:
    return Played(NOTHING, NOTHING, NOTHING, (), (), 0, (), why)


def recorded_switches(signals: pa.Table) -> tuple[Switch, ...]:
    """What the stored regime did, from rows of `signals` in order of time."""
    switches: list[Switch] = []
    before: str | None = None
    for row in signals.select(["ts", "regime", "ttft_p99_censored_s", "ttft_ewma_s"]).to_pylist():
        name = row["regime"]
        if before is not None and before in REGIMES and name is not None and name != before:
            switches.append(Switch(_unix(row["ts"]), before, name, row["ttft_p99_censored_s"], row["ttft_ewma_s"]))
        before = name
    return tuple(switches)
