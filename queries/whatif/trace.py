"""A trace fit to ask what-if of, or the reasons why it is not."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from poascope.errors import PoascopeError
from queries.whatif.arrivals import Arrivals, infer
from queries.whatif.calibrate import decode_curve, fit_prefill, prefill_stays, works
from queries.whatif.model import Cluster, Job, Model
from queries.whatif.paths import paths
from queries.window import Requests, from_table

MIN_REQUESTS = 100
LOST_SHARE = 0.05
KNOWN_SHARE = 0.95
MATTERS = 0.02
ALIKE = 0.02


class Refused(PoascopeError):
    """The trace cannot answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What was recorded, as jobs, and the model calibrated on it. `zero`: Unix seconds of the first arrival.

    shared_known: whether it is known which prompts share blocks, or does not matter because hardly a block was ever held.
    notes: what was assumed on the way, as sentences.
    """

    requests: Requests
    jobs: tuple[Job, ...]
    arrivals: Arrivals
    model: Model
    cluster: Cluster
    zero: float
    tau: float | None
    omega: float | None
    shared_known: bool
    unknown_reason: str
    notes: tuple[str, ...]


def trace(requests: pa.Table, kv_events: pa.Table, gaps: pa.Table, loop: str | None = None, step_s: float | None = None) -> Trace:
    """From rows of `requests`, `kv_events` and `gaps` of one deployment and span. loop: `open` or `closed`, None: told by `infer`.

    step_s: the decode step, if known. Raises Refused.
    """
    everyone = from_table(requests)
    if gaps.num_rows:
        kinds = ", ".join(sorted({f"{g['source']} {g['kind']}" for g in gaps.to_pylist()}))
        raise Refused(
            f"trace: {gaps.num_rows} gaps inside ({kinds}) - requests that nobody saw loaded the workers too; choose a span without"
        )
    if len(everyone) and not (everyone.prefill >= 0).any():
        raise Refused("trace: aggregated deployment - the model has a prefill and a decode pool, and there is one pool that does both")
    lost = int(everyone.lost.sum())
    if lost > LOST_SHARE * len(everyone):
        raise Refused(f"trace: {lost} of {len(everyone)} requests were lost - what they did to the workers is not known")
    times = everyone.arrived_at + everyone.prefill_done_at + everyone.decode_started_at + everyone.first_token_at + everyone.finished_at
    whole = ~everyone.lost & ~np.isnan(times) & (everyone.prefill >= 0) & (everyone.decode >= 0)
    r = everyone.take(whole)
    if len(r) < MIN_REQUESTS:
        raise Refused(f"trace: {len(r)} requests that were seen whole - a P99 and a calibration need {MIN_REQUESTS}")
    if (odd := len(everyone) - len(r)) > LOST_SHARE * len(everyone):
        raise Refused(f"trace: {odd} of {len(everyone)} requests were not seen whole - their load would be missing from the model")
    notes = []
    if odd:
        notes.append(f"{odd} requests that were lost or not seen whole are left out.")
    found = paths(r, kv_events)
    known = np.array([p is not None for p in found.path])
    # where the input in blocks was not told (the block size is read from metrics), the stored path has it, save a last partial block
    blocks = np.where(np.isnan(r.input_blocks) & known, [len(p or ()) for p in found.path], r.input_blocks)
    sizes_known = float((~np.isnan(blocks)).mean()) >= KNOWN_SHARE
    if sizes_known:
        blocks = np.where(np.isnan(blocks), np.nanmedian(blocks), blocks)
        hits = np.where(np.isnan(r.overlap_blocks), 0.0, np.minimum(r.overlap_blocks, blocks))
        computed = np.where(np.isnan(found.computed), blocks - hits, found.computed)
    else:
        blocks, hits, computed = np.ones(len(r)), np.zeros(len(r)), np.ones(len(r))
        notes.append("Prompts are taken to be alike: their input in blocks is not known.")
    hit_ratio = 1 - float(computed.sum() / blocks.sum())
    shared_known = sizes_known and (float((known | (computed == blocks)).mean()) >= KNOWN_SHARE or hit_ratio < MATTERS)
    reason = "input in blocks is not known"
    if sizes_known:
        reason = (
            f"which prompts share blocks is known of {int(known.sum())} of {len(r)} requests only (from cache events), and "
            f"{hit_ratio:.0%} of the blocks were hits"
        )
    stays = prefill_stays(r, computed)
    timing, _ = fit_prefill(stays)
    curve, flat = decode_curve(r)
    notes.append(_kind(timing.early_s, timing.budget_blocks, timing.base_s, timing.block_s))
    if flat:
        notes.append(f"Decode takes as long whatever the load on a worker: its curve was not to be had ({flat}).")
    elif float(np.ptp(computed)) < 1:
        notes.append("All prompts had the same blocks to compute, so what a block costs cannot be told from what a step costs.")
    notes.append("Each request keeps the length of its answer, its transfer and its first decode step as recorded.")
    if found.evicted:
        notes.append(f"A prefix cache holds {found.most} blocks, the most that was seen, and drops the least recently used.")
    else:
        notes.append("Prefix caches start empty and never drop a block: none was seen dropped.")
    if met := int(np.nan_to_num(r.prefill_inflight[0]) + np.nan_to_num(r.decode_inflight[0])):
        notes.append(f"The cluster is empty when the span begins; really {met} requests were under way where the first was sent.")
    arrivals = infer(r.arrived_at, r.finished_at, loop)
    notes.insert(0, arrivals.why)
    work = works(r, curve)
    low, middle, high = np.quantile(work, [0.1, 0.5, 0.9])
    if high - low < ALIKE * middle:  # then what differs is noise, shared by those who ran together: played one by one it would part them
        work = np.full(len(work), middle)
        notes.append("Answers are taken to be all as long: their decode differs by less than 2 %.")
    places = [np.unique(codes, return_inverse=True) for codes in (r.prefill, r.decode)]
    jobs = tuple(
        Job(
            int(blocks[i]),
            found.path[i] if shared_known else None,
            int(hits[i]),
            float(work[i]),
            max(0.0, float(r.decode_started_at[i] - r.prefill_done_at[i])),
            max(0.0, float(r.first_token_at[i] - r.decode_started_at[i])),
            int(places[0][1][i]),
            int(places[1][1][i]),
        )
        for i in range(len(r))
    )
    tau, omega = (_one(requests[name].to_pylist()) for name in ("tau", "omega"))
    cluster = Cluster(len(places[0][0]), len(places[1][0]))
    model = Model(timing, curve, step_s, found.most if found.evicted else None)
    return Trace(r, jobs, arrivals, model, cluster, float(r.arrived_at[0]), tau, omega, shared_known, reason, tuple(notes))


def _one(values: list[float | None]) -> float | None:
    known = {v for v in values if v is not None}
    return known.pop() if len(known) == 1 else None


def _kind(early_s: float | None, budget: float, base_s: float, block_s: float) -> str:
    cost = f"{base_s * 1e3:.1f} ms + {block_s * 1e3:.2f} ms for each block it computes"
    if early_s is not None:
        return f"A prefill worker serves one request at a time in {cost}, and hands it on {early_s * 1e3:.1f} ms after it began with it."
    if budget == 0:
        return f"A prefill worker serves one request at a time, in {cost}."
    most = "everything that waits" if np.isinf(budget) else f"at most {budget:.0f} blocks"
    return f"A prefill worker takes {most} into one step of {cost}; all of a step are done at its end."


def trace_of(deployment: str, requests: pa.Table, kv_events: pa.Table, gaps: pa.Table, signals: pa.Table, loop: str | None = None) -> Trace:
    """`trace` from rows of the named queries: gaps of other deployments are none here, and the decode step is the ITL that was recorded."""
    mine = gaps.filter(pa.array([d in (None, deployment) for d in gaps["deployment"].to_pylist()], pa.bool_()))
    itl = [v for v in signals["itl_p50_s"].to_pylist() if v is not None]
    return trace(requests, kv_events, mine, loop, float(np.median(itl)) if itl else None)
