"""The pulse: one window in, one row of `signals` out, and what the next pulse must remember. Pure: no clock, no I/O."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from queries.estimators import Estimate, alarm
from queries.estimators.anarchy import (
    MIN_FINISHED,
    Lost,
    Share,
    cache_miss_seconds,
    doubt,
    frozen,
    lost_seconds,
    ratio,
    routing_factor,
    share,
)
from queries.estimators.baseline import Baseline
from queries.estimators.knee import Station, headroom_ratio, knee_inflight
from queries.estimators.latency import (
    MIN_DISTINCT,
    NO_SAMPLES,
    PRESETS,
    Curve,
    shortest_usual_s,
)
from queries.estimators.quantiles import censored_quantile, quantile
from queries.estimators.regime import STALE_AFTER_S, STEP_S, THRESHOLDS_S, Regime, step
from queries.memory import Memory as Memory
from queries.memory import dead_workers, learn, odd_ends, past_prefill, stay
from queries.window import Codes, Requests, Window, join

RATE_WINDOW_S = 10.0
Row = dict[str, Any]


class PulseConfig(Protocol):
    """The part of the settings that a pulse reads. preset: the regime's thresholds and the frozen estimator's curves."""

    @property
    def preset(self) -> str: ...
    @property
    def regime_source(self) -> str: ...
    @property
    def alarm_signal(self) -> str: ...
    @property
    def slo_ttft_s(self) -> float: ...


def _share(everyone: Requests, stage: str, dead: frozenset[int], curve: Curve, counted: Codes, window: Window) -> Share:
    return share(stay(everyone, stage, dead)[0], curve, counted, window.end, window.window_s)


@dataclass(frozen=True, slots=True)
class Anarchy:
    """Everything the row says about PoA. `why` explains a whole that is missing."""

    poa: Estimate
    ttft: Estimate
    routing: float | None = None
    lost: Lost | None = None
    frozen: float | None = None


def anarchy(window: Window, everyone: Requests, memory: Memory, preset: str, silent: bool) -> Anarchy:
    """PoA-hat, its parts and the papers' frozen one over the requests that finished in the window; TTFT over those that got their first
    token in it. Values that should not be trusted carry a reason and are drawn hollow; None where they cannot be computed."""
    dead, after = dead_workers(everyone), window.end - window.window_s
    r = everyone.take(~everyone.lost)  # when a lost request left its worker nobody knows, so it is no load either
    whole = ~np.isnan(r.arrived_at + r.decode_started_at + r.first_token_at)
    done = np.flatnonzero(whole & (r.finished_at > after) & (r.finished_at <= window.end))
    first = np.flatnonzero(whole & (r.first_token_at > after) & (r.first_token_at <= window.end))
    pools = ["prefill", "decode"] if (r.prefill >= 0).any() else ["decode"]
    past, short = past_prefill(r), r.finished_at - r.decode_started_at < shortest_usual_s(memory.samples.get("decode", NO_SAMPLES))
    odd = odd_ends(len(done), int(past[done].sum()), int((short & ~past)[done].sum()))
    done, first = done[~(past | short)[done]], first[~past[first]]
    if not len(done):
        nothing = Estimate(None, withheld=odd or "no requests finished in the window")
        return Anarchy(nothing, nothing)
    as_of = float(r.finished_at[done].max())
    actual = r.finished_at[done] - r.arrived_at[done]
    stays = [stay(r, pool, dead)[0] for pool in pools]
    # it has no reason beside it to be drawn hollow by, so of too few requests there is none
    old = (
        frozen(stays, list(PRESETS.get(preset, PRESETS["70b"])[-len(pools) :]), [done] * len(pools), actual)
        if len(done) >= MIN_FINISHED
        else None
    )
    for stage in [*pools, "first"]:
        if stage not in memory.curves:
            missing = Estimate(
                None, n=len(done), as_of=as_of, withheld=f"{stage} {memory.reasons.get(stage, 'fit declined (no requests)')}"
            )
            return Anarchy(missing, missing, frozen=old)
    ticks = window.end - np.arange(int(window.window_s), dtype=np.float64)
    lived = r.arrived_at, np.sort(r.finished_at[~np.isnan(r.finished_at)])
    inflight = np.searchsorted(np.sort(lived[0]), ticks, "right") - np.searchsorted(lived[1], ticks, "right")
    ticks_seen = ticks >= r.arrived_at.min()
    provisional = odd or next((f"{s} {memory.reasons[s]}" for s in [*pools, "first"] if s in memory.reasons), None)
    mean_inflight = float(inflight[ticks_seen].mean()) if ticks_seen.any() else 0.0

    shares = {pool: _share(r, pool, dead, memory.curves[pool], done, window) for pool in pools}
    expected = np.sum([s.unqueued for s in shares.values()], axis=0)
    poa = ratio(actual, expected, as_of, doubt(len(done), mean_inflight, window.gaps, silent, provisional))
    best = None if r.best_overlap_blocks is None else r.best_overlap_blocks[done]
    blocks, curve = r.input_blocks[done], memory.curves[pools[0]]
    # a prefill pool that was never seen to queue has a flat curve: all of f(1) is then the work of one prompt
    per_request_s = curve.slope_s or (float(curve.at(1)) if pools[0] == "prefill" else 0.0)
    missed = cache_miss_seconds(r.overlap_blocks[done], best, blocks, per_request_s, stays[0].workers)
    lost = lost_seconds(shares.get("prefill"), shares["decode"], r.decode_started_at[done] - r.prefill_done_at[done], missed)

    ttft = Estimate(None, withheld="no first tokens in the window")
    if len(first):
        expected = np.full(len(first), float(memory.curves["first"].at(1)))
        if "prefill" in pools:
            expected = expected + _share(r, "prefill", dead, memory.curves["prefill"], first, window).unqueued
        waited = r.first_token_at[first] - r.arrived_at[first]
        ttft = ratio(
            waited, expected, float(r.first_token_at[first].max()), doubt(len(first), mean_inflight, window.gaps, silent, provisional)
        )
    return Anarchy(poa, ttft, routing_factor(list(shares.values())), lost, old)


def is_silent(window: Window) -> bool:
    """No event for three steps although requests are open, or events were lost: what the window shows is not now."""
    age = None if window.events_as_of is None else window.end - window.events_as_of
    return age is None or (age > STALE_AFTER_S and (window.gaps > 0 or bool(window.recent.open_at(window.end).any())))


def unqueued_ttft_s(memory: Memory) -> float | None:
    """TTFT in a cluster that does not queue, by the fitted curves; None while one is missing or provisional."""
    stages = ("prefill", "first") if "prefill" in memory.samples else ("first",)
    if any(stage not in memory.curves or stage in memory.reasons for stage in stages):
        return None
    return float(sum(memory.curves[stage].at(1) for stage in stages))


def judge(
    regime: Regime,
    window: Window,
    preset: str,
    silent: bool,
    source: str = "censored",
    learnt: Baseline = Baseline(),  # noqa: B008
) -> Regime:
    """Step the regime every 5 s on one of three P99s; `unknown` while what it comes from is silent for three of these steps.

    `prometheus` is what the papers' controller saw: buckets of the last 60 s, in the open one its lower bound. It needs no events, and
    knows nothing of those who wait. `events` and `censored` look at the last 5 s: the smoothing is the EWMA's task, a longer window would
    smooth twice; `censored` counts those still waiting at their age.

    Below 100 requests that P99 is the worst request of all, so the worst of the whole window counts as its second worst: one that is stuck,
    or whose mark was lost, decides nothing while others are served. A queue that builds has more than one in it.
    """
    if source == "prometheus":
        age = None if window.metrics.as_of is None else window.end - window.metrics.as_of
        if age is None or age > STALE_AFTER_S:
            why = "no metrics read yet" if age is None else f"no metrics for more than {STALE_AFTER_S:.0f} s"
            return Regime("unknown", regime.ewma_s, regime.stepped_at, None, 0, why)
    elif silent:
        return Regime("unknown", regime.ewma_s, regime.stepped_at, None, 0, f"no events for more than {STALE_AFTER_S:.0f} s")
    if regime.stepped_at is not None and window.end - regime.stepped_at < STEP_S:
        return regime
    limits = learnt.thresholds_s if preset == "learn" else THRESHOLDS_S[preset]
    if limits is None:
        return Regime("unknown", None, window.end, None, 0, learnt.note)
    return step(regime, regime_p99(window, source), window.end, limits)


def regime_p99(window: Window, source: str) -> float | None:
    """The TTFT P99 that `judge` looks at, in seconds; None when there is none."""
    if source == "prometheus":
        seen_p99 = window.metrics.ttft_p99
        return seen_p99.value if seen_p99 else None
    r, end = window.recent, window.end
    seen = ~r.lost & (r.first_token_at > end - window.window_s) & (r.first_token_at <= end)
    fresh = seen & (r.first_token_at > end - STEP_S)
    seconds = (r.first_token_at - r.arrived_at)[fresh]
    waiting = end - r.arrived_at[r.open_at(end) & ~(r.first_token_at <= end)] if source == "censored" else np.empty(0)
    known = np.sort(np.concatenate([(r.first_token_at - r.arrived_at)[seen], waiting]))
    if len(known) > 1:
        seconds, waiting = np.minimum(seconds, known[-2]), np.minimum(waiting, known[-2])
    return censored_quantile(seconds, waiting, 0.99).value


def traffic(window: Window, silent: bool) -> tuple[Row, list[str]]:
    """Counts, rates and latency quantiles, and the reasons for what is missing. Rates are over the last 10 s."""
    r, end = window.recent, window.end
    after = end - window.window_s
    is_open = r.open_at(end)
    unserved = is_open & ~(r.first_token_at <= end)
    row: Row = dict.fromkeys(("inflight", "queued", "arrivals_per_s", "finished_per_s"))
    notes: list[str] = []
    unrouted = any(note.startswith("events: ") for note in window.notes)  # requests run that no event tells of: unknown, not none
    if window.events_as_of is None:
        notes.append("events: none yet")
    elif not window.routed and not unrouted:
        notes.append("events: no routing was heard yet; if there are requests, start the frontends with --router-replica-sync")
    elif not unrouted:
        row |= {"inflight": float(is_open.sum()), "queued": float(unserved.sum())}
        if silent:
            notes.append(f"events: silent for {end - window.events_as_of:.0f} s")
        else:
            span = min(RATE_WINDOW_S, window.window_s)
            arrived = (r.arrived_at > end - span) & (r.arrived_at <= end)
            finished = ~r.lost & (r.finished_at > end - span) & (r.finished_at <= end)
            row |= {"arrivals_per_s": float(arrived.sum()) / span, "finished_per_s": float(finished.sum()) / span}
    first = ~r.lost & (r.first_token_at > after) & (r.first_token_at <= end)
    ttft = r.first_token_at[first] - r.arrived_at[first]
    for name, q in (("ttft_p50_s", 0.5), ("ttft_p90_s", 0.9), ("ttft_p99_s", 0.99)):
        row[name] = quantile(ttft, q).value
    if not len(ttft):
        notes.append("ttft: no first tokens in the window")
    censored = censored_quantile(ttft, end - r.arrived_at[unserved], 0.99)
    row["ttft_p99_censored_s"] = None if silent or row["inflight"] is None else censored.value
    if censored.at_least:
        notes.append("ttft_p99_censored: at least")
    done = ~r.lost & (r.finished_at > after) & (r.finished_at <= end)
    row["e2e_p99_s"] = quantile((r.finished_at - r.arrived_at)[done], 0.99).value
    if not done.any():
        notes.append("e2e: no requests finished in the window")
    came = (r.arrived_at > after) & (r.arrived_at <= end) & ~np.isnan(r.overlap_blocks + r.input_blocks)
    blocks = float(r.input_blocks[came].sum())
    row["kv_hit_ratio"] = float(r.overlap_blocks[came].sum()) / blocks if blocks > 0 else window.metrics.kv_hit_ratio
    if row["kv_hit_ratio"] is None:
        notes.append("kv_hit_ratio: neither events nor metrics say")
    for name, seen in (
        ("ttft_p99_prometheus", window.metrics.ttft_p99),
        ("itl_p50", window.metrics.itl_p50),
        ("itl_p99", window.metrics.itl_p99),
    ):
        row[f"{name}_s"] = seen.value if seen else None
        if seen is None:
            notes.append(f"{name}: not reported or no traffic")
        elif seen.at_least:
            notes.append(f"{name}: at least")
    return row, notes


def pulse(window: Window, memory: Memory | None, config: PulseConfig) -> tuple[Row, Memory]:
    """One row with exactly the columns of `signals` (`ts` in Unix seconds), and the memory for the next pulse (None: the first).

    What is unknown is None with a reason in `quality`, as `subject: reason`; never zero. A PoA with `poa_withheld` set is to be drawn
    hollow. `*_s` of lost seconds are request-seconds in the window. Deterministic: the same windows give the same rows.
    """
    recent, end = window.recent, window.end
    # recent already holds whatever finished in the window; with the older history the load that each request met can be rebuilt
    everyone = join(window.history.take(window.history.finished_at <= end - window.window_s), recent)
    silent = is_silent(window)
    memory = learn(memory or Memory(), everyone.take(~everyone.lost), end)
    regime = judge(memory.regime, window, config.preset, silent, config.regime_source, memory.baseline)
    row, notes = traffic(window, silent)
    baseline = memory.baseline
    if config.preset == "learn":
        if regime.stepped_at != memory.regime.stepped_at:
            r = window.recent.take((window.recent.first_token_at > end - STEP_S) & (window.recent.first_token_at <= end))
            typical = quantile((r.first_token_at - r.arrived_at)[~r.lost], 0.5).value
            baseline = baseline.add(regime_p99(window, config.regime_source), typical, unqueued_ttft_s(memory))
        notes.append(baseline.note)
    memory = replace(memory, regime=regime, baseline=baseline)
    a = anarchy(window, everyone, memory, config.preset, silent)
    n_star = knee(everyone, memory, end, window.window_s)
    if n_star.value is None:
        notes.append(f"knee: {n_star.withheld}")
    if a.poa.withheld:
        notes.append(f"poa: {a.poa.withheld}")
    if 0 < a.poa.n < MIN_FINISHED:
        notes.append(f"poa_frozen: {a.poa.n} finished < {MIN_FINISHED}")
    if a.ttft.withheld and a.ttft.withheld != a.poa.withheld:
        notes.append(f"poa_ttft: {a.ttft.withheld}")
    if a.lost and a.lost.cache_miss_s is None:
        notes.append("cache_miss: overlap with other workers unknown")
    if a.lost and a.lost.prefill_queue_s is None:
        notes.append("prefill_queue, transfer: no prefill pool")
    if window.tau is None or window.omega is None:
        notes.append("tau, omega: unknown or mixed")
    if window.mode is None:
        notes.append("mode: no intent heard")
    if regime.held:
        notes.append(f"regime: {regime.held}")
    if regime.ewma_s is None:
        notes.append("ttft_ewma: no P99 yet")
    if window.gaps:
        notes.append(f"gaps: {window.gaps} in the window")
    parts = ("prefill_queue_s", "imbalance_s", "cache_miss_s", "transfer_s", "other_s")
    row |= {name: getattr(a.lost, name) if a.lost else None for name in parts}
    row |= {
        "ts": end,
        "deployment": window.deployment,
        "ttft_ewma_s": regime.ewma_s,
        "poa_hat": a.poa.value,
        "poa_low": a.poa.low,
        "poa_high": a.poa.high,
        "poa_n": a.poa.n,
        "poa_withheld": a.poa.withheld,
        "poa_frozen": a.frozen,
        "poa_ttft": a.ttft.value,
        "poa_routing": a.routing,
        "poa_temporal": a.poa.value / a.routing if a.poa.value is not None and a.routing else None,
        "knee_inflight": n_star.value,
        "headroom_ratio": headroom_ratio(row["inflight"], n_star.value) if n_star.value and row["inflight"] is not None else None,
        "regime": regime.name,
        "mode": window.mode,
        "tau": window.tau,
        "omega": window.omega,
        "quality": [*notes, *window.notes, *window.metrics.notes],
    }
    return row, replace(memory, alarm=alarm.watch(memory.alarm, row, config.alarm_signal, config.slo_ttft_s))


def knee(everyone: Requests, memory: Memory, end: float, window_s: float) -> Estimate:
    """N* of the pools in use; withheld as long as one of them has no curve or a flat one, which may be the bottleneck, and while
    requests that ended in the window were led past the prefill pool, or more than the fit has room for."""
    ended = ~everyone.lost & (everyone.finished_at > end - window_s)
    if odd := odd_ends(int(ended.sum()), int((ended & past_prefill(everyone)).sum()), 0):
        return Estimate(None, withheld=odd)
    stations = []
    dead = dead_workers(everyone)
    for pool in ["prefill", "decode"] if (everyone.prefill >= 0).any() else ["decode"]:
        curve = memory.curves.get(pool)
        if curve is None:
            return Estimate(None, withheld=f"{pool} {memory.reasons.get(pool, 'fit declined (no requests)')}")
        if curve.loads < MIN_DISTINCT:
            return Estimate(None, withheld=f"{pool} seen at {curve.loads} loads < {MIN_DISTINCT}")
        stations.append(Station(curve, max(1, stay(everyone, pool, dead)[0].workers)))
    return knee_inflight(stations, float(ended.sum()) / window_s)
