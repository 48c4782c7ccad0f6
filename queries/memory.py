"""What one pulse leaves to the next: the samples and curves of each stage, and which requests and workers are fit to be counted. Pure."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from queries.estimators.alarm import Alarm
from queries.estimators.anarchy import Stay
from queries.estimators.baseline import Baseline
from queries.estimators.latency import NO_SAMPLES, Curve, Samples, completed_meanwhile, fit, fit_constant, remember, shortest_usual_s
from queries.estimators.regime import Regime
from queries.window import Codes, Requests

REFIT_S = 10.0
ODD_SHARE = 0.05  # with more of a window's ends cut short, or led past a pool, what the others say is not the whole
SHORT_HOLD_S = 300.0
STAGES = ("prefill", "first", "decode")


@dataclass(frozen=True, slots=True)
class Memory:
    """What a deployment's next pulse needs of its last ones. Start with Memory().

    samples, curves, reasons: by stage of STAGES; a reason says why a curve is missing or provisional. Times are Unix seconds of events.
    short: decode stays too short to be samples, the first of them at `short_since`; emptied when they are few, or are the new usual.
    """

    samples: dict[str, Samples] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    sampled_until: float | None = None
    fitted_at: float | None = None
    short: Samples = NO_SAMPLES
    short_since: float | None = None
    regime: Regime = field(default_factory=Regime)
    alarm: Alarm = field(default_factory=Alarm)
    baseline: Baseline = field(default_factory=Baseline)


def stay(requests: Requests, stage: str, dead: frozenset[int]) -> tuple[Stay, Codes]:
    """One stage of the requests' lives, workers numbered within it, and their codes in `requests.workers`.

    prefill: arrived → prefill done, on the prefill worker. first: decode started → first token. decode: decode started → finished.
    """
    start, end, code, found = {
        "prefill": (requests.arrived_at, requests.prefill_done_at, requests.prefill, requests.prefill_inflight),
        "first": (requests.decode_started_at, requests.first_token_at, requests.decode, np.full(len(requests), np.nan)),
        "decode": (requests.decode_started_at, requests.finished_at, requests.decode, requests.decode_inflight),
    }[stage]
    roster = np.array([c for c in np.unique(code[code >= 0]) if int(c) not in dead], dtype=np.int64)
    place = np.searchsorted(roster, code)
    there = place < len(roster)
    there[there] = roster[place[there]] == code[there]
    return Stay(start, end, np.where(there, place, -1), found, len(roster)), roster


def dead_workers(requests: Requests) -> frozenset[int]:
    """Codes of workers whose newest request was lost, or ended without the prefill it was there for: they hold no more load and must not
    look idle to the optimum. Of a pool that is dead altogether none: they are who served what was served."""
    gone: set[int] = set()
    unserved = np.isnan(requests.prefill_done_at) & ~np.isnan(requests.finished_at)
    for code, failed in ((requests.prefill, requests.lost | unserved), (requests.decode, requests.lost)):
        dead: set[int] = set()
        for c in np.unique(code[failed & (code >= 0)]):
            mine = np.flatnonzero(code == c)
            if failed[mine[np.argsort(requests.arrived_at[mine], kind="stable")[-1]]]:
                dead.add(int(c))
        gone |= dead if len(dead) < len(np.unique(code[code >= 0])) else set()
    return frozenset(gone)


def past_prefill(requests: Requests) -> NDArray[np.bool_]:
    """Mask: a prefill pool serves, and these had none of it (it was down, or they were led past it): their decode has the prefill in it."""
    return np.isnan(requests.prefill_done_at) & bool((requests.prefill >= 0).any())


def odd_ends(ended: int, past: int, short: int) -> str | None:
    """Why the requests that ended well do not speak for the window; None when at most one in twenty ended otherwise."""
    if past > ODD_SHARE * ended:
        return f"{past} of {ended} had no prefill from its pool"
    if short > ODD_SHARE * ended:
        return f"{short} of {ended} ended short: cut streams or very short answers"
    return None


def without_short(memory: Memory, usual: Samples, new: Samples, end: float) -> tuple[Memory, Samples, Samples]:
    """Decode: the samples so far, and the new ones without those too short to be any, which go to `memory.short`.

    When for five minutes more than one in twenty was short, that is what answers are like now: the samples start anew from there.
    """
    odd = new.seconds < shortest_usual_s(usual)
    kept, short = new.take(~odd), remember(memory.short, new.take(odd), end)
    since = memory.short_since
    if since is None and len(short):
        since = float(short.at.min())
    if since is not None and end - since >= SHORT_HOLD_S:
        lately = usual.take(usual.at >= since)
        if len(short) > ODD_SHARE * (len(short) + len(lately) + len(kept)) and short.at.max() > end - SHORT_HOLD_S / 5:
            usual, kept = lately, short.join(kept)
        short, since = NO_SAMPLES, None
    return replace(memory, short=short, short_since=since), usual, kept


def learn(memory: Memory, everyone: Requests, end: float) -> Memory:
    """Add the newly finished requests to the samples, and fit again every 10 s of event time; sooner while there is no firm fit."""
    since = -np.inf if memory.sampled_until is None else memory.sampled_until
    samples, grew = dict(memory.samples), False
    past = past_prefill(everyone)
    for stage in STAGES:
        here, _ = stay(everyone, stage, frozenset())
        new = np.flatnonzero((here.end > since) & (here.end <= end) & (here.place >= 0) & ~past)
        if len(new):
            n = completed_meanwhile(here.start, here.end, here.place)[new]
            added = Samples(n, np.maximum(here.end[new] - here.start[new], 0.0), here.end[new])
            so_far = samples.get(stage, NO_SAMPLES)
            if stage == "decode":
                memory, so_far, added = without_short(memory, so_far, added, end)
            samples[stage] = remember(so_far, added, end)
            grew = True
    memory = replace(memory, samples=samples, sampled_until=max(since, end))
    due = memory.fitted_at is None or end - memory.fitted_at >= REFIT_S or (memory.reasons and end - memory.fitted_at >= 1)
    if not (grew or memory.samples) or not due:
        return memory
    curves, reasons = {}, {}
    for stage, seen in samples.items():
        # behind a prefill pool the first decode step is a constant; without one, the first token has all of the queueing in it
        curve, reason = fit_constant(seen) if stage == "first" and "prefill" in samples else fit(seen)
        if curve:
            curves[stage] = curve
        if reason:
            reasons[stage] = reason
    return replace(memory, curves=curves, reasons=reasons, fitted_at=end)
