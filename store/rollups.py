"""Rollups: mergeable summaries of raw rows, for bins of 10 s and 1 min. They outlive the rows and answer long ranges.

A part is written in the transaction that writes the rows it covers, so it is there once and never lost, whatever order rows come in.
`compact` joins the parts of a bin. Nothing here averages a quantile: latencies keep their distribution in buckets that grow by 5 %, and a
quantile read from those lies within (1.05 - 1) / (1.05 + 1) = 2.4 % of the sample it stands for (Masson et al., DDSketch, VLDB 2019).
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import duckdb

STEPS = (10, 60)
GROWTH = 1.05
SMALLEST_S = 1e-6  # a clock that tells less than a microsecond tells nothing
QUANTILE_ERROR = (GROWTH - 1) / (GROWTH + 1)
SLICE_ROWS = 500_000

MEANS = (
    "inflight", "arrivals_per_s", "finished_per_s", "queued", "kv_hit_ratio",
    "prefill_queue_s", "imbalance_s", "cache_miss_s", "transfer_s", "other_s",
)  # fmt: skip
WORST = (
    "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "ttft_p99_censored_s", "ttft_p99_prometheus_s", "ttft_ewma_s",
    "itl_p50_s", "itl_p99_s", "e2e_p99_s", "poa_hat", "poa_frozen", "poa_ttft", "poa_routing", "poa_temporal",
)  # fmt: skip
LAST = ("knee_inflight", "headroom_ratio", "regime", "mode", "tau", "omega")
PEAK = ("poa_low", "poa_high")  # of the second with the largest poa_hat
PEAK_OR_LAST = ("poa_n", "poa_withheld")

_STEPS = "unnest([10, 60])"
_BIN = "time_bucket(to_seconds(step_s), {at})"
_BUCKET = f"ceil(ln(greatest({{s}}, {SMALLEST_S})) / ln({GROWTH}))::SMALLINT"


def _signals(last: str, count: str, lowest: str, quality: str) -> str:
    """How the columns of several rows become one: of raw rows, or of parts; they differ in what was counted already."""
    means = [f"sum({c}) AS {c}, {count.format(c=c)} AS {c}_n" for c in MEANS]
    worst = [f"max({c}) AS {c}" for c in WORST]
    ends = [f"arg_max_null({c}, {last}) AS {c}" for c in LAST]
    peak = [f"arg_max_null({c}, poa_hat) AS {c}" for c in PEAK]
    either = [
        f"CASE WHEN count(poa_hat) > 0 THEN arg_max_null({c}, poa_hat) ELSE arg_max_null({c}, {last}) END AS {c}" for c in PEAK_OR_LAST
    ]
    quality = f"list_sort(list_distinct(flatten(list({quality})))) AS quality"
    return ", ".join([f"max({last}) AS last_at", f"min({lowest}) AS poa_hat_min", *means, *worst, *ends, *peak, *either, quality])


def _histogram(rows: str) -> str:
    """Buckets and counts as lists, from one row a bucket."""
    return (
        "SELECT ts, step_s, deployment, kind, list(bucket ORDER BY bucket) AS buckets, list(n ORDER BY bucket) AS counts, "
        f"sum(sum_s) AS sum_s, max(max_s) AS max_s FROM ({rows}) GROUP BY ts, step_s, deployment, kind"
    )


def _latencies(kind: str, samples: str) -> str:
    """A histogram of `samples`: deployment, seen_at, seconds, weight."""
    return _histogram(
        f"SELECT {_BIN.format(at='seen_at')} AS ts, step_s, deployment, '{kind}' AS kind, {_BUCKET.format(s='seconds')} AS bucket, "
        f"sum(weight)::UBIGINT AS n, sum(seconds * weight) AS sum_s, max(seconds) AS max_s "
        f"FROM (SELECT *, {_STEPS} AS step_s FROM ({samples})) GROUP BY 1, 2, 3, 4, 5"
    )


def _from_arrival(end: str, where: str) -> str:
    return (
        f"SELECT deployment, {end} AS seen_at, (epoch_us({end}) - epoch_us(arrived_at)) / 1e6 AS seconds, 1 AS weight "
        f"FROM {{rows}} WHERE {end} >= arrived_at AND {where}"
    )


# Raw table -> (rollup table, the parts of {rows}).
_PARTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "signals": (
        (
            "signals_rollups",
            f"SELECT {_BIN.format(at='r.ts')} AS ts, step_s, deployment, "
            + _signals("r.ts", "count({c})", "poa_hat", "quality")
            + f" FROM (SELECT *, {_STEPS} AS step_s FROM {{rows}}) AS r GROUP BY 1, 2, 3",
        ),
    ),
    "workers": (
        (
            "worker_rollups",
            f"SELECT {_BIN.format(at='r.ts')} AS ts, step_s, deployment, component, worker_id, dp_rank, "
            "max(r.ts) AS last_at, arg_max(role, r.ts) AS role, sum(inflight) AS inflight, count(*) AS inflight_n "
            f"FROM (SELECT * EXCLUDE (step_s), {_STEPS} AS step_s FROM {{rows}} WHERE source = 'events' AND inflight IS NOT NULL) AS r "
            "GROUP BY 1, 2, 3, 4, 5, 6",
        ),
        (
            "latency_rollups",
            # An engine step is one gap for each request that runs on it. Samples, one a second and worker: not every step is stored.
            _latencies(
                "itl",
                "SELECT deployment, ts AS seen_at, step_s AS seconds, running AS weight FROM {rows} "
                "WHERE source = 'step' AND role IS DISTINCT FROM 'prefill' AND step_s > 0 AND running > 0",
            ),
        ),
    ),
    "requests": (
        ("latency_rollups", _latencies("ttft", _from_arrival("first_token_at", "true"))),
        ("latency_rollups", _latencies("e2e", _from_arrival("finished_at", "outcome = 'finished'"))),
    ),
}

_WITHIN = "ts >= $begin AND ts < $end AND step_s = $step_s"
_MERGES: Mapping[str, str] = {
    "signals_rollups": "SELECT ts, step_s, deployment, "
    + _signals("last_at", "sum({c}_n)", "poa_hat_min", "quality")
    + " FROM {rows} GROUP BY 1, 2, 3",
    "worker_rollups": "SELECT ts, step_s, deployment, component, worker_id, dp_rank, arg_max(role, r.last_at) AS role, "
    "max(r.last_at) AS last_at, sum(inflight) AS inflight, sum(inflight_n) AS inflight_n FROM {rows} AS r GROUP BY 1, 2, 3, 4, 5, 6",
    "latency_rollups": _histogram(
        "SELECT ts, step_s, deployment, kind, bucket, sum(n) AS n, sum(if(i = 1, sum_s, 0)) AS sum_s, max(max_s) AS max_s FROM ("
        "SELECT ts, step_s, deployment, kind, unnest(buckets) AS bucket, unnest(counts) AS n, generate_subscripts(buckets, 1) AS i, "
        "sum_s, max_s FROM {rows}) GROUP BY ALL"
    ),
}
TABLES = tuple(_MERGES)


def add(cursor: duckdb.DuckDBPyConnection, table: str, rows: str) -> None:
    """Write the parts of the rows in `rows` (a relation with every column of `table`), within the caller's transaction."""
    for rollup, sql in _PARTS.get(table, ()):
        cursor.execute(f"INSERT INTO {rollup} BY NAME SELECT *, false AS merged FROM ({sql.format(rows=rows)})")


def cover(cursor: duckdb.DuckDBPyConnection, slice_rows: int = SLICE_ROWS) -> None:
    """Write the parts of every raw row there is: once, when rollups come to a store that has none.

    A slice at a time: all rows of a large store at once do not fit into the memory that it may take.
    """
    for table in _PARTS:
        first, last = _one(cursor, f"SELECT min(rowid), max(rowid) FROM {table}", {})
        for begin in range(first, last + 1, slice_rows) if first is not None else ():
            add(cursor, table, f"(SELECT * FROM {table} WHERE rowid >= {begin} AND rowid < {begin + slice_rows})")


def compact(cursor: duckdb.DuckDBPyConnection, before: datetime, bins: int) -> int:
    """Join the parts of the oldest bins that end before `before` and are not whole, at most `bins` of each kind; how many rows that saved.

    In the caller's transaction: who is killed in the middle has the parts as they were.
    """
    saved = 0
    for table, merge in _MERGES.items():
        for step_s in STEPS:
            saved += _compact(cursor, table, merge, step_s, before, bins)
    return saved


def _compact(cursor: duckdb.DuckDBPyConnection, table: str, merge: str, step_s: int, before: datetime, bins: int) -> int:
    given = {"step_s": step_s, "before": before, "width": step_s * bins}
    begin, end = _one(
        cursor,
        f"SELECT min(ts), least(min(ts) + to_seconds($width), time_bucket(to_seconds($step_s), $before)) FROM {table} "
        "WHERE NOT merged AND step_s = $step_s AND ts + to_seconds($step_s) <= $before",
        given,
    )
    if begin is None:
        return 0
    span = {"begin": begin, "end": end, "step_s": step_s}
    (had,) = _one(cursor, f"SELECT count(*) FROM {table} WHERE {_WITHIN}", span)
    cursor.execute(f"CREATE OR REPLACE TEMP TABLE joined AS {merge.format(rows=f'(SELECT * FROM {table} WHERE {_WITHIN})')}", span)
    cursor.execute(f"DELETE FROM {table} WHERE {_WITHIN}", span)
    cursor.execute(f"INSERT INTO {table} BY NAME SELECT *, true AS merged FROM joined")
    (has,) = _one(cursor, "SELECT count(*) FROM joined", {})
    cursor.execute("DROP TABLE joined")
    return int(had) - int(has)


def _one(cursor: duckdb.DuckDBPyConnection, sql: str, given: Mapping[str, object]) -> tuple[Any, ...]:
    return cursor.execute(sql, given).fetchone() or ()
