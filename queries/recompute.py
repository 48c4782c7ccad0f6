"""What today's estimators say of stored requests: the pulse again, second by second, over rows instead of messages. Pure.

What only the messages or the metrics knew then is not in the rows, and so it is not recomputed: ITL, P99 from Prometheus, gaps, and
overlap with workers that were not chosen (`cache_miss_s`).
"""

from collections.abc import Sequence

import pyarrow as pa

from queries.signals import PulseConfig, Row, pulse
from queries.window import HISTORY_S, from_table, window_at

WINDOW_S = 30.0
WARM_S = 60.0  # the EWMA and the dwell of the regime are at home by then
LEAD_S = HISTORY_S + WARM_S
# Columns that the rows of `requests` determine.
RECOMPUTED = (
    *("inflight", "queued", "arrivals_per_s", "finished_per_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "ttft_p99_censored_s"),
    *("ttft_ewma_s", "e2e_p99_s", "kv_hit_ratio", "poa_hat", "poa_low", "poa_high", "poa_n", "poa_withheld", "poa_frozen", "poa_ttft"),
    *("poa_routing", "poa_temporal", "prefill_queue_s", "imbalance_s", "transfer_s", "knee_inflight", "headroom_ratio", "regime"),
)


def recompute(requests: pa.Table, instants: Sequence[float], deployment: str, config: PulseConfig) -> list[Row]:
    """Rows as of `signals`, one for each of the `instants` (Unix s, ascending), with the columns of RECOMPUTED and `ts`.

    `requests`: rows of the table from LEAD_S before the first instant on; with fewer, the first rows are fitted on less than a live
    pulse had. Before the first instant the pulse runs for WARM_S at the distance of the instants, at most 5 s.
    """
    if not instants:
        return []
    everyone, memory, rows = from_table(requests), None, []
    step = min(5.0, max(1.0, instants[1] - instants[0])) if len(instants) > 1 else 1.0
    warming = [instants[0] - step * i for i in range(int(WARM_S / step), 0, -1)]
    for t in [*warming, *instants]:
        row, memory = pulse(window_at(everyone, t, WINDOW_S, deployment), memory, config)
        rows.append({"ts": t} | {name: row[name] for name in RECOMPUTED})
    return rows[len(warming) :]
