"""The three games every few seconds: what each costs now, which costs most, and which lever helps. Pure, from the pulse's own window."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from queries.estimators.anarchy import Stay
from queries.estimators.cache import Hits, hits
from queries.estimators.knee import Station, knee_inflight, waiting_s
from queries.estimators.latency import Curve
from queries.estimators.resources import Loop, gains, split, utilisation, variation2
from queries.estimators.routing import counts_each_second
from queries.memory import Memory, dead_workers, past_prefill, stay
from queries.window import Requests, Window, join

EVERY_S = 5
LITTLE = 0.02  # of a request's seconds: what costs less is not worth a lever
Row = dict[str, Any]


class GamesConfig(Protocol):
    """The part of the settings that is read: what one second of TTFT weighs against one of ITL."""

    @property
    def slo_ttft_s(self) -> float: ...
    @property
    def slo_itl_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Costs:
    """Request-seconds of the window by game; None where unknown. n: requests finished in it, e2e_s: their seconds together."""

    routing: float | None
    cache: float | None
    resources: float | None
    n: int
    e2e_s: float


def costliest(costs: Costs) -> tuple[str | None, float | None]:
    """The game that costs most and its request-seconds; `none` where that is under a fiftieth of what requests took; None: unknown."""
    known = {name: s for name in ("routing", "cache", "resources") if (s := getattr(costs, name)) is not None}
    if not known or costs.n == 0:
        return None, None
    name = max(known, key=lambda game: known[game])
    return (name if known[name] > LITTLE * costs.e2e_s else "none"), known[name]


def overstated(costs: Costs) -> str | None:
    """Why the costs are not to be trusted although PoA may be: they add up to the excess, so one far below zero means that another is
    too great. So it is after the hit ratio rose, while prefill's curve still knows longer prompts."""
    known = [s for s in (costs.routing, costs.cache, costs.resources) if s is not None]
    if known and -min(known) > 0.5 * max(known) and max(known) > LITTLE * costs.e2e_s:
        return "the parts cancel out, so prefill's curve is slower than prefill is now"
    return None


def verdict(costs: Costs, window: Window, doubt: str | None, lost_blocks: float | None, ttft_gain_s: float | None) -> Row:
    """`costliest, cost_s, sentence, lever`: the line on top of the page, in seconds, and what helps (or that no parameter can)."""
    name, cost = costliest(costs)
    if name is None or cost is None:
        return {
            "costliest": None,
            "cost_s": None,
            "sentence": f"Cannot tell which game costs most: {doubt or 'no fit yet'}.",
            "lever": None,
        }
    each, share, span = cost / costs.n, cost / costs.e2e_s, f"{window.window_s:.0f} s"
    if name == "none":
        sentence = f"No game costs much now: the most is {max(0.0, each):.2g} s a request, {max(0.0, 100 * share):.1f} % of its time."
        lever = "Parameters do not matter here; leave them."
    else:
        sentence = (
            f"The {name[:-1] if name == 'resources' else name} game costs most now: {each:.2g} s a request, {100 * share:.0f} % of its time"
        )
        sentence += f" ({cost:.0f} s in the last {span})."
        blocks = "" if lost_blocks is None else f": {lost_blocks:.0f} blocks that another worker held were computed again"
        more = "" if ttft_gain_s is None else f"; a prefill worker more would take {ttft_gain_s:.2g} s off TTFT"
        lever = {
            "routing": "A higher τ spreads the load.",
            "cache": f"A higher ω follows the cache{blocks}.",
            "resources": f"No routing parameter can help{more or ': more prefill or less load does'}.",
        }[name]
    if doubt:
        lever += f" With doubt: {doubt}."
    if costs.cache is None:
        lever += " What the cache game costs is unknown."
    return {"costliest": name, "cost_s": cost, "sentence": sentence, "lever": lever}


def loads(window: Window, everyone: Requests, dead: frozenset[int], pools: list[str]) -> list[Row]:
    """Rows of `game_loads`: requests present on each worker, mean of the last 5 s, and in the cheapest placement of the same requests.

    The workers of a pool share one curve, so the cheapest is the even spread; what their caches hold is left out of it.
    """
    found = []
    for pool in pools:
        here, roster = stay(everyone, pool, dead)
        if not here.workers:
            continue
        counts = counts_each_second(here.start, here.end, here.place, here.workers, window.end, EVERY_S).mean(axis=1)
        for code, load in zip(roster, counts, strict=True):
            worker, rank = everyone.workers[int(code)]
            role = pool if len(pools) > 1 else "aggregated"
            row = {"ts": window.end, "deployment": window.deployment, "role": role, "worker_id": worker, "dp_rank": rank}
            found.append(row | {"load": float(load), "optimum": float(counts.mean())})
    return found


def _waits(
    window: Window, here: Stay, curve: Curve, arrived_per_s: float, arrival_cv2: float, service_cv2: float
) -> tuple[float | None, float]:
    """Mean wait of the prompts read in the window, beyond f(1); and what M/G/k predicts at the same arrivals."""
    read = (here.end > window.end - window.window_s) & (here.end <= window.end)
    measured = max(0.0, float((here.end - here.start)[read].mean()) - float(curve.at(1))) if read.any() else None
    return measured, waiting_s(arrived_per_s, curve.demand_s, max(1, here.workers), arrival_cv2, service_cv2)


def resources(window: Window, everyone: Requests, memory: Memory, config: GamesConfig) -> tuple[Row, Loop | None, list[str]]:
    """The resource part of the row; the model behind it, None where a curve is missing; and what is missing."""
    row: Row = {}
    if not (everyone.prefill >= 0).any():
        return row, None, ["resources: one pool does prefill and decode, so there is no split between them"]
    alive, dead = everyone.take(~everyone.lost), dead_workers(everyone)
    stays = {pool: stay(alive, pool, dead)[0] for pool in ("prefill", "decode")}
    row |= {f"{pool}_workers": here.workers for pool, here in stays.items()}
    if missing := next((p for p in stays if p not in memory.curves or not stays[p].workers), None):
        return row, None, [f"resources: {missing} {memory.reasons.get(missing, 'fit declined (no requests)')}"]
    after, notes = window.end - window.window_s, []
    for pool, here in stays.items():
        served = float(((here.end > after) & (here.end <= window.end)).sum()) / window.window_s
        row[f"{pool}_busy_ratio"] = busy = utilisation(memory.curves[pool], served, here.workers)
        if busy is None:
            notes.append(f"{pool}_busy: seconds were not seen to grow with load yet")
    if row["prefill_busy_ratio"] is None:
        return row, None, [*notes, "resources: what a prefill worker can serve at most is not known before it has queued"]
    came = np.sort(alive.arrived_at[(alive.arrived_at > after) & (alive.arrived_at <= window.end)])
    gap_cv2 = variation2(np.diff(came))
    computed = (alive.input_blocks - alive.overlap_blocks)[alive.arrived_at > after]
    work_cv2 = variation2(np.maximum(computed, 0.0))
    if work_cv2 is None:
        notes.append("wait_predicted: too few prompts of known length, so service is taken for exponential")
    arrival_cv2, service_cv2 = 1.0 if gap_cv2 is None else gap_cv2, 1.0 if work_cv2 is None else work_cv2
    row["wait_s"], predicted = _waits(
        window, stays["prefill"], memory.curves["prefill"], len(came) / window.window_s, arrival_cv2, service_cv2
    )
    row["wait_predicted_s"] = predicted if np.isfinite(predicted) else None
    if not np.isfinite(predicted):
        notes.append("wait_predicted: more arrives than prefill can serve, so no steady wait exists")
    ticks = window.end - np.arange(int(window.window_s), dtype=np.float64)
    present = [float(((alive.arrived_at <= t) & ~(alive.finished_at <= t)).sum()) for t in ticks]
    itl = window.metrics.itl_p50.value if window.metrics.itl_p50 and not window.metrics.itl_p50.at_least else None
    loop = Loop(
        memory.curves["prefill"],
        memory.curves["decode"],
        stays["prefill"].workers,
        stays["decode"].workers,
        float(np.mean(present)),
        itl,
        arrival_cv2,
        service_cv2,
    )
    if loop.inflight <= 0:
        return row, None, [*notes, "resources: nothing in flight"]
    gain = gains(loop)
    row |= {"ttft_gain_s": gain.ttft_s, "itl_gain_s": gain.itl_s}
    dealt = split(loop, config.slo_ttft_s, config.slo_itl_s)
    if itl is None:
        notes.append("resources: ITL is not measured, so the pools' latencies cannot be weighed against each other")
    elif dealt is None:
        notes.append("resources: fewer than three workers, so there is nothing to deal")
    else:
        row |= {"equilibrium_prefill": dealt.equilibrium, "optimum_prefill": dealt.optimum}
        row |= {"e2e_s": dealt.now_e2e_s, "e2e_optimum_s": dealt.best_e2e_s}
    return row, loop, notes


def followed(loop: Loop, found: Hits) -> Loop | None:
    """The model had every request been sent to where most of its blocks lay: prefill's work shrinks with the blocks to compute."""
    if found.possible_ratio is None or found.chosen_ratio is None or found.chosen_ratio >= 1:
        return None
    left = (1 - found.possible_ratio) / (1 - found.chosen_ratio)
    curve = loop.prefill
    queued = None if curve.queued_s is None else curve.queued_s * left
    return replace(loop, prefill=replace(curve, idle_s=curve.idle_s * left, slope_s=curve.slope_s * left, queued_s=queued))


def coupling(row: Mapping[str, Any], found: Hits, loop: Loop | None, knee: float | None) -> Row:
    """How the games move each other now, as sentences of this window's numbers, and the two numbers behind the third of them."""
    said: list[str] = []
    extra: Row = {"prefill_busy_followed_ratio": None, "knee_followed_inflight": None}
    p, d = row.get("prefill_workers"), row.get("decode_workers")
    if p and d:
        choice = "no parameter changes where a prompt is read" if p == 1 else f"a prompt has {p} workers to go to"
        said.append(f"Split → routing and cache: with {p} prefill and {d} decode workers {choice}.")
    if found.lost_blocks is not None and found.possible_ratio is not None and found.chosen_ratio is not None and (p or 0) != 1:
        could = f"{100 * found.chosen_ratio:.0f} % of the blocks were found where {100 * found.possible_ratio:.0f} % could be"
        said.append(f"Routing → cache: {could}; {found.lost_blocks:.0f} were computed again.")
    then = followed(loop, found) if loop else None
    busy = row.get("prefill_busy_ratio")
    if loop and then and busy is not None and found.lost_blocks:
        fresh = busy * then.prefill.demand_s / loop.prefill.demand_s
        stations = [Station(then.prefill, loop.prefill_workers), Station(then.decode, loop.decode_workers)]
        moved = knee_inflight(stations).value if knee is not None else None
        extra = {"prefill_busy_followed_ratio": fresh, "knee_followed_inflight": moved}
        knees = "" if moved is None or knee is None else f", and the knee {moved:.0f} in flight instead of {knee:.0f}"
        said.append(
            f"Cache → resources: had they been found, prefill would be {100 * fresh:.0f} % busy instead of {100 * busy:.0f} %{knees}."
        )
    if loop:
        now, more = loop.per_s(loop.prefill_workers, loop.decode_workers), loop.per_s(loop.prefill_workers + 1, loop.decode_workers)
        said.append(
            f"Prefill → decode: a prefill worker more would hand decode {more:.1f} requests a second instead of {now:.1f}"
            + (", for prefill is what holds them back." if more > 1.05 * now else "; prefill holds nothing back.")
        )
    return extra | {"coupling": said}


def games(window: Window, signals: Mapping[str, Any], memory: Memory, config: GamesConfig) -> tuple[Row, list[Row]]:
    """A row of `games` and the rows of `game_loads`, from the pulse's window, its row of `signals`, and what it remembers.

    What is unknown is None with a reason in `quality`, as `subject: reason`; never zero. Costs are request-seconds of the window.
    """
    end, after, r = window.end, window.end - window.window_s, window.recent
    everyone = join(window.history.take(window.history.finished_at <= after), r)
    alive, dead = everyone.take(~everyone.lost), dead_workers(everyone)
    pools = ["prefill", "decode"] if (everyone.prefill >= 0).any() else ["decode"]
    done = ~r.lost & (r.finished_at > after) & (r.finished_at <= end) & ~past_prefill(r)
    eligible = stay(alive, pools[0], dead)[0].workers
    best, cached = (None if a is None else a[done] for a in (r.best_overlap_blocks, r.cached_blocks))
    found = hits(r.input_blocks[done], r.overlap_blocks[done], best, cached, eligible)
    realised = found.realised_ratio if found.realised_ratio is not None else window.metrics.realised_hit_ratio
    row, loop, notes = resources(window, everyone, memory, config)
    silent, publishing = window.kv_silent, window.kv_served
    if silent:
        notes.append(f"cache: no KV events from {silent} of {publishing} workers, so what only they held is unknown")
    if done.any():
        for name, value in (("possible", found.possible_ratio), ("chosen", found.chosen_ratio), ("realised", realised)):
            if value is None:
                notes.append(f"hit_{name}: not known for enough of the requests")
    else:
        notes.append("cache: no requests finished in the window")
    n = int(done.sum())
    costs = Costs(
        signals.get("imbalance_s"),
        signals.get("cache_miss_s"),
        signals.get("prefill_queue_s"),
        n,
        float((r.finished_at - r.arrived_at)[done].sum()),
    )
    doubt = signals.get("poa_withheld") or ("no requests finished in the window" if not n else overstated(costs))
    if doubt:
        notes.append(f"doubt: {doubt}")
    row |= verdict(costs, window, doubt, found.lost_blocks, row.get("ttft_gain_s"))
    row |= coupling(row, found, loop, signals.get("knee_inflight"))
    row |= {
        "ts": end,
        "deployment": window.deployment,
        "finished": n,
        "routing_ratio": signals.get("poa_routing"),
        "imbalance_s": costs.routing,
        "hit_possible_ratio": found.possible_ratio,
        "hit_chosen_ratio": found.chosen_ratio,
        "hit_realised_ratio": realised,
        "lost_blocks": found.lost_blocks,
        "cache_miss_s": costs.cache,
        "kv_workers": publishing,
        "kv_silent_workers": silent,
        "tiers": [tier for tier, _ in window.tiers],
        "tier_blocks": [blocks for _, blocks in window.tiers],
        "prefill_queue_s": costs.resources,
        "knee_inflight": signals.get("knee_inflight"),
        "quality": notes,
    }
    return row, loads(window, alive, dead, pools)
