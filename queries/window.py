"""The window an estimate looks at: requests as arrays. The collector builds it from memory, a replay from the tables."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Requests:
    """N requests, struct of arrays, in order of `arrived_at`. Times are Unix seconds, NaN where not (yet) known or not applicable.

    `prefill` and `decode` are positions in `workers` (a worker is `(u64 id, dp_rank)`), -1 where none, as pandas codes are.
    `*_inflight` are counts on that worker when the request was routed there, itself excluded. Block counts are NaN when unknown.
    An aggregated deployment has `prefill` all -1, `prefill_done_at` NaN, and `decode_started_at == arrived_at`.
    """

    request_id: NDArray[np.object_]
    arrived_at: Floats
    prefill_done_at: Floats
    decode_started_at: Floats
    first_token_at: Floats
    finished_at: Floats
    prefill: Codes
    decode: Codes
    prefill_inflight: Floats
    decode_inflight: Floats
    input_blocks: Floats
    overlap_blocks: Floats
    lost: NDArray[np.bool_]
    workers: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.arrived_at)


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile read from a histogram: `at_least` when it lies in the open bucket, so the truth may be higher."""

    value: float
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Metrics:
    """What metrics and step events said up to the end of the window. None: not reported, or no traffic in its window.

    Quantiles are over `histogram_window_s` of bucket deltas. `as_of`: Unix seconds of the newest sample, None if there never was one.
    """

    as_of: float | None = None
    ttft_p99: Quantile | None = None
    itl_p50: Quantile | None = None
    itl_p99: Quantile | None = None
    kv_hit_ratio: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Window:
    """Everything one pulse looks at.

    `recent`: every request that finished (or was lost) in (end - window_s, end], and those still open at `end`: what estimates read.
    `history`: finished requests of the last 30 min, at most 2,000: what the latency model is fitted on.
    `gaps`: events known lost or sources silent within the window. `tau`, `omega`: parameters under which the newest requests
    were really routed, None when unknown or mixed. `events_as_of`: Unix seconds of the newest event, None before the first.
    """

    deployment: str
    end: float
    window_s: float
    recent: Requests
    history: Requests
    metrics: Metrics
    gaps: int = 0
    tau: float | None = None
    omega: float | None = None
    mode: str | None = None
    events_as_of: float | None = None
    notes: tuple[str, ...] = ()
