"""The offline lower bound of the mean TTFT: what no placement and no order of the recorded arrivals can beat."""

import heapq

import numpy as np

from queries.whatif.trace import Trace
from queries.window import Floats


def shortest_remaining(arrived: Floats, size_s: Floats, workers: int) -> float:
    """Mean time in the system of one worker as fast as all together that always serves the shortest remaining job (Schrage 1968: no order
    on one worker has a lower mean). No schedule on `workers` workers has a lower one either: that worker can imitate it.

    arrived: seconds, sorted; size_s: seconds of work, on one worker.
    """
    left: list[tuple[float, float]] = []
    now, total = -np.inf, 0.0
    for k, at in enumerate(np.append(arrived, np.inf)):
        while left and now < at:
            work, came = heapq.heappop(left)
            spent = min(work, (float(at) - now) * workers)
            now += spent / workers
            if work - spent > 1e-12:
                heapq.heappush(left, (work - spent, came))
            else:
                total += now - came
        if k < len(arrived):
            now = max(now, float(at))
            heapq.heappush(left, (float(size_s[k]), float(at)))
    return total / len(arrived)


def least_blocks(trace: Trace) -> Floats:
    """Blocks each request must compute even where everything that any earlier one had is held."""
    seen: set[int] = set()
    need = np.empty(len(trace.jobs))
    for k, job in enumerate(trace.jobs):
        if job.path is None:
            need[k] = job.blocks - job.hits
            continue
        held = 0
        while held < len(job.path) and job.path[held] in seen:
            held += 1
        need[k] = job.blocks - held
        seen.update(job.path)
    return need


def mean_ttft_bound_s(trace: Trace) -> float:
    """Seconds: the greater of the pooled bound and of every request on an idle worker of its own, and what follows prefill as recorded."""
    timing, blocks = trace.model.prefill, least_blocks(trace)
    alone = timing.base_s + timing.block_s * blocks
    # in steps that take many the base is shared by as many as one likes
    size = alone if timing.budget_blocks == 0 else timing.block_s * blocks
    pooled = shortest_remaining(trace.requests.arrived_at - trace.zero, size, trace.cluster.prefill)
    idle = float(alone.mean())
    if timing.early_s is not None:
        pooled -= float((size - np.minimum(timing.early_s, size)).mean())
        idle = float(np.minimum(timing.early_s, alone).mean())
    after = float(np.mean([job.transfer_s + job.first_s for job in trace.jobs]))
    return max(pooled, idle) + after
