"""Where requests come from: an open stream that does not care, or users who wait for their answer before they ask again."""

from dataclasses import dataclass

import numpy as np

from queries.window import Codes, Floats

PAIR_S, LEAST_S = 1.0, 0.25
HELD = 0.5
MIN_WINDOWS = 5


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`open`: requests come at `at_s`, whatever the latency. `closed`: users join at `at_s`; each asks, waits, thinks, asks again; at each
    of `leave_s` one user more is surplus, and the next to finish goes. Seconds from the first arrival; nobody asks after `until_s`.
    think_s: thinking times in the order seen. why: how this was told, for the screen."""

    kind: str
    at_s: Floats
    leave_s: Floats
    think_s: Floats
    until_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """Each arrival with the finish that may have brought it about: the latest one not yet taken, at most so long before it.
    before: per arrival, seconds since that finish, NaN where none; unused: positions of the finishes nobody came after."""

    before: Floats
    unused: Codes


def pairs(arrived: Floats, finished: Floats, within_s: float = PAIR_S) -> Pairs:
    """arrived, finished: Unix seconds, both sorted. Latest first: who leaves must not lend its finish to somebody who stayed."""
    before = np.full(len(arrived), np.nan)
    waiting: list[int] = []
    k = 0
    for i, at in enumerate(arrived):
        while k < len(finished) and finished[k] <= at:
            waiting.append(k)
            k += 1
        if waiting and at - finished[waiting[-1]] <= within_s:
            before[i] = at - finished[waiting.pop()]
    return Pairs(before, np.array(sorted([*waiting, *range(k, len(finished))]), dtype=np.int64))


def told_to_go(asked: Floats, finished: Floats) -> Floats:
    """When users became surplus, from the last request of each. They were told while it was under way: the fewest moments that lie in all
    of these intervals, the one that most of them share first, in the middle of where it may lie. Sorted."""
    told = np.empty(len(finished))
    left = np.arange(len(finished))
    while len(left):
        moments = np.concatenate([asked[left], finished[left]])
        change = np.concatenate([np.ones(len(left)), -np.ones(len(left))])
        order = np.lexsort((change, moments))
        inside = np.cumsum(change[order])
        k = int(np.argmax(inside))
        at = float(moments[order[k]] + moments[order[min(k + 1, len(order) - 1)]]) / 2
        now = (asked[left] <= at) & (at <= finished[left])
        told[left[now]] = at
        left = left[~now]
    return np.sort(told)


def held(arrived: Floats, finished: Floats) -> float:
    """How often the most in flight stays the same, to the hundredth, from one window as long as a request to the next. Users who ask
    again at once hold their number, so nearly always; a stream that does not care seldom does. NaN with fewer than 5 windows."""
    window_s = max(1.0, float(np.median(finished - arrived)))
    moments = np.concatenate([arrived, finished])
    change = np.concatenate([np.ones(len(arrived)), -np.ones(len(finished))])
    order = np.lexsort((-change, moments))
    window = ((moments[order] - arrived.min()) // window_s).astype(np.int64)
    inside = moments[order] <= arrived.max()
    most = np.zeros(int(window[inside].max()) + 1)
    np.maximum.at(most, window[inside], np.cumsum(change[order])[inside])
    if len(most) < MIN_WINDOWS:
        return float("nan")
    return float(np.mean(np.abs(np.diff(most)) <= 0.01 * most[1:]))


def infer(arrived: Floats, finished: Floats, kind: str | None = None) -> Arrivals:
    """Open or closed, by the tell-tale of a closed loop: the number in flight is held. `kind` says it instead. A loop whose users think for
    longer than PAIR_S looks open, and is played as such.

    arrived, finished: Unix seconds, of each request.
    """
    steady = held(arrived, finished)
    by_end = np.argsort(finished, kind="stable")
    asked, finished, arrived = arrived[by_end], finished[by_end], np.sort(arrived)
    zero, until = float(arrived[0]), float(arrived[-1] - arrived[0])
    told = " (as told)" if kind else ""
    kind = kind or ("closed" if steady >= HELD else "open")
    seen = "too short to see whether the number in flight is held"
    if not np.isnan(steady):
        seen = f"the most in flight stays the same from one request's length to the next in {steady:.0%} of the cases"
    if kind == "open":
        why = f"Arrivals are open{told}: they come when they came, whatever the latency; {seen}."
        return Arrivals("open", arrived - zero, np.empty(0), np.empty(0), until, why)
    found = pairs(arrived, finished)
    lag = found.before[~np.isnan(found.before)]
    if len(lag):  # again with the limit that these users' thinking sets, or who leaves is paired with who joins
        found = pairs(arrived, finished, min(PAIR_S, max(LEAST_S, 10 * float(np.median(lag)))))
        lag = found.before[~np.isnan(found.before)]
    joins = arrived[np.isnan(found.before)] - zero
    leaves = told_to_go(asked[found.unused], finished[found.unused]) - zero
    think = lag if len(lag) else np.zeros(1)
    why = (
        f"Arrivals are a closed loop{told} of up to {_most(joins, leaves)} users, who think for {np.median(think) * 1e3:.0f} ms in the "
        f"median and come and go when they did; {seen}. Latency then changes when, and how many, requests come."
    )
    return Arrivals("closed", joins, leaves, think, until, why)


def _most(joins: Floats, leaves: Floats) -> int:
    counts = np.arange(1, len(joins) + 1) - np.searchsorted(leaves, joins, "left")
    return int(counts.max()) if len(counts) else 0
