"""What-if, asked: validation first, and then answers that carry their assumptions, or the reason why there is none."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from queries.whatif.bound import mean_ttft_bound_s
from queries.whatif.model import Cluster
from queries.whatif.policy import Policy
from queries.whatif.simulate import Run, simulate
from queries.whatif.trace import Trace
from queries.window import Floats

TOLERANCE = 0.15
SEEDS = 5
FEW = 1000  # below so many requests a P99 rests on fewer than ten of them


@dataclass(frozen=True, slots=True)
class Summary:
    """What users felt, over all requests of a run. Quantiles are order statistics, as elsewhere. per_s: finished over the time from the
    first arrival to the last finish. hit_ratio: blocks held over blocks of input, None where nobody said."""

    requests: float
    per_s: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    e2e_p50_s: float
    hit_ratio: float | None


@dataclass(frozen=True, slots=True)
class Validation:
    """The recorded trace played by the model. error: relative, signed, for what must agree. refused: why nothing else may be asked."""

    recorded: Summary
    played: Summary
    error: dict[str, float]
    policy: str
    refused: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """`value` is the median over the seeds, with the least and greatest of each figure; None with a reason in `refused`.

    The optimum has a mean TTFT alone, in `bound_s`: no run stands behind it.
    """

    question: str
    assumptions: tuple[str, ...]
    value: Summary | None = None
    low: Summary | None = None
    high: Summary | None = None
    bound_s: float | None = None
    refused: str | None = None


def _summary(arrived: Floats, first: Floats, finished: Floats, hit_ratio: float | None) -> Summary:
    ttft = first - arrived
    p50, p90, p99 = (float(q) for q in np.quantile(ttft, [0.5, 0.9, 0.99], method="inverted_cdf"))
    rate = len(arrived) / float(finished.max() - arrived.min())
    return Summary(len(arrived), rate, float(ttft.mean()), p50, p90, p99, float(np.median(finished - arrived)), hit_ratio)


def measured(trace: Trace) -> Summary:
    """The trace as it was."""
    r = trace.requests
    blocks = float(np.nansum(r.input_blocks))
    known = not np.isnan(r.overlap_blocks + r.input_blocks).any() and blocks > 0
    return _summary(r.arrived_at, r.first_token_at, r.finished_at, float(r.overlap_blocks.sum()) / blocks if known else None)


def played(trace: Trace, run: Run) -> Summary:
    blocks = float(sum(trace.jobs[k].blocks for k in run.job))
    return _summary(run.arrived, run.first_token, run.finished, 1 - float(run.computed.sum()) / blocks)


def used(trace: Trace) -> Policy:
    """The policy that was really in force: Dynamo's with the τ and ω of the requests, if all say the same, else the recorded placement."""
    if trace.tau is None or trace.omega is None:
        return Policy("recorded")
    return Policy("kv", trace.tau, trace.omega)


def validate(trace: Trace, seed: int = 0) -> Validation:
    """Play what happened, and compare TTFT P50 and P99 and throughput."""
    policy = used(trace)
    was, now = measured(trace), _median(_runs(trace, trace.cluster, policy, seed))[0]
    error = {name: getattr(now, name) / getattr(was, name) - 1 for name in ("ttft_p50_s", "ttft_p99_s", "per_s")}
    off = [f"{name} {share:+.0%}" for name, share in error.items() if abs(share) > TOLERANCE]
    refused = None
    if off:
        refused = f"the model does not reproduce what was recorded: {', '.join(off)}, where {TOLERANCE:.0%} is allowed"
    return Validation(was, now, error, str(policy), refused)


def _runs(trace: Trace, cluster: Cluster, policy: Policy, seed: int) -> list[Summary]:
    seeds = range(seed, seed + (SEEDS if policy.kind == "kv" else 1))
    return [played(trace, simulate(list(trace.jobs), trace.arrivals, trace.model, cluster, policy, s)) for s in seeds]


def _median(runs: list[Summary]) -> tuple[Summary, Summary, Summary]:
    rows = [asdict(run) for run in runs]

    def pick(q: float) -> Summary:
        known = {name: [row[name] for row in rows] for name in rows[0]}
        values: dict[str, Any] = {name: None if None in column else float(np.quantile(column, q)) for name, column in known.items()}
        return Summary(**values)

    return pick(0.5), pick(0.0), pick(1.0)


def ask(trace: Trace, validation: Validation, cluster: Cluster | None = None, policy: Policy | None = None, seed: int = 0) -> Answer:
    """The same load on another cluster, under another policy, or both. None: as it was."""
    cluster = cluster or trace.cluster
    grown = cluster.prefill > trace.cluster.prefill or cluster.decode > trace.cluster.decode
    chosen = policy or used(trace)
    question = f"{cluster}, {chosen}"
    assumptions = [*trace.notes, *_about(trace, cluster, chosen)]
    if validation.refused:
        return Answer(question, tuple(assumptions), refused=validation.refused)
    if cluster.prefill < 1 or cluster.decode < 1:
        return Answer(question, tuple(assumptions), refused="a cluster needs a worker in each pool")
    if chosen.kind == "recorded" and cluster != trace.cluster:
        why = "the trace does not say where requests would have gone among other workers: name a policy"
        return Answer(question, tuple(assumptions), refused=why)
    if cluster.prefill > 1 and not trace.shared_known and chosen.kind != "recorded":
        return Answer(
            question, tuple(assumptions), refused=f"which worker would have held which blocks cannot be told: {trace.unknown_reason}"
        )
    value, low, high = _median(_runs(trace, cluster, chosen, seed))
    if grown:
        assumptions.append("A worker more is like those that were there, and is there from the first request on, with an empty cache.")
    return Answer(question, tuple(assumptions), value, low, high)


def _about(trace: Trace, cluster: Cluster, policy: Policy) -> list[str]:
    said = []
    if policy.kind == "kv":
        said.append(
            "Cost of a worker: ω × (blocks that wait there to be prefilled, and those of the request that it lacks) + blocks of the "
            f"requests there; softmax with τ over the range of costs; the median of {SEEDS} seeds."
        )
    if policy.kind == "recorded":
        said.append("Each request goes to the worker that served it in the trace.")
    if cluster.decode < trace.cluster.decode or (trace.arrivals.kind == "closed" and cluster.prefill > trace.cluster.prefill):
        said.append(f"Decode was seen at up to {_most_seen(trace)} requests on a worker; beyond that its line is continued.")
    if len(trace.jobs) < FEW:
        said.append(f"A P99 of {len(trace.jobs)} requests rests on {max(1, len(trace.jobs) // 100)} of them.")
    if trace.arrivals.kind == "open" and (cluster.prefill, cluster.decode) != (trace.cluster.prefill, trace.cluster.decode):
        said.append("Those who gave up, or came because it was fast, are not in an open stream.")
    return said


def _most_seen(trace: Trace) -> int:
    n = trace.requests.decode_inflight
    return int(np.nanmax(n)) + 1 if not np.isnan(n).all() else 0


def optimum(trace: Trace, validation: Validation) -> Answer:
    """The offline lower bound of the mean TTFT, for the arrivals as they were."""
    question = f"{trace.cluster}, the optimum"
    assumptions = (
        *trace.notes,
        "A lower bound, not a policy: whoever knows all arrivals beforehand cannot do better, and perhaps not as well.",
        "The prefill pool is one worker as fast as all together, which always serves the shortest remaining prompt; every block of any "
        "earlier request counts as held. Arrivals are those of the trace, also where a closed loop would have changed them.",
        "Of the mean alone: it says nothing of a quantile.",
    )
    if validation.refused:
        return Answer(question, assumptions, refused=validation.refused)
    # the model's seconds are off by its error: a bound above what was really reached is none
    return Answer(question, assumptions, bound_s=min(mean_ttft_bound_s(trace), validation.recorded.ttft_mean_s))


def more(cluster: Cluster, prefill: int = 0, decode: int = 0) -> Cluster:
    return replace(cluster, prefill=cluster.prefill + prefill, decode=cluster.decode + decode)
