"""The early warning: a CUSUM on one signal, its limits learnt on the deployment's own quiet time, and its track record. Pure.

S = max(0, S + (x − reference)/scale), Page's one-sided cumulative sum, once a second. x is the signal so that more is worse; reference =
median of quiet time + one scale; scale = 1.4826·MAD of it. Neighbouring seconds share 30 s of requests, so textbook limits for independent
samples do not hold: the limit is one and a half times the greatest S that quiet time itself would have reached. *Lies* when what it learnt
as quiet was not (an hour under its objective, though close to it), and is blind to what breaks faster than the signal moves.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from queries.window import Floats

SIGNALS = ("headroom", "poa_ttft", "poa_hat", "ttft_ewma")
MIN_QUIET_S, MAX_QUIET = 300, 3600
PROVEN_AFTER_S = 60.0  # what comes just before trouble is not quiet, and is known only afterwards
RELEARN = 30
MIN_SCALE = {"headroom": 0.02, "poa_ttft": 0.05, "poa_hat": 0.01, "ttft_ewma": 0.05}
# A load under three quarters of the knee may be unusual and is no danger: without this a busier day is an alarm.
HARMLESS = {"headroom": 0.75}
MIN_LIMIT, MARGIN = 5.0, 1.5
LEAVE_RATIO = 0.5
BLIND_S = 30.0
RECOVERED_S = 30.0
GIVEN_UP_S = 300.0
TOLD_EVERY_S = 60.0


_COLUMNS = {"headroom": "headroom_ratio", "poa_ttft": "poa_ttft", "poa_hat": "poa_hat", "ttft_ewma": "ttft_ewma_s"}


# of `signals`: all that a second of the alarm reads
COLUMNS = ("ts", "arrivals_per_s", "regime", "poa_withheld", "ttft_p99_censored_s", *_COLUMNS.values())


def of_row(signal: str, row: Mapping[str, Any]) -> float | None:
    """The value in a row of `signals`; None where it is withheld, stale or drawn hollow: that warns of nothing and teaches nothing."""
    value = row[_COLUMNS[signal]]
    silent = row["regime"] == "unknown" if signal == "ttft_ewma" else row["arrivals_per_s"] is None
    hollow = silent or (signal.startswith("poa") and row["poa_withheld"] is not None)
    return None if value is None or hollow else float(value)


def badness(signal: str, value: float | None) -> float | None:
    """The signal as x: more is worse. Ratios and seconds by their logarithm; headroom as the share of the knee that is in use."""
    if value is None or not math.isfinite(value):
        return None
    if signal == "headroom":
        return 1 - value
    return math.log(value) if value > 0 else None


def level(signal: str, x: float) -> float:
    """The signal's own value for an x."""
    return 1 - x if signal == "headroom" else math.exp(x)


@dataclass(frozen=True, slots=True)
class Baseline:
    """What quiet time looks like: S grows where x is above `reference`, by (x − reference)/scale, and alarms at `limit`."""

    reference: float
    scale: float
    limit: float
    seconds: int


def path(x: Floats, reference: float, scale: float) -> Floats:
    """S after each value, from 0: the running sum less its running minimum."""
    total = np.cumsum((x - reference) / scale)
    return np.asarray(total - np.minimum(np.minimum.accumulate(total), 0.0))


def learn(signal: str, quiet: Floats) -> Baseline | None:
    """Limits from seconds of quiet time, oldest first; None below five minutes of them."""
    if len(quiet) < MIN_QUIET_S:
        return None
    centre = float(np.median(quiet))
    scale = max(1.4826 * float(np.median(np.abs(quiet - centre))), MIN_SCALE[signal])
    reference = max(centre + scale, HARMLESS.get(signal, -math.inf))
    return Baseline(reference, scale, max(MIN_LIMIT, MARGIN * float(path(quiet, reference, scale).max())), len(quiet))


@dataclass(frozen=True, slots=True)
class Said:
    """Something happened, or (`watch`, `learning`) a minute passed in which nothing did. One row of the table `alarms`.

    event: learning, armed, watch, alarm, breach, recovered; false: an alarm ended, or rang for 5 min, without a breach; cleared: another
    ended. `state` afterwards: learning, armed or alarm; `since` when. `lead_s`: of a breach that was warned of. `watched_s`: armed seconds
    since what was said before.
    """

    ts: float
    event: str
    state: str
    since: float
    value: float | None = None
    reference: float | None = None
    lead_s: float | None = None
    watched_s: float = 0.0
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Alarm:
    """What the next second must know of the ones before. `said`: what the last step has to tell. Times are Unix seconds."""

    signal: str = SIGNALS[0]
    state: str = "learning"
    since: float | None = None
    total: float = 0.0
    baseline: Baseline | None = None
    quiet: Floats = field(default_factory=lambda: np.empty(0))
    unproven: tuple[tuple[float, float], ...] = ()
    unlearnt: int = 0
    seen_at: float | None = None
    over_at: float | None = None
    spent: bool = False  # a breach has come of this alarm, or it was given up as false: what follows it did not announce
    watched_s: float = 0.0
    told_at: float | None = None
    said: tuple[Said, ...] = ()

    @property
    def in_breach(self) -> bool:
        return self.over_at is not None


def step(alarm: Alarm, now: float, value: float | None, p99_s: float | None, slo_s: float) -> Alarm:
    """One second. value: the signal, None where it is withheld; p99_s: the TTFT P99 that the objective is about, None without requests."""
    x = badness(alarm.signal, value)
    a = replace(alarm, said=(), since=now if alarm.since is None else alarm.since, told_at=now if alarm.told_at is None else alarm.told_at)
    if a.seen_at is not None and now - a.seen_at > BLIND_S:
        a = _blind(a, now, now - a.seen_at)
    if x is not None:
        if a.baseline is not None:
            passed = 0.0 if a.seen_at is None else min(now - a.seen_at, 1.0)
            total = a.total + (x - a.baseline.reference) / a.baseline.scale
            a = replace(a, total=min(max(0.0, total), 2 * a.baseline.limit), watched_s=a.watched_s + passed)
        a = replace(a, seen_at=now)
    a = _breach(a, now, value, p99_s, slo_s)
    a = _judge(a, now, value)
    a = _learn(a, now, x, p99_s)
    if now - (a.told_at or now) >= TOLD_EVERY_S:
        a = _tell(a, now, "learning" if a.state == "learning" else "watch", value)
    return a


def watch(alarm: Alarm, row: Mapping[str, Any], signal: str, slo_s: float) -> Alarm:
    """One second by its row of `signals`. Another signal than before starts anew. The objective is judged by those still waiting too."""
    if alarm.signal != signal:
        alarm = Alarm(signal)
    return step(alarm, row["ts"], of_row(signal, row), row["ttft_p99_censored_s"], slo_s)


def _tell(a: Alarm, now: float, event: str, value: float | None, lead_s: float | None = None, why: str | None = None) -> Alarm:
    reference = None if a.baseline is None else level(a.signal, a.baseline.reference)
    if why is None and a.state == "learning":
        why = progress(a)
    said = Said(now, event, a.state, now if a.since is None else a.since, value, reference, lead_s, a.watched_s, why)
    return replace(a, said=(*a.said, said), watched_s=0.0, told_at=now)


def _blind(a: Alarm, now: float, seconds: float) -> Alarm:
    """Nothing was seen for a while: what an alarm would have come to nobody knows, so it is neither right nor false."""
    a = replace(a, total=0.0, unproven=(), seen_at=None)
    if a.state == "alarm":
        a = _tell(replace(a, state="armed", since=now), now, "cleared", None, why=f"not watched for {seconds:.0f} s")
    return a


def progress(a: Alarm) -> str:
    """How much quiet time there is of how much it takes."""
    return f"{len(a.quiet)} of {MIN_QUIET_S} s of quiet time learnt"


def _breach(a: Alarm, now: float, value: float | None, p99_s: float | None, slo_s: float) -> Alarm:
    """The objective is broken from its first second until it was kept for 30 s."""
    if p99_s is not None and p99_s > slo_s:
        begins = a.over_at is None
        lead = now - a.since if a.state == "alarm" and not a.spent and a.since is not None else None
        a = replace(a, over_at=now, spent=a.spent or a.state == "alarm", unproven=())
        if begins:
            a = _tell(a, now, "breach", value, lead)
    elif a.over_at is not None and now - a.over_at >= RECOVERED_S:
        a = _tell(replace(a, over_at=None), now, "recovered", value)
    return a


def _judge(a: Alarm, now: float, value: float | None) -> Alarm:
    limit = math.inf if a.baseline is None else a.baseline.limit
    if a.state == "armed" and a.total >= limit:
        return _tell(replace(a, state="alarm", since=now, spent=a.in_breach, unproven=()), now, "alarm", value)
    if a.state != "alarm" or a.in_breach:
        return a
    if a.total <= LEAVE_RATIO * limit:
        return _tell(replace(a, state="armed", since=now), now, "cleared" if a.spent else "false", value)
    if not a.spent and _rang_long(a, now):
        return _tell(replace(a, spent=True), now, "false", value, why=f"nothing followed for {GIVEN_UP_S:.0f} s")
    return a


def _rang_long(a: Alarm, now: float) -> bool:
    return a.state == "alarm" and a.since is not None and now - a.since > GIVEN_UP_S


def _learn(a: Alarm, now: float, x: float | None, p99_s: float | None) -> Alarm:
    """Quiet seconds: the objective kept, no alarm, and so for a minute more. What still rings after 5 min is the new usual."""
    usual = a.state != "alarm" or _rang_long(a, now)
    if x is None or p99_s is None or a.in_breach or not usual:
        return a
    unproven = (*a.unproven, (now, x))
    proven = [v for at, v in unproven if at <= now - PROVEN_AFTER_S]
    if not proven:
        return replace(a, unproven=unproven)
    quiet = np.append(a.quiet, proven)[-MAX_QUIET:]
    a = replace(a, quiet=quiet, unproven=unproven[len(proven) :], unlearnt=a.unlearnt + len(proven))
    if a.unlearnt < RELEARN and a.baseline is not None:
        return a
    a = replace(a, baseline=learn(a.signal, quiet) or a.baseline, unlearnt=0)
    if a.state == "learning" and a.baseline is not None:
        a = _tell(replace(a, state="armed", since=now), now, "armed", None)
    return a


@dataclass(frozen=True, slots=True)
class Record:
    """The track record. `leads_s` of the breaches warned of; `untested`: breaches before it was armed, which count for nothing."""

    breaches: int
    leads_s: tuple[float, ...]
    untested: int
    false_alarms: int
    watched_s: float

    @property
    def missed(self) -> int:
        return self.breaches - len(self.leads_s)

    @property
    def false_per_hour(self) -> float | None:
        return self.false_alarms * 3600 / self.watched_s if self.watched_s > 0 else None


def record(said: Iterable[Said]) -> Record:
    """What the alarm was worth so far, from everything it said."""
    every = list(said)
    breaches = [s for s in every if s.event == "breach" and s.state != "learning"]
    return Record(
        breaches=len(breaches),
        leads_s=tuple(s.lead_s for s in breaches if s.lead_s is not None),
        untested=sum(s.event == "breach" and s.state == "learning" for s in every),
        false_alarms=sum(s.event == "false" for s in every),
        watched_s=sum(s.watched_s for s in every),
    )
