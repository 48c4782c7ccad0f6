"""The model from a trace: prefill by the kind of worker that explains the recorded ends best, decode by its fitted curve."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from queries.estimators.latency import BATCH_S, Curve
from queries.memory import Memory, learn
from queries.whatif.model import Prefill
from queries.window import Codes, Floats, Requests

LARGEST = 10


@dataclass(frozen=True, slots=True)
class Stays:
    """Prefill as it was, one worker after another: arrival, end and computed blocks of each request, in order of its end."""

    arrived: Floats
    done: Floats
    blocks: Floats
    worker: Codes


def prefill_stays(requests: Requests, computed: Floats) -> Stays:
    there = np.flatnonzero((requests.prefill >= 0) & ~np.isnan(requests.prefill_done_at))
    order = there[np.lexsort((requests.arrived_at[there], requests.prefill_done_at[there], requests.prefill[there]))]
    return Stays(requests.arrived_at[order], requests.prefill_done_at[order], computed[order], requests.prefill[order])


def _line(seconds: Floats, blocks: Floats) -> tuple[float, float]:
    """base, block ≥ 0 of seconds ≈ base + block·blocks by least absolute deviations: a third of the gaps may be something else entirely."""
    x = np.stack([np.ones(len(seconds)), blocks], axis=1)
    weight = np.ones(len(seconds))
    for _ in range(30):
        found, _ = nnls(x * weight[:, None], seconds * weight)
        weight = 1 / np.sqrt(np.maximum(np.abs(seconds - x @ found), 1e-4))
    return float(found[0]), float(found[1])


def _one_at_a_time(stays: Stays, early: bool) -> Prefill | None:
    """From the gaps between ends of a worker that was never idle between them: they are the service of the later request, or of the earlier
    one where the answer comes first."""
    same = stays.worker[1:] == stays.worker[:-1]
    busy = same & (stays.arrived[1:] < stays.done[:-1])
    gaps = np.diff(stays.done)
    if busy.sum() < 5:
        return None
    blocks = (stays.blocks[:-1] if early else stays.blocks[1:])[busy]
    base, block = _line(gaps[busy], blocks)
    if not early:
        return Prefill(base, block)
    service = base + block * np.append(0.0, stays.blocks[:-1])
    idle = np.append(True, ~same | (stays.arrived[1:] >= stays.done[:-1] + service[1:]))
    wait = stays.done - stays.arrived
    return Prefill(base, block, early_s=float(np.median(wait[idle])) if idle.any() else 0.0)


def _in_steps(stays: Stays) -> Prefill | None:
    """Ends close together are one step. It began when the step before had ended, or its first request came. What would have been done in
    under half of its time belongs to the step before: on a busy machine the events of one step trickle in.

    The budget is the largest step, if one of the largest left somebody waiting; infinite when none did.
    """
    same = np.append(False, stays.worker[1:] == stays.worker[:-1])
    new = ~same | (np.diff(stays.done, prepend=-np.inf) > BATCH_S)
    for _ in range(5):
        first = np.flatnonzero(new)
        if len(first) < 5:
            return None
        last = np.append(first[1:], len(new)) - 1
        blocks = np.add.reduceat(stays.blocks, first)
        end, came = stays.done[last], np.minimum.reduceat(stays.arrived, first)
        start = np.maximum(np.where(same[first], np.append(-np.inf, end[:-1]), -np.inf), came)
        base, block = _line(end - start, blocks)
        short = same[first] & (end - start < 0.5 * (base + block * blocks)) & (came < np.append(np.inf, end[:-1]))
        if not short.any():
            break
        new[first[short]] = False
    left = False
    for k in np.argsort(blocks)[-LARGEST:]:
        mine = stays.worker == stays.worker[first[k]]
        left = left or bool((mine & (stays.arrived < start[k] - BATCH_S) & (stays.done > end[k] + BATCH_S)).any())
    return Prefill(base, block, budget_blocks=float(blocks.max()) if left else np.inf)


def replay_prefill(stays: Stays, timing: Prefill) -> Floats:
    """Ends of the recorded arrivals on their recorded workers, with the recorded blocks: the queue alone."""
    done = np.full(len(stays.arrived), np.nan)
    for worker in np.unique(stays.worker):
        mine = np.flatnonzero(stays.worker == worker)
        mine = mine[np.argsort(stays.arrived[mine], kind="stable")]
        free, k = -np.inf, 0
        while k < len(mine):
            start = max(free, float(stays.arrived[mine[k]]))
            take, blocks = k + 1, float(stays.blocks[mine[k]])
            while take < len(mine) and stays.arrived[mine[take]] <= start and blocks + stays.blocks[mine[take]] <= timing.budget_blocks:
                blocks += float(stays.blocks[mine[take]])
                take += 1
            free = start + timing.step_s(blocks)
            done[mine[k:take]] = free if timing.early_s is None else min(free, start + timing.early_s)
            k = take
    return done


def fit_prefill(stays: Stays) -> tuple[Prefill, float]:
    """The kind of worker that explains the recorded ends best, and its error: the mean of |P50| and |P99| of the stays, relative."""
    found: list[tuple[float, int, Prefill]] = []
    for timing in (_one_at_a_time(stays, False), _one_at_a_time(stays, True), _in_steps(stays)):
        if timing is not None:
            was, now = stays.done - stays.arrived, replay_prefill(stays, timing) - stays.arrived
            off = [
                abs(float(np.quantile(now, q)) - float(np.quantile(was, q))) / max(float(np.quantile(was, q)), 0.005)
                for q in (0.5, 0.9, 0.99)
            ]
            found.append((float(np.mean(off)), len(found), timing))
    if not found:  # nobody ever waited, so nothing tells how a queue would go
        waits = stays.done - stays.arrived
        base, block = _line(waits, stays.blocks)
        return Prefill(base, block), 0.0
    error, _, timing = min(found, key=lambda f: f[:2])
    return timing, error


def decode_curve(requests: Requests) -> tuple[Curve, str | None]:
    """The fitted curve of the decode pool, with its pole dropped: beyond what was seen a pole is a guess. The reason where it is flat."""
    end = float(np.nanmax(requests.finished_at))
    memory = learn(Memory(), requests, end)
    curve = memory.curves.get("decode")
    if curve is None:
        stay = requests.finished_at - requests.decode_started_at
        return Curve(float(np.nanmedian(stay)), 0.0), memory.reasons.get("decode", "fit declined")
    return replace(curve, pole_s=0.0, n_sat=np.inf), None


def works(requests: Requests, curve: Curve) -> Floats:
    """Each stay in decode as a multiple of the curve: ∫ dt / f(n(t)) over it, n being who was there. Played at the recorded moments with
    the recorded companions, these give back the recorded seconds exactly."""
    work = np.full(len(requests), np.nan)
    for code in np.unique(requests.decode[requests.decode >= 0]):
        mine = np.flatnonzero((requests.decode == code) & ~np.isnan(requests.decode_started_at + requests.finished_at))
        moments = np.concatenate([requests.decode_started_at[mine], requests.finished_at[mine]])
        change = np.concatenate([np.ones(len(mine)), -np.ones(len(mine))])
        order = np.lexsort((change, moments))
        t, n = moments[order], np.cumsum(change[order])
        speed = np.where(n > 0, 1 / np.maximum(curve.at(np.maximum(n, 1)), 1e-6), 0.0)
        virtual = np.concatenate([[0.0], np.cumsum(np.diff(t) * speed[:-1])])
        reached = np.empty(len(t))
        reached[order] = virtual
        work[mine] = reached[len(mine) :] - reached[: len(mine)]
    return work
